"""Grids of comparisons, the texts they are fed with, and the verdict on an answer."""
