"""The engine: a prompt is read once, scored, cut, decoded and measured. Torch lives here."""
