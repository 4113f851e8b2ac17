"""Files made of a run."""
