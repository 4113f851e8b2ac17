"""A second logical device on a machine that has one: numbers stay on the CPU, and whatever brings tensors of
two devices together fails, as CUDA would.

A tensor "on the second device" is a wrapper that says it lies on SECOND and holds its values on the CPU.
Every operation of torch's core passes `_run`, so nothing in between can mix the two unnoticed.
"""

from __future__ import annotations

from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

SECOND = torch.device("meta", 0)  # the one other device that every build of torch knows
# What CUDA takes from the CPU as well: a single number, or an index in place of one.
_TAKE_HOST = {"index.Tensor", "index_put_.default", "index_put.default"}


class There(torch.Tensor):
    """A tensor on SECOND."""

    @staticmethod
    def __new__(cls, held: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=SECOND,
        )  # fmt: skip

    def __init__(self, held: torch.Tensor):
        self.held = held

    def tolist(self):
        return self.held.tolist()

    def new_tensor(self, values):
        return There(self.held.new_tensor(values))

    def __repr__(self):
        return f"There({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


def _run(func, args, kwargs):
    name = func._schema.name.removeprefix("aten::") + "." + (func._overloadname or "default")
    tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
    there = any(isinstance(t, There) for t in tensors)
    target = kwargs.get("device")
    moves = name.split(".")[0] in ("_to_copy", "copy_", "to")
    if there and not moves and name not in _TAKE_HOST:
        here = [t for t in tensors if not isinstance(t, There) and t.dim() > 0]
        if here:
            raise RuntimeError(f"{name}: tensors of two devices, {[tuple(t.shape) for t in tensors]}")
    plain = tree_map(lambda t: t.held if isinstance(t, There) else t, (args, kwargs))
    if target is not None and torch.device(target).type == "meta":
        plain[1]["device"] = torch.device("cpu")
    out = func(*plain[0], **plain[1])
    if func._schema.is_mutable:
        return kwargs.get("out", args[0])
    to_second = there if target is None else torch.device(target).type == "meta"
    return tree_map(lambda t: There(t) if isinstance(t, torch.Tensor) and to_second else t, out)


def _from_values(make):
    """`torch.tensor` for both devices: it fills its memory by itself, unseen by the mode."""

    def made(values, *, device=None, **options):
        if isinstance(values, torch.Tensor):
            return make(values, device=device, **options)
        away = device is not None and torch.device(device).type == SECOND.type
        held = make(values, **options) if away else make(values, device=device, **options)
        return There(held) if away else held

    return made


class Factories(TorchDispatchMode):
    """While open, tensors that are made on SECOND are `There`."""

    def __enter__(self):
        self._patches = [
            mock.patch.object(torch, name, _from_values(getattr(torch, name)))
            for name in ("tensor", "as_tensor")
        ]
        for patch in self._patches:
            patch.start()
        return super().__enter__()

    def __exit__(self, *error):
        for patch in self._patches:
            patch.stop()
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


def split(model, first: int):
    """The model with its layers from `first` on, its last norm and its head on SECOND, as a device map does:
    what enters a module is moved to where its weights are."""

    def move(module, args, kwargs):
        return tree_map(lambda t: t.to(module.lies) if isinstance(t, torch.Tensor) else t, (args, kwargs))

    decoder = model.decoder
    parts = [(block, SECOND if i >= first else torch.device("cpu")) for i, block in enumerate(decoder.layers)]
    parts += [(decoder.norm, SECOND), (model.hf.get_output_embeddings(), SECOND)]
    for part, lies in parts:
        part.lies = lies
        part.register_forward_pre_hook(move, with_kwargs=True)
        if lies == SECOND:
            for module in part.modules():
                for name, weight in list(module._parameters.items()):
                    if weight is not None:
                        module._parameters[name] = torch.nn.Parameter(There(weight.data), requires_grad=False)
    return model
