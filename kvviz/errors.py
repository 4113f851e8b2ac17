"""Errors whose message is a sentence for a person: what was asked, what is possible, what to change."""

from __future__ import annotations


class KvvizError(ValueError):
    """Base of every error a user of kvviz can cause. The command line prints it and exits with code 2."""


class InputError(KvvizError):
    """A document, question, budget or option that cannot be used as it is."""


class ModelError(KvvizError):
    """A model that is unknown, unsupported, unreachable or broken on disk."""


class NeedError(KvvizError):
    """A trace or model lacks something that a method needs; the message names it."""


class Cancelled(KvvizError):
    """The work was stopped on request; whatever was finished has already been handed out."""
