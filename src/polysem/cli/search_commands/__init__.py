"""Commands of an index: index, add, remove, stats, verify, compact, search, serve."""
