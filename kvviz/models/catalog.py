"""The models that are offered by name. Any other can be loaded from the hub, a folder or a file."""

from __future__ import annotations

from dataclasses import dataclass

from kvviz.errors import InputError
from kvviz.hardware import Room, room
from kvviz.settings import Settings

_REST = 2**30  # bytes for all but weights and caches: activations of one chunk, logits, libraries
LENGTHS = (8192, 32768, 131072)  # tokens at which the needed memory is told


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder, as its configuration states them. `tied`: one matrix embeds and predicts."""

    family: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool

    @property
    def weights(self) -> int:
        """Weights in its matrices: embedding, attention, feed-forward; norms and biases do not count."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        embedding = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return embedding + self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def token_values(self) -> int:
        """Numbers that the cache keeps of one token: a key and a value in every layer and KV head."""
        return 2 * self.layers * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class Offer:
    """One offered model.

    source    hub id, or None for the model that comes from the Python package index.
    context   the longest prompt plus answer, in tokens.
    gated     its makers ask visitors to accept their terms on the hub first.
    beside    weights that are loaded with it and not used: those that read images.
    """

    id: str
    source: str | None
    label: str
    context: int
    shape: Shape
    gated: bool = False
    beside: int = 0

    @property
    def weights(self) -> int:
        """How many weights are loaded."""
        return self.shape.weights + self.beside

    def memory(self, dtype: str) -> int:
        """Bytes its weights take once loaded; "auto" may be float32, which takes most."""
        return self.weights * _itemsize(dtype)

    def cache(self, tokens: int, dtype: str) -> int:
        """Bytes of the whole cache of so many tokens."""
        return tokens * self.shape.token_values * _itemsize(dtype)

    def needed(self, tokens: int, dtype: str, wave_bytes: int = 2 * 2**30) -> int:
        """Bytes for a run on so many tokens: weights, the whole cache, the caches of the answers that are
        written together (at most `wave_bytes`), and the rest."""
        cache = self.cache(tokens, dtype)
        return self.memory(dtype) + cache + min(2 * cache, wave_bytes) + _REST

    @property
    def needs(self) -> str:
        """What it asks of the machine, in words."""
        most = min(self.context, LENGTHS[0])
        on_gpu, on_cpu = (f"{self.needed(most, d) / 1e9:.0f}" for d in ("bfloat16", "float32"))
        return f"for {most:,} tokens {on_gpu} GB on a GPU or {on_cpu} GB of memory"


def _itemsize(dtype: str) -> int:
    return 2 if dtype in ("bfloat16", "float16") else 4



