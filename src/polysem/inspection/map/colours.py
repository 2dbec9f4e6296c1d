"""Colours that colour-blind readers tell apart (after Okabe and Ito), on light and on dark paper."""

from __future__ import annotations

LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#7A4FBF", "#6B6B6B")
DARK = ("#4FA8E0", "#F0803C", "#2FC79B", "#E8A3C8", "#E8B93F", "#9AD6F8", "#B59AF0", "#A8A8A8")
