"""The routes, one file for each thing that can be asked for."""
