"""What the Triton kernels cost on every GPU generation, read from ahead-of-time builds; no GPU needed.

Each kernel is compiled for compute capability 7.5, 8.0, 8.6, 8.9 and 9.0. Registers and spills are read
with the disassembler that ships in the Triton wheel, shared memory from the build itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import multiprocessing
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from kvviz.kernels.ahead import compile_build
from kvviz.kernels.device import CAPABILITIES, Device

from kvviz.errors import KvvizError

FILES = ("window", "score", "norms", "gather", "ragged")
HOT = ("window_pass", "score_pass", "value_norms", "gather_rows", "ragged_attention")
Job = tuple[str, int, str, int]  # file, capability, dtype, head size


def jobs(
    capabilities: Iterable[int] = CAPABILITIES,
    dtypes: Sequence[str] = ("fp16",),
    head_dims: Sequence[int] = (64, 128),
    files: Sequence[str] = FILES,
) -> list[Job]:
    """Every combination that exists: bfloat16 begins with compute capability 8.0."""
    return [
        (file, capability, dtype, head_dim)
        for capability in capabilities
        for dtype in dtypes
        for head_dim in head_dims
        for file in files
        if not (dtype == "bf16" and capability < 80)
    ]


def compile_all(wanted: Sequence[Job], workers: int | None = None) -> list[dict]:
    """One row a build, compiled in parallel by fresh processes (this one may be interpreting kernels)."""
    if importlib.util.find_spec("triton") is None:
        raise KvvizError("Triton is not installed here; `pip install triton` brings the compiler.")
    saved = os.environ.pop("TRITON_INTERPRET", None)
    try:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=context) as pool:
            return [row for rows in pool.map(compile_job, wanted) for row in rows]
    finally:
        if saved is not None:
            os.environ["TRITON_INTERPRET"] = saved


def compile_job(job: Job) -> list[dict]:
    """Compile the builds of one kernel file for one capability, dtype and head size."""
    file, capability, dtype, head_dim = job
    module = importlib.import_module(f"kvviz.kernels.{file}_triton")
    return [compile_build(build) for build in module.builds(Device(capability, 100), dtype, head_dim)]


def worst(rows: Iterable[dict]) -> list[dict]:
    """One row a kernel and capability: the largest figures over its variants."""
    found: dict[tuple[str, str], dict] = {}
    for row in rows:
        key = (row["kernel"], row["capability"])
        entry = found.setdefault(key, {"kernel": key[0], "capability": key[1], "builds": 0})
        entry["builds"] += 1
        for name in ("registers", "spills", "shared_bytes"):
            entry[name] = max(entry.get(name, 0), row[name])
    return sorted(found.values(), key=lambda row: (row["kernel"], float(row["capability"])))


def main(out: str | None = None) -> int:
    """Compile the float16 builds of head sizes 64 and 128, print the table, write it as JSON."""
    rows = worst(compile_all(jobs()))
    print(f"{'kernel':18} {'capability':>10} {'registers':>9} {'spills':>6} {'shared bytes':>12}")
    for row in rows:
        print(
            f"{row['kernel']:18} {row['capability']:>10} {row['registers']:>9} {row['spills']:>6} "
            f"{row['shared_bytes']:>12}"
        )
    if out:
        Path(out).write_text(json.dumps(rows, indent=1) + "\n")
    return 0
