"""The models that are offered by name. Any other can be loaded from the hub, a folder or a file."""

from __future__ import annotations

from dataclasses import dataclass

from kvviz import memory
from kvviz.errors import InputError
from kvviz.settings import Settings


@dataclass(frozen=True)
class Offer:
    """One offered model.

    source    hub id, or None for the model that comes from the Python package index.
    size      bytes to fetch; context is the longest prompt plus answer, in tokens.
    needs     what it asks of the machine, in words.
    gated     its makers ask visitors to accept their terms on the hub first.
    """

    id: str
    source: str | None
    label: str
    parameters: str
    size: int
    context: int
    needs: str
    gated: bool = False

    @property
    def weights(self) -> float:
        """How many weights it has, about."""
        return float(self.parameters[:-1]) * {"M": 1e6, "B": 1e9}[self.parameters[-1]]

    def memory(self, dtype: str) -> int:
        """Bytes its weights take once loaded; "auto" may be float32, which takes most."""
        return int(self.weights * (2 if dtype in ("bfloat16", "float16") else 4))


CATALOG: tuple[Offer, ...] = (
    Offer(
        "smollm2-135m",
        None,
        "SmolLM2-135M-Instruct",
        "135M",
        93_000_000,
        8192,
        "any computer, 1 GB of memory",
    ),
    Offer(
        "smollm2-1.7b",
        "HuggingFaceTB/SmolLM2-1.7B-Instruct",
        "SmolLM2-1.7B-Instruct",
        "1.7B",
        3_400_000_000,
        8192,
        "8 GB of memory",
    ),
    Offer(
        "qwen2.5-0.5b",
        "Qwen/Qwen2.5-0.5B-Instruct",
        "Qwen2.5-0.5B-Instruct",
        "0.5B",
        990_000_000,
        32768,
        "4 GB of memory",
    ),
    Offer(
        "qwen3-0.6b",
        "Qwen/Qwen3-0.6B",
        "Qwen3-0.6B",
        "0.6B",
        1_500_000_000,
        40960,
        "4 GB of memory",
    ),
    Offer(
        "qwen3-4b",
        "Qwen/Qwen3-4B-Instruct-2507",
        "Qwen3-4B-Instruct-2507",
        "4B",
        8_100_000_000,
        262144,
        "a GPU with 16 GB",
    ),
    Offer(
        "llama-3.2-1b",
        "meta-llama/Llama-3.2-1B-Instruct",
        "Llama-3.2-1B-Instruct",
        "1B",
        2_500_000_000,
        131072,
        "6 GB of memory",
        gated=True,
    ),
    Offer(
        "mistral-7b",
        "mistralai/Mistral-7B-Instruct-v0.3",
        "Mistral-7B-Instruct-v0.3",
        "7B",
        14_500_000_000,
        32768,
        "a GPU with 24 GB",
    ),
    Offer(
        "gemma-3-1b",
        "google/gemma-3-1b-it",
        "Gemma 3 1B",
        "1B",
        2_000_000_000,
        32768,
        "6 GB of memory",
        gated=True,
    ),
    Offer(
        "phi-3-mini",
        "microsoft/Phi-3-mini-4k-instruct",
        "Phi-3-mini-4k-instruct",
        "3.8B",
        7_600_000_000,
        4096,
        "a GPU with 16 GB",
    ),
)


def offer(name: str) -> Offer | None:
    """The offer called `name`, by its id or its hub id; None when it is not in the catalogue."""
    return next((row for row in CATALOG if name in (row.id, row.source)), None)


def offered(limits: Settings) -> tuple[Offer, ...]:
    """What the page offers: what KVVIZ_MODELS names, else the catalogue, on a public server what fits its
    memory (the smallest model in any case). InputError for a name that is not in the catalogue."""
    if limits.models:
        named = {name: offer(name) for name in limits.models}
        if unknown := [name for name, row in named.items() if row is None]:
            known = ", ".join(row.id for row in CATALOG)
            raise InputError(f"KVVIZ_MODELS names {unknown[0]!r}; it must be names of {known}.")
        return tuple(row for row in CATALOG if row in named.values())
    most = memory.total() if limits.public else None
    return tuple(row for row in CATALOG if most is None or row is CATALOG[0] or row.memory("auto") <= most)
