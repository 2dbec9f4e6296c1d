"""The protocol that a number was measured under, which goes wherever the number goes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Stamp:
    """What was asked of what, and how. `str()` is what stands behind a number.

    protocol: its name. dataset, split: what was searched. images, texts: how many there are to find, in all.
    folds: into how many galleries of equal size they were divided; figures are means over them.
    measure: what a hit is. scoring: "inductive" (a query is scored by itself) or "transductive: …" (the other queries
    had a say). selected_on: the split that chose the checkpoint. ties: how equal scores were ordered.
    members: how many models' scores were averaged. remarks: whatever else a reader must know.
    """

    protocol: str
    dataset: str
    split: str
    images: int
    texts: int
    folds: int = 1
    measure: str = "hit rate"
    scoring: str = "inductive"
    selected_on: str = "unknown"
    ties: str = "pessimistic"
    members: int = 1
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        size = f"{self.images // self.folds}×{self.texts // self.folds}"
        chosen = "selection unknown" if self.selected_on == "unknown" else f"selected on {self.selected_on}"
        parts = [
            f"{self.dataset} {self.split}",
            size if self.folds == 1 else f"{size} in {self.folds} folds",
            self.measure,
            self.scoring,
            chosen,
        ]
        if self.members > 1:
            parts.append(f"mean of {self.members} models")
        if self.ties != "pessimistic":
            parts.append(f"ties {self.ties}")
        return ", ".join([*parts, *self.remarks])

    def with_remark(self, remark: str) -> Stamp:
        return replace(self, remarks=(*self.remarks, remark))

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; "stamp" is the text."""
        return {**asdict(self), "remarks": list(self.remarks), "stamp": str(self)}
