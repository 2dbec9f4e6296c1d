"""Is a model sound? Collapse, starved elements, hubs, gaps, calibration, confusions and attention, with verdicts."""

from polysem.inspection.diagnose.diagnose import Diagnosis, diagnose, diagnose_gallery
from polysem.inspection.diagnose.report import HealthVerdict

__all__ = ["Diagnosis", "HealthVerdict", "diagnose", "diagnose_gallery"]