CATALOG: tuple[Offer, ...] = (
    Offer("smollm2-135m", None, "SmolLM2-135M-Instruct", 8192,
          Shape("llama", 30, 576, 1536, 9, 3, 64, 49152, tied=True)),
    Offer("smollm2-360m", "HuggingFaceTB/SmolLM2-360M-Instruct", "SmolLM2-360M-Instruct", 8192,
          Shape("llama", 32, 960, 2560, 15, 5, 64, 49152, tied=True)),
    Offer("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen2.5-0.5B-Instruct", 32768,
          Shape("qwen2", 24, 896, 4864, 14, 2, 64, 151936, tied=True)),
    Offer("qwen3-0.6b", "Qwen/Qwen3-0.6B", "Qwen3-0.6B", 40960,
          Shape("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, tied=True)),
    Offer("gemma-3-1b", "google/gemma-3-1b-it", "Gemma 3 1B", 32768,
          Shape("gemma3_text", 26, 1152, 6912, 4, 1, 256, 262144, tied=True), gated=True),
    Offer("llama-3.2-1b", "meta-llama/Llama-3.2-1B-Instruct", "Llama-3.2-1B-Instruct", 131072,
          Shape("llama", 16, 2048, 8192, 32, 8, 64, 128256, tied=True), gated=True),
    Offer("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B-Instruct", "Qwen2.5-1.5B-Instruct", 32768,
          Shape("qwen2", 28, 1536, 8960, 12, 2, 128, 151936, tied=True)),
    Offer("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct", "SmolLM2-1.7B-Instruct", 8192,
          Shape("llama", 24, 2048, 8192, 32, 32, 64, 49152, tied=True)),
    Offer("qwen3-1.7b", "Qwen/Qwen3-1.7B", "Qwen3-1.7B", 40960,
          Shape("qwen3", 28, 2048, 6144, 16, 8, 128, 151936, tied=True)),
    Offer("llama-3.2-3b", "meta-llama/Llama-3.2-3B-Instruct", "Llama-3.2-3B-Instruct", 131072,
          Shape("llama", 28, 3072, 8192, 24, 8, 128, 128256, tied=True), gated=True),
    Offer("phi-3-mini", "microsoft/Phi-3-mini-4k-instruct", "Phi-3-mini-4k-instruct", 4096,
          Shape("phi3", 32, 3072, 8192, 32, 32, 96, 32064, tied=False)),
    Offer("qwen3-4b", "Qwen/Qwen3-4B-Instruct-2507", "Qwen3-4B-Instruct-2507", 262144,
          Shape("qwen3", 36, 2560, 9728, 32, 8, 128, 151936, tied=True)),
    Offer("gemma-3-4b", "google/gemma-3-4b-it", "Gemma 3 4B", 131072,
          Shape("gemma3_text", 34, 2560, 10240, 8, 4, 256, 262208, tied=True), gated=True,
          beside=420_000_000),
    Offer("mistral-7b", "mistralai/Mistral-7B-Instruct-v0.3", "Mistral-7B-Instruct-v0.3", 32768,
          Shape("mistral", 32, 4096, 14336, 32, 8, 128, 32768, tied=False)),
    Offer("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B-Instruct", 32768,
          Shape("qwen2", 28, 3584, 18944, 28, 4, 128, 152064, tied=False)),
    Offer("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B-Instruct", 131072,
          Shape("llama", 32, 4096, 14336, 32, 8, 128, 128256, tied=False), gated=True),
    Offer("qwen3-8b", "Qwen/Qwen3-8B", "Qwen3-8B", 40960,
          Shape("qwen3", 36, 4096, 12288, 32, 8, 128, 151936, tied=False)),
    Offer("gemma-3-12b", "google/gemma-3-12b-it", "Gemma 3 12B", 131072,
          Shape("gemma3_text", 48, 3840, 15360, 16, 8, 256, 262208, tied=True), gated=True,
          beside=420_000_000),
    Offer("mistral-nemo", "mistralai/Mistral-Nemo-Instruct-2407", "Mistral-Nemo-Instruct-2407", 131072,
          Shape("mistral", 40, 5120, 14336, 32, 8, 128, 131072, tied=False)),
    Offer("phi-4", "microsoft/phi-4", "Phi-4", 16384,
          Shape("phi3", 40, 5120, 17920, 40, 10, 128, 100352, tied=False)),
    Offer("qwen3-14b", "Qwen/Qwen3-14B", "Qwen3-14B", 40960,
          Shape("qwen3", 40, 5120, 17408, 40, 8, 128, 151936, tied=False)),
    Offer("gemma-3-27b", "google/gemma-3-27b-it", "Gemma 3 27B", 131072,
          Shape("gemma3_text", 62, 5376, 21504, 32, 16, 128, 262208, tied=True), gated=True,
          beside=420_000_000),
    Offer("qwen3-32b", "Qwen/Qwen3-32B", "Qwen3-32B", 40960,
          Shape("qwen3", 64, 5120, 25600, 64, 8, 128, 151936, tied=False)),
    Offer("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct", "Llama-3.3-70B-Instruct", 131072,
          Shape("llama", 80, 8192, 28672, 64, 8, 128, 128256, tied=False), gated=True),
    Offer("qwen2.5-72b", "Qwen/Qwen2.5-72B-Instruct", "Qwen2.5-72B-Instruct", 32768,
          Shape("qwen2", 80, 8192, 29568, 64, 8, 128, 152064, tied=False)),
)  # fmt: skip


def offer(name: str) -> Offer | None:
    """The offer called `name`, by its id or its hub id; None when it is not in the catalogue."""
    return next((row for row in CATALOG if name in (row.id, row.source)), None)


def offered(limits: Settings, on: Room | None = None) -> tuple[Offer, ...]:
    """What the page offers, smallest first: what KVVIZ_MODELS names, else the catalogue, on a public server
    what fits its memory (the smallest model in any case). InputError for a name that is not in the catalogue.

    on  the memory there is, None: this machine's.
    """
    if limits.models:
        named = {name: offer(name) for name in limits.models}
        if unknown := [name for name, row in named.items() if row is None]:
            known = ", ".join(row.id for row in CATALOG)
            raise InputError(f"KVVIZ_MODELS names {unknown[0]!r}; it must be names of {known}.")
        return tuple(row for row in CATALOG if row in named.values())
    if not limits.public:
        return CATALOG
    on = room() if on is None else on
    return tuple(row for row in CATALOG if row is CATALOG[0] or _fits(row, limits, on))


def chosen_first(limits: Settings, on: Room | None = None) -> Offer:
    """The model that the page starts with: on a GPU the largest of those offered that fits and that anyone
    may fetch; on a CPU, where reading takes most of a run, the smallest."""
    on = room() if on is None else on
    rows = offered(limits, on)
    fitting = [row for row in rows if on.gpu and not row.gated and _fits(row, limits, on)]
    return fitting[-1] if fitting else rows[0]


def _fits(row: Offer, limits: Settings, on: Room) -> bool:
    """Whether a run on the longest prompt that is read here fits the memory there is."""
    tokens = min(limits.max_tokens, row.context)
    return on.bytes is None or row.needed(tokens, on.dtype, limits.wave_bytes) <= on.bytes
