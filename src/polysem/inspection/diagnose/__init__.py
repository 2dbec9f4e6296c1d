"""Is a model sound? Collapse, starved elements, hubs, gaps, calibration, confusions and attention, with verdicts."""

from polysem.inspection.diagnose.report import Diagnosis, diagnose, examine
from polysem.inspection.diagnose.verdicts import Verdict

__all__ = ["Diagnosis", "Verdict", "diagnose", "examine"]
