"""Models: load one by name, or wrap a transformers model that is already in memory."""

from kvviz.models.adapters import Layer, Model, wrap_model
from kvviz.models.load import load_model

__all__ = ["Layer", "Model", "load_model", "wrap_model"]
