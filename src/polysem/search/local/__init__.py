"""An index in a folder of this machine: the store on disk, the exact engine and the set means over its segments."""

from polysem.search.local.backend import LocalBackend

__all__ = ["LocalBackend"]
