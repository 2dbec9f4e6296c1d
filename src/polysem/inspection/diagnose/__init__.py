"""Is a model sound? Collapse, starved elements, hubs, gaps, calibration, confusions and attention, with verdicts."""

from typing import TYPE_CHECKING

from polysem._deprecated import find_deprecated
from polysem.inspection.diagnose.diagnose import Diagnosis, diagnose, diagnose_gallery
from polysem.inspection.diagnose.verdicts import HealthVerdict

__all__ = ["Diagnosis", "HealthVerdict", "diagnose", "diagnose_gallery"]

if not TYPE_CHECKING:
    __getattr__ = find_deprecated(__name__)
