"""The GPU benchmark rehearsed on a CPU: its checks find faults, its timings run, no GPU is said clearly."""

from __future__ import annotations

import json
import os

import pytest
import torch

from benchmarks import gpu, gpu_definitions, gpu_times
from kvviz import kernels
from kvviz.cli import main

SMALL = (("small", 4, 2, 3, 60, 64, 24, True),)
HEADS = (4, 2, 64, 4, 48)


@pytest.fixture
def triton(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("KVVIZ_KERNELS", "triton")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_one_sentence_and_exit_code_2(capsys):
    assert main(["bench", "gpu"]) == 2
    error = capsys.readouterr().err
    assert "no CUDA GPU" in error and error.count("\n") == 1


def test_every_kernel_is_checked_and_right(triton, device):
    rows = list(gpu.correctness(device, SMALL, ("float32", "bfloat16")))
    assert all(row["right"] for row in rows), [row for row in rows if not row["right"]]
    assert {row["operation"].split()[0] for row in rows} == set(kernels._TWINS)
    assert {row["ran"] for row in rows} == {"triton"}


def test_a_wrong_kernel_is_found(triton, device, monkeypatch):
    from kvviz.kernels import norms_triton

    right = norms_triton.value_norms
    monkeypatch.setattr(norms_triton, "value_norms", lambda *args: right(*args) * 1.001)
    wrong = {row["operation"] for row in gpu.correctness(device, SMALL, ("float32",)) if not row["right"]}
    assert wrong == {"value_norms 1", "value_norms 2"}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_no_error_hides_behind_nan(bad):
    expected = torch.ones(3)
    assert gpu.relative_error(torch.tensor([1.0, bad, 1.0]), expected) == float("inf")
    assert gpu.relative_error(torch.tensor([1.0, 1.0, 1.1]), expected) == pytest.approx(0.0577, abs=1e-3)


def test_kernel_timings_name_every_baseline(triton, device, monkeypatch):
    monkeypatch.setattr(gpu_times, "COMPILED_AT", 1)  # torch.compile takes too long for a rehearsal
    rows = list(gpu_times.kernel_times(device, (200,), HEADS, 0.0))
    found = {(row["operation"].split()[0], row["implementation"]) for row in rows}
    assert {("window_pass", i) for i in ("kernel", "plain torch", "SDPA")} <= found
    assert {(o, "kernel") for o in ("score_pass", "value_norms", "gather_rows", "ragged_attention")} <= found
    assert all(row["ms"] > 0 and row["times_the_kernel"] > 0 for row in rows)


def test_baselines_compute_the_same(device):
    """A speed-up against something else would be worth nothing."""
    make = gpu_times.Random(device, torch.float32)
    query, keys, values = make(4, 5, 64), make(2, 90, 64), make(2, 90, 64)
    place = (0.125, 85)
    lse, out = kernels.window_pass(query, keys, values, *place)
    pairs = [
        (gpu_definitions.window_definition(query, keys, values, *place), out),
        (gpu_definitions.window_sdpa(query, keys, values, *place)[0], out),
    ]
    for kind, definition in (("mean", "snapkv"), ("dropkv", "dropkv")):
        baseline = getattr(gpu_definitions, f"{definition}_definition")(query, keys, values, *place)
        pairs.append((baseline, kernels.score_pass(query, keys, values, lse, out, *place, kind)))
    w_o = make(4, 64, 50)
    pairs += [
        (gpu_definitions.norms_definition(values, w_o, o), kernels.value_norms(values, w_o, o))
        for o in (1, 2)
    ]
    masks = [torch.rand(2, 90, device=device) < share for share in (1.0, 0.4)]
    blocks = kernels.gather_rows(keys, values, torch.cat(list(masks)), 16)
    step, at = make(2, 4, 1, 64), torch.full((2, 1), 90, device=device)
    padded = gpu_definitions.padded_rows(keys, values, masks)
    ragged, _ = kernels.ragged_attention(step, *blocks, 2, 0.125, at)
    pairs.append((gpu_definitions.ragged_sdpa(step, *padded, 0.125), ragged))
    for baseline, ours in pairs:
        assert gpu.relative_error(baseline, ours) < 1e-4


@pytest.fixture
def pretended_gpu(monkeypatch):
    """A device whose one check is right and whose parts never end by themselves."""

    def endless(*_):
        while True:
            yield {"operation": "window_pass", "right": True, "stage": "prefill"}

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "pretended")
    monkeypatch.setattr(gpu, "copy_bandwidth", lambda: 4000.0)
    for part in ("correctness", "kernel_times", "end_to_end"):
        monkeypatch.setattr(gpu, part, endless)
    monkeypatch.setattr(gpu, "ENDS", {"correctness": 0.02, "kernels": 0.04, "end_to_end": 0.06})


def test_every_part_ends_on_time_and_says_so(pretended_gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KVVIZ_KERNELS", "torch")
    report = gpu.main(str(tmp_path / "gpu.json"))
    assert report.seconds < 5 and len(report.skipped) == 3
    assert report.correctness and report.kernels and report.end_to_end
    assert json.loads((tmp_path / "gpu.json").read_text())["device"] == "pretended"
    assert os.environ["KVVIZ_KERNELS"] == "torch", "the visitor's own choice is put back"
    assert "checks right" in capsys.readouterr().out


def test_a_wrong_kernel_ends_with_exit_code_2(pretended_gpu, monkeypatch, capsys):
    wrong = [{"operation": "score_pass dropkv", "right": False}]
    monkeypatch.setattr(gpu, "correctness", lambda device: iter(wrong))
    assert main(["bench", "gpu"]) == 2
    assert "Wrong on this GPU: score_pass dropkv" in capsys.readouterr().err


def test_what_the_numbers_show_is_said():
    report = gpu.Report("pretended", "2.13")
    row = {"operation": "window_pass", "implementation": "kernel", "n": 4096, "times_the_kernel": 1.0}
    report.kernels = [row, {**row, "implementation": "plain torch", "times_the_kernel": 3.0}]
    report.end_to_end = [
        {"stage": "score and select snapkv", "n": 4096, "seconds": 0.01, "share_of_prefill": 0.02},
        {"stage": "decode one token", "n": 4096, "seconds": 0.004, "variants": 5},
    ]
    report.skipped = ["the rest of end_to_end: out of time"]
    assert gpu.proven(report) == [
        "window_pass at 4,096 tokens: 3.0 times faster than plain torch.",
        "Scoring and selecting one method takes at most 2.0% of the reading (1 cases).",
        "5 answers at 4,096 tokens: 4.0 ms for one of each.",
        "Not measured: the rest of end_to_end: out of time.",
    ]


def test_end_to_end_rehearsal(monkeypatch):
    rows = list(gpu_times.end_to_end((300,), "cpu", 1, (4, 2, 64, 8, 64)))
    stages = [row["stage"] for row in rows]
    assert stages[0] == "prefill" and stages[-1] == "decode one token"
    assert [s.split()[-1] for s in stages if s.startswith("score")] == list(gpu_times.METHODS)
    assert all(row["seconds"] > 0 for row in rows)
    assert len(gpu.proven(gpu.Report("cpu", "", end_to_end=rows))) == 2
