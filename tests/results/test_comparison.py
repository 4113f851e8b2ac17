"""A finished comparison: saved and read back the same, strict JSON, no pickles, sentences for bad files."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import zipfile
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from reference import prompt_of

import kvviz
from kvviz.engine.prompts import build_prompt
from kvviz.engine.run import compare
from kvviz.engine.selection import Selection
from kvviz.errors import InputError
from kvviz.results.archive import FORMAT, load_comparison
from kvviz.results.comparison import Comparison, Point, Variant

METHODS = ["snapkv", "criticalkv", "snapkv:window=4,allocation=global"]


@pytest.fixture(scope="module")
def result(tiny_llama) -> Comparison:
    text = "The keeper wrote the code 58213 in the ledger. Naïve <|im_end|> «words» \u2028 here. " * 3
    prompt = build_prompt(tiny_llama, text, "What is the code?", protocol="question-agnostic")
    return compare(tiny_llama, prompt, METHODS, [0.5, 9], 6, expected="58213", lenses=True)


@pytest.fixture(params=["zip", "json"])
def saved(request, result, tmp_path):
    path = tmp_path / f"run.{request.param}"
    if request.param == "zip":
        assert result.save(path) == path
    else:
        result.to_json(path)
    return path


def same(a, b, where="") -> None:
    """Equal in every field, arrays and tensors by value, NaN equal to NaN, types kept."""
    if isinstance(a, torch.Tensor | np.ndarray):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype, where
        np.testing.assert_array_equal(a, b, err_msg=where)
    elif isinstance(b, Selection):  # a file gives the same on numpy
        same(a, Point.pack(b), where)
    elif hasattr(a, "__dataclass_fields__"):
        assert type(a) is type(b), where
        for f in fields(a):
            same(getattr(a, f.name), getattr(b, f.name), f"{where}.{f.name}")
    elif isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            same(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{where}[{i}]")
    else:
        assert type(a) is type(b) or isinstance(a, str) and isinstance(b, str), (where, a, b)
        assert a == b, where


def test_what_is_read_back_is_what_was_saved(result, saved):
    again = load_comparison(saved)
    assert isinstance(again, Comparison)
    same(again, result)


def test_saving_twice_gives_the_same(result, saved, tmp_path):
    assert load_comparison(saved).to_json() == result.to_json()


def test_an_empty_and_a_partial_result_can_be_saved(tiny_llama, tmp_path):
    """As after a stop: no variants, no measures."""
    whole = compare(tiny_llama, prompt_of(tiny_llama, 30), ["snapkv"], [0.5], 3, measures=())
    whole.variants = []
    same(load_comparison(whole.save(tmp_path / "a.zip")), whole)


def test_json_is_strict_and_holds_a_plain_table(result):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    manifest = json.loads(result.to_json(), parse_constant=refuse)
    assert manifest["format"] == FORMAT
    assert [row["method"] for row in manifest["table"]] == ["full"] + [m for m in METHODS for _ in "12"]
    assert manifest["table"][0]["text"] == result.full.text


def test_numbers_that_json_has_no_word_for_become_null(result):
    odd = Comparison(**{f.name: getattr(result, f.name) for f in fields(result)})
    odd.seconds = {"prefill": float("nan"), "decode": float("inf"), "score": np.float32(1.5)}
    manifest = json.loads(odd.to_json())
    assert manifest["seconds"] == {"prefill": None, "decode": None, "score": 1.5}


def test_selections_of_one_method_share_their_scores(result, tmp_path):
    with zipfile.ZipFile(result.save(tmp_path / "run.zip")) as archive:
        stored = [name for name in archive.namelist() if name.startswith("arrays/selection_scores_")]
    lists = [
        rows
        for v in result.variants
        for rows in (v.selection.scores, v.selection.scores_raw, v.selection.first_scores)
        if rows is not None
    ]
    contents = {b"".join(np.asarray(row).tobytes() for row in rows) for rows in lists}
    assert len(stored) == len(contents) < len({tuple(map(id, rows)) for rows in lists})


def test_rounding_keeps_three_digits(result, tmp_path):
    loaded = load_comparison(result.save(tmp_path / "rounded.zip", rounded=True))
    for before, after in zip(result.variants, loaded.variants):
        for mask, same in zip(before.selection.mask, after.selection.mask):
            assert np.array_equal(np.asarray(mask), np.asarray(same))
        for score, near in zip(before.selection.scores, after.selection.scores):
            np.testing.assert_allclose(np.asarray(near), np.asarray(score), rtol=2**-11)


def test_nothing_saved_is_a_pickle(result, tmp_path):
    with zipfile.ZipFile(result.save(tmp_path / "run.zip")) as archive:
        for name in archive.namelist():
            data = archive.read(name)
            if name == "manifest.json":
                json.loads(data)
            else:
                assert data.startswith(b"\x93NUMPY")
                assert b"'|O'" not in data[:128]
                np.load(io.BytesIO(data), allow_pickle=False)


# -- files that cannot be used ------------------------------------------------------------------------


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle was run')",))


def test_a_pickle_in_a_saved_file_is_never_run(result, tmp_path):
    path = result.save(tmp_path / "run.zip")
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    buffer = io.BytesIO()
    np.save(buffer, np.array([Bomb()], dtype=object), allow_pickle=True)
    for data in (buffer.getvalue(), pickle.dumps(Bomb())):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in entries.items():
                archive.writestr(name, data if name == "arrays/input_ids.npy" else content)
        with pytest.raises(InputError, match="run.zip is not a comparison saved by kvviz, or it is damaged."):
            load_comparison(path)


def test_an_array_of_objects_in_json_is_refused(result, tmp_path):
    manifest = json.loads(result.to_json())
    manifest["arrays"]["input_ids"]["dtype"] = "|O"
    path = tmp_path / "run.json"
    path.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="is not a comparison saved by kvviz"):
        load_comparison(path)


def test_an_array_that_unpacks_to_too_much_is_refused(result, tmp_path):
    manifest = json.loads(result.to_json())
    manifest["arrays"]["input_ids"]["shape"] = [10**12]
    path = tmp_path / "run.json"
    path.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="unpacks to more than 2 GB"):
        load_comparison(path)


@pytest.mark.parametrize("kind", ["zip", "json"])
def test_a_newer_format_says_to_update(result, tmp_path, kind):
    manifest = json.loads(result.to_json())
    manifest["format"] = FORMAT + 1
    path = tmp_path / f"run.{kind}"
    if kind == "json":
        path.write_text(json.dumps(manifest))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("manifest.json", json.dumps(manifest))
    with pytest.raises(InputError) as error:
        load_comparison(path)
    assert str(error.value) == (
        f"This comparison was saved by a newer kvviz (format {FORMAT + 1}; this one reads up to {FORMAT}). "
        "Update kvviz to open it."
    )


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"{}", b"[]", b"null", b'{"format": 1, "arrays": {}}', b"PK\x03\x04 cut"]
)
def test_other_files_are_one_sentence(tmp_path, content):
    path = tmp_path / "mine.zip"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        load_comparison(path)
    assert str(error.value) == "mine.zip is not a comparison saved by kvviz, or it is damaged."


def test_a_file_cut_anywhere_is_one_sentence(saved):
    whole = saved.read_bytes()
    for share in (0.01, 0.3, 0.7, 0.95, 0.999):
        saved.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(InputError, match="not a comparison saved by kvviz, or it is damaged"):
            load_comparison(saved)


def test_a_damaged_array_is_one_sentence(result, tmp_path):
    path = result.save(tmp_path / "run.zip")
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    for gone in ("arrays/input_ids.npy", "arrays/variant0_kept.npy", "arrays/variant0_stage.npy"):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in entries.items():
                if name != gone:
                    archive.writestr(name, content)
        with pytest.raises(InputError, match="or it is damaged"):
            load_comparison(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="There is no saved comparison at .*none.zip"):
        load_comparison(tmp_path / "none.zip")


# -- reading ------------------------------------------------------------------------------------------


def test_kept_and_protected_at_decoded_budgets_and_stops(result):
    for c in (result,):
        for method in METHODS:
            for v in (v for v in c.variants if v.method == method):
                kept = c.at(method, v.budget).kept
                assert np.array_equal(kept.mask(), torch.stack(v.selection.mask).numpy())
                assert np.array_equal(kept.protected(), v.selection.protected.numpy())
            for stop in c.stops:
                entries = c.at(method, stop).entries
                kept, rule = c.at(method, stop).kept.mask(), c.at(method, stop).kept.protected()
                assert kept.shape == rule.shape == (3, 2, c.n)
                assert kept.sum() == 6 * entries
                assert (kept | ~rule).all()
    assert result.at("snapkv", 0.123) is None
    assert result.at("knorm", 0.5) is None


def test_the_same_after_reading_back(result, saved):
    again = load_comparison(saved)
    for method in METHODS:
        for budget in (0.5, 9, 0.1, 1.0):
            one, other = again.at(method, budget).kept, result.at(method, budget).kept
            assert np.array_equal(one.mask(), other.mask())
            assert np.array_equal(one.protected(), other.protected())


def test_variants_are_found_by_share_or_entries(result):
    assert result.variant("snapkv", 0.5).budget == 0.5
    assert result.variant("snapkv", 9).entries == 9
    assert result.variant("snapkv", 9 / result.n).entries == 9
    assert result.variant("snapkv", 0.3) is None
    assert result.variant("knorm", 0.5) is None


def test_a_comparison_is_shown_in_a_few_lines(result):
    said = repr(result)
    assert len(said.splitlines()) == 2 + len(result.variants)
    assert len(said) < 1000 and "SnapKV at 50%" in said and "CriticalKV at 9 tokens" in said
    many = replace(result, variants=result.variants * 5)
    assert len(repr(many).splitlines()) == 15 and "and 18 more answers" in repr(many)


def test_lists_and_labels(result):
    assert result.methods == METHODS
    assert result.labels == {
        "snapkv": "SnapKV", "criticalkv": "CriticalKV", METHODS[2]: "SnapKV with global (window=4)",
    }  # fmt: skip
    assert result.budgets == [0.5, 9]
    assert result.share(0.5) == 0.5
    assert result.share(9) == pytest.approx(9 / result.n)
    assert result.share(10**6) == 1.0
    assert len({v.key for v in result.variants}) == len(result.variants)


def test_the_table(result, saved):
    for c in (result, load_comparison(saved)):
        frame = c.to_frame()
        assert list(frame["method"])[:1] == ["full"]
        assert len(frame) == 1 + len(c.variants)
        assert list(frame["entries"][1:3]) == [c.n // 2, 9]
        assert frame["bytes"].iloc[0] == c.bytes_full
        assert (frame["bytes"] > 0).all()
        for row, v in zip(frame.iloc[1:].itertuples(), c.variants):
            assert row.mean_kl == pytest.approx(float(v.kl.mean()))
            assert row.mean_output_error == pytest.approx(float(v.output_error.mean()))
            assert row.text == v.text


def test_a_saved_file_opens_without_the_model_libraries(saved):
    code = """
import sys, kvviz
c = kvviz.load_comparison(sys.argv[1])
c.to_frame(), c.to_json(), c.at("snapkv", 0.5).mask
from kvviz.figures.kept import kept_figure, kept_table
from kvviz.results.answers import all_answers_table, answer_cards
from kvviz.results.finding import caution, finding, notices
finding(c, "snapkv", "criticalkv", 0.5), caution(c, ["snapkv"], 0.5), notices(c, c.methods, 0.5)
answer_cards(c, "snapkv", None, 0.5), all_answers_table(c).rows(), kept_figure(kept_table(c, "snapkv", 0.5))
print(sorted({"torch", "transformers", "gradio", "triton"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(saved)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_types_are_plain():
    assert Variant("full", "Full cache", 1.0, 5, {}, None).key == "full@1.0"
    assert {f.name for f in fields(Selection)} >= {
        "mask",
        "scores",
        "budgets",
        "protected",
        "stage",
        "cutoff",
    }
    assert kvviz.Comparison is Comparison
