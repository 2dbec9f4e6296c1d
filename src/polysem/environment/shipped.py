"""Models that come with polysem itself."""

from __future__ import annotations

from pathlib import Path

PHOTO_SMALL = "polysem/photo-small"
"""For photographs: what `polysem index` takes where no model is named."""

SHIPPED = {PHOTO_SMALL: Path(__file__).parent.parent / "models" / "shipped" / "photo-small"}
"""Their folders by name."""
