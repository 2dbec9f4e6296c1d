"""The errors a user can cause. Each message names what was given, what was expected and the next step."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from difflib import get_close_matches

_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "The disk is full: free some space"),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS), "Choose a folder you may write to, or change its permissions"
    ),
    errno.EFBIG: "Files may not grow that large here: raise the limit (`ulimit -f`)",
    errno.EMFILE: "Too many files are open: raise the limit (`ulimit -n`)",
}


class PolysemError(ValueError):
    """Base of every error that polysem raises on bad input."""


class UnknownNameError(PolysemError):
    """A part, knob or key that does not exist. The message lists the ones that do."""


class ConfigError(PolysemError):
    """A knob has a value of the wrong type, out of range, or in an impossible combination."""


class InputError(PolysemError):
    """A tensor or array does not have the shape, type or content that was asked for."""


class NonFiniteError(InputError):
    """A value is NaN or infinite: from damaged data, or from weights that ran away."""


def unknown(kind: str, given: str, known: Iterable[str]) -> UnknownNameError:
    """An `UnknownNameError` that suggests the nearest known name and lists them all."""
    names = sorted(known)
    nearest = get_close_matches(given, names, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return UnknownNameError(f"Unknown {kind} {given!r}.{hint} Known: {', '.join(names) or 'none'}.")


def kind(value: object) -> str:
    """What was given, for a message: "float32 of shape (3, 4)", or the type where it is not a tensor."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None or shape is None:
        return type(value).__name__
    return f"{str(dtype).removeprefix('torch.')} of shape {tuple(shape)}"


def os_error_remedy(error: OSError) -> str:
    """What a user can do about something that the operating system refused: half a sentence, without a full stop."""
    return _REMEDIES.get(error.errno or 0, "Fix the problem")


def no_index_message(folder: object) -> str:
    return f"{folder} holds no index. Make one with `polysem index COLLECTION --model MODEL --out {folder}`."
