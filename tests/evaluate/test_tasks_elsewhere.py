"""The same items, drawn from the same random numbers, by lm-evaluation-harness: the same texts and scores.

For developers: skipped unless lm-eval 0.4.13 with its extras `ruler` and `longbench` is installed.
"""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from kvviz.evaluate import counting, haystacks, tasks
from kvviz.evaluate.items import Item
from kvviz.evaluate.metrics import METRICS

pytest.importorskip("lm_eval.tasks.ruler.cwe_utils", exc_type=ImportError)
SEEDS = range(50)


@pytest.fixture
def needles(monkeypatch):
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "find", lambda *_: True)  # its corpus of sentences is not needed
    from lm_eval.tasks.ruler import niah_utils, prepare_niah

    monkeypatch.setattr(prepare_niah, "cached_sent_tokenize", haystacks.split_sentences)
    monkeypatch.setattr(prepare_niah, "generate_random_word", lambda: tasks._draw("words", random))
    return prepare_niah.generate_input_output, niah_utils.TEMPLATE


@pytest.mark.parametrize("name", tasks.NEEDLES)
def test_needle_texts_are_the_same(name, needles):
    theirs, template = needles
    what = tasks.NEEDLES[name]
    words = haystacks.haystack_words("own", 1500, 0)
    kind = {"noise": "repeat", "needles": "needle", "prose": "essay"}[what.haystack]
    pattern = tasks.NEEDLE.replace("kind", "type_needle_v")
    haystack = {"noise": haystacks.NOISE, "needles": pattern, "prose": words}[what.haystack]
    for seed in SEEDS:
        units = 300 + seed if what.haystack == "prose" else 30 + seed
        random.seed(seed)
        text, answers, _ = theirs(
            units, haystack, type_haystack=kind, num_needle_k=what.keys, type_needle_k=what.key_kind,
            num_needle_v=what.values, type_needle_v=what.value_kind, template=template,
            num_needle_q=what.queries,
        )  # fmt: skip
        random.seed(seed)
        mine = tasks.needle_sample(what, units, random, words)
        assert f"{mine.document}\n{mine.question}" == text
        assert list(mine.answers) == answers


def test_texts_that_are_tracked_and_counted_are_the_same(monkeypatch):
    from lm_eval.tasks.ruler import cwe_utils, fwe_utils, vt_utils

    monkeypatch.setattr(vt_utils.np.random, "randint", random.randrange)
    monkeypatch.setattr(cwe_utils, "RNG", random)
    monkeypatch.setattr(cwe_utils, "WORDS", counting.common_vocabulary())
    counted = lambda text: SimpleNamespace(input_ids=text.split())  # noqa: E731
    for seed in SEEDS:
        random.seed(seed)
        text, names = vt_utils.generate_input_output(20, 1, counting.HOPS)
        random.seed(seed)
        mine = counting.chain_sample(20, random)
        assert (f"{mine.document}\n\n{mine.question} {mine.cue} ", list(mine.answers)) == (text, names)
        random.seed(seed)
        _, text, common = cwe_utils.generate_input_output(60, 2000)
        random.seed(seed)
        counting.list_sample(20, random, 3, 1)
        mine = counting.list_sample(60, random, 6, 1)
        assert (f"{mine.document}\n{mine.question} {mine.cue}", list(mine.answers)) == (text, common)
        random.seed(seed)
        text, frequent, _ = fwe_utils.generate_input_output(10**9, counted, num_words=300, vocab_size=40)
        random.seed(seed)
        mine = counting.coded_sample(300, random, 40)
        assert (f"{mine.document}\n{mine.question} {mine.cue}", list(mine.answers)) == (text, frequent)


def test_scores_are_the_same():
    from lm_eval.tasks.longbench import metrics
    from lm_eval.tasks.ruler import common_utils

    classes = ["Other number", "number", "Number of", "cat"]
    pieces = ["The", "cat", "sat,", "a", "7", "Paragraph 7", "x = 1", *classes, "#c", "\n", "`"]
    theirs = {
        "f1": metrics.get_qa_f1_score, "rouge_l": metrics.get_rouge_score,
        "edit_similarity": metrics.get_code_sim_score, "classification": metrics.get_classification_score,
    }  # fmt: skip
    draw = random.Random(1)
    for _ in range(2000):
        text = " ".join(draw.choices(pieces, k=draw.randrange(9)))
        answers = [
            " ".join(draw.choices(pieces, k=draw.randrange(1, 5))) for _ in range(draw.randrange(1, 4))
        ]
        row = {"answers": answers, "all_classes": classes}
        for metric, score in theirs.items():
            (wanted,) = score(row, [text]).values()
            mine = METRICS[metric].of(text, Item("i", "t", "d", "q", tuple(answers), metric, row))
            assert mine == pytest.approx(wanted), (metric, text, answers)
        wanted = common_utils.string_match_all(common_utils.postprocess_pred([text]), [answers])
        mine = METRICS["contains_all"].of(text, Item("i", "t", "d", "q", tuple(answers), "contains_all"))
        assert mine == pytest.approx(wanted)
