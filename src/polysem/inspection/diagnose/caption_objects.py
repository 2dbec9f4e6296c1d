"""Which things a caption names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from polysem.synthetic.scenes.english import plural, singular


class Names:
    """Names of things, to be found in captions, one of it or several."""

    def __init__(self, names: Iterable[str]) -> None:
        self._name_of: dict[str, str] = {}
        for name in sorted(set(names)):
            for form in (name, singular(name), plural(name), f"{name}s"):
                self._name_of.setdefault(form.lower(), name)
        # The longest first: a "fir tree" names no "tree".
        forms = "|".join(re.escape(form) for form in sorted(self._name_of, key=len, reverse=True))
        self._pattern = re.compile(rf"(?<!\w)(?:{forms})(?!\w)") if forms else None

    def named(self, caption: str) -> frozenset[str]:
        """Those that stand in the caption."""
        found = self._pattern.findall(caption.lower()) if self._pattern is not None else []
        return frozenset(self._name_of[form] for form in found)
