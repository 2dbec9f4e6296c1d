"""Reports of evaluations: significance, comparison tables, and files for other tools."""
