"""Compiles one kernel for a GPU that need not be there, and reads what it costs."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from typing import Any

from kvviz.kernels.device import Build

from kvviz.errors import KvvizError


def compile_build(build: Build) -> dict[str, Any]:
    """Registers and spilled bytes a thread, shared bytes a block, of one build."""
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    import triton
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("cuda", build.capability, 32)
    compiled = triton.compile(build.source, target=target, options=build.options)
    registers, stack = resources(compiled.asm["cubin"])
    return {
        "kernel": build.name,
        "variant": build.variant,
        "capability": f"{build.capability // 10}.{build.capability % 10}",
        "registers": registers,
        "spills": stack,  # the stack of these kernels holds nothing but spilled registers
        "shared_bytes": compiled.metadata.shared,
        "warps": build.options["num_warps"],
    }


def resources(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of stack) a thread of the one kernel in a cubin, by Triton's own disassembler."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if found is None:
        raise KvvizError(f"cuobjdump told nothing about registers: {usage.strip()!r}")
    return int(found[1]), int(found[2])
