"""Where a comparison came from: what was asked, weights and calibrated files, machine and versions."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from typing import Any

import torch
import transformers

import kvviz
from kvviz import kernels
from kvviz.engine.plan import Plan
from kvviz.methods import artefacts
from kvviz.models import Model
from kvviz.results.points import PROBE, PROBE_CUT
from kvviz.types import Prompt


def provenance(model: Model, prompt: Prompt, plan: Plan) -> dict[str, Any]:
    """The settings of a comparison, plain values as they are stored with it."""
    return {
        **plan.settings(),
        "protocol": prompt.protocol,
        "probe": PROBE if plan.ask.evict_every is None else PROBE_CUT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "source": model.source,
        "weights": model.weights_hash,
        "calibrated": {
            p.name: artefacts.load(model, p.method.artefact.name).about.get("sha256", "lent")
            for p in plan.methods
            if p.method.artefact is not None
        },
        "machine": {
            "device": ", ".join(dict.fromkeys(str(layer.device) for layer in model.layers)),
            "threads": torch.get_num_threads(),
            "kernels": kernels.last_used(),
        },
        "versions": {
            "kvviz": kvviz.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    }
