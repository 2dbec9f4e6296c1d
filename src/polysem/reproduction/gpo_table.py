"""Table 6 of VSE∞'s supplement, and how a result compares with it."""

from __future__ import annotations

from typing import Literal

Sizes = Literal["seen", "smaller", "larger"]
Verdict = Literal["met", "better", "worse"]

SIZES: dict[Sizes, range] = {"seen": range(20, 101), "smaller": range(10, 20), "larger": range(101, 121)}
"""Sizes of the sets. Training sees the first range only."""

DESIGNS = {
    "interp": "Interp.",
    "cos-sin-mlp": "Cos/Sin+MLP",
    "index-bigru": "Index+BiGRU",
    "cos-sin-bigru": "Cos/Sin+BiGRU",
}
"""The coefficient generators, by our name and the paper's."""

PAPER: dict[str, dict[str, tuple[float, float, float]]] = {
    "interp": {
        "A": (0.0, 0.0, 0.0),
        "M-1": (0.065, 0.017, 0.070),
        "M-10": (0.030, 0.141, 0.014),
        "T-50%": (0.011, 0.039, 0.005),
        "L": (0.004, 0.016, 0.002),
    },
    "cos-sin-mlp": {
        "A": (0.012, 0.054, 0.006),
        "M-1": (0.003, 0.003, 0.003),
        "M-10": (0.047, 0.093, 0.030),
        "T-50%": (0.032, 0.096, 0.026),
        "L": (0.022, 0.065, 0.028),
    },
    "index-bigru": {
        "A": (0.002, 0.006, 0.003),
        "M-1": (0.002, 0.004, 0.001),
        "M-10": (0.026, 0.052, 0.018),
        "T-50%": (0.011, 0.049, 0.007),
        "L": (0.008, 0.015, 0.005),
    },
    "cos-sin-bigru": {
        "A": (0.0, 0.002, 0.0),
        "M-1": (0.005, 0.010, 0.004),
        "M-10": (0.010, 0.031, 0.007),
        "T-50%": (0.006, 0.046, 0.004),
        "L": (0.0, 0.005, 0.001),
    },
}
"""RMSE by design and pattern for seen, smaller and larger sizes."""


def paper(design: str, pattern: str, sizes: Sizes) -> float:
    return PAPER[design][pattern][list(SIZES).index(sizes)]


def verdict(ours: float, theirs: float) -> Verdict:
    """met: within 0.004 or half of the paper's value, whichever is more. Outside that, which side it is on."""
    if abs(ours - theirs) <= max(0.004, theirs / 2):
        return "met"
    return "better" if ours < theirs else "worse"
