"""Experiments of the papers that need no data set, beside the papers' own numbers."""
