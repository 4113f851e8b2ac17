"""Kernel tests run twice: the torch twin, and Triton on a GPU or, without one, in its interpreter.

The interpreter is switched on in tests/conftest.py, before anything imports Triton.
"""

from __future__ import annotations

import importlib.util

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def device() -> str:
    return DEVICE


@pytest.fixture(params=["torch", "triton"])
def implementation(request, monkeypatch) -> str:
    """Makes the chooser take the twin or the kernel; a test that uses it runs once with each."""
    if request.param == "triton" and importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    monkeypatch.setenv("KVVIZ_KERNELS", request.param)
    return request.param


@pytest.fixture(autouse=True)
def poisoned_empty(monkeypatch):
    """Uninitialised floats start as NaN, so that an output nobody wrote cannot pass by luck."""

    def poison(create):
        def created(*args, **kwargs):
            tensor = create(*args, **kwargs)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor.fill_(-7)

        return created

    monkeypatch.setattr(torch, "empty", poison(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poison(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", poison(torch.Tensor.new_empty))
