"""The fork: what each cache was about to say at every step, and what follows if it says something else."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import torch

from kvviz.engine.cache import build_cache
from kvviz.engine.decode import Answer, Wave, generate
from kvviz.engine.trace import Trace
from kvviz.engine.trials import Kept, Trials
from kvviz.errors import InputError
from kvviz.results.fork import Fork, Path, Step

TOP = 10


def fork(
    trace: Trace,
    caches: Mapping[str, np.ndarray],
    max_new_tokens: int = 64,
    cancel: threading.Event | None = None,
) -> Fork:
    """The ten likeliest tokens of the whole cache and of each of `caches` ({name: bool [L, Hkv, n]}) at every
    step of its own answer, and how likely each makes the whole cache's answer."""
    trials = Trials(trace, cancel=cancel)
    whole = np.ones(trials.shape, bool)
    masks = {"full": whole, **caches}
    answers = [a.token_ids for a in trials.write(masks.values(), max_new_tokens)]
    followed = list(trials.follow(list(masks.values()), answers, TOP))
    near = trials.ranks(list(masks.values()), answers[0])
    decode = trace.model.tokenizer.decode
    paths = {}
    for name, answer, (ids, p), expected in zip(masks, answers, followed, near):
        steps = [
            Step(decode([token]), [(decode([i]), float(x)) for i, x in zip(row, share)])
            for token, row, share in zip(answer, ids.tolist(), p.tolist())
        ]
        paths[name] = Path(name, decode(answer, skip_special_tokens=True), steps, expected)
    return Fork([decode([t]) for t in answers[0]], paths)


def branch(
    trace: Trace, mask: np.ndarray, forced: list[int], max_new_tokens: int = 64, readout=None
) -> tuple[list[int], str]:
    """(token ids, text) of a cache that is made to begin with the tokens `forced` and then decodes on."""
    if not forced:
        raise InputError("Choose the token to go on from.")
    trials = Trials(trace, readout)
    kept = Kept(list(torch.from_numpy(np.ascontiguousarray(mask))))
    length = len(trials.suffix) + len(forced) + max_new_tokens
    wave = Wave(trace.model, build_cache(trace, [kept]), length)
    fed = torch.tensor([[*trials.suffix, *forced]], device=trace.model.device)
    logits = wave.feed(fed, 1)[:, -1]
    answer = Answer()
    for _ in generate(wave, logits, max_new_tokens, trace.model.stop_ids, answers=[answer]):
        pass
    tokens = [*forced, *answer.token_ids]
    return tokens, trace.model.tokenizer.decode(tokens, skip_special_tokens=True)
