"""Models: two towers and a similarity, saved and loaded."""

from polysem.models.build import build, join
from polysem.models.folder import ModelFolderError, load
from polysem.models.importing import ImportedCheckpointError, import_checkpoint
from polysem.models.model import Model
from polysem.models.tower import Tower

__all__ = [
    "ImportedCheckpointError",
    "Model",
    "ModelFolderError",
    "Tower",
    "build",
    "import_checkpoint",
    "join",
    "load",
]
