"""kvviz: see what a KV-cache eviction method keeps, what it loses, and what that does to the answer.

    model = kvviz.load_model("smollm2-135m")
    prompt = kvviz.build_prompt(model, document=text, question="...")
    result = kvviz.compare(model, prompt, methods=["snapkv", "criticalkv"], budgets=[0.5, 0.2])
"""

from __future__ import annotations

from importlib import import_module

# Imported at first use, so that a stored comparison opens without torch.
_WHERE = {
    "Comparison": "kvviz.results.comparison",
    "KvvizError": "kvviz.errors",
    "causes": "kvviz.engine.causes",
    "conversation": "kvviz.engine.conversation",
    "smallest_rescue": "kvviz.engine.causes",
    "build_prompt": "kvviz.engine.prompts",
    "compare": "kvviz.engine.run",
    "compare_stream": "kvviz.engine.run",
    "list_methods": "kvviz.methods",
    "load_comparison": "kvviz.results.archive",
    "load_model": "kvviz.models",
    "load_plugin": "kvviz.methods",
    "prefill": "kvviz.engine.trace",
    "register": "kvviz.methods",
    "select": "kvviz.engine.selection",
    "wrap_model": "kvviz.models",
}
__all__ = sorted(_WHERE)
__version__ = "0.2.0"


def __getattr__(name: str):
    if name not in _WHERE:
        raise AttributeError(f"module 'kvviz' has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
