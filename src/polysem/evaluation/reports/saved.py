"""Evaluations that `polysem eval --json` wrote, read back: figures and stamp, without the values of each query."""

from __future__ import annotations

import json
from pathlib import Path

from polysem.errors import InputError
from polysem.evaluation.result import Evaluation
from polysem.evaluation.stamp import Stamp


def read(path: str | Path) -> Evaluation:
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        stamp = {name: value for name, value in found["protocol"].items() if name != "stamp"}
        return Evaluation(
            found["model"],
            Stamp(**{**stamp, "remarks": tuple(stamp.get("remarks", ()))}),
            # Recalls stand there by their path too.
            {name: value for name, value in found["metrics"].items() if "." not in name},
            intervals={name: (float(low), float(high)) for name, (low, high) in found.get("intervals", {}).items()},
            facts=dict(found.get("facts", {})),
        )
    except FileNotFoundError:
        raise InputError(f"There is no file {path}.") from None
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path} is no evaluation ({type(error).__name__}: {error}). Write one with "
            f"`polysem eval MODEL --data DATA --json > {path}`."
        ) from None
