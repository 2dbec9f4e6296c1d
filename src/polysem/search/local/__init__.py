"""An index in a folder: the store on disk, with the exact engine and the candidate index over its segments."""

from polysem.search.local.backend import LocalBackend

__all__ = ["LocalBackend"]
