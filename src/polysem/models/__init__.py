"""Models: two towers wired together, saved and loaded."""

from polysem.models.folder import ModelFolderError, load
from polysem.models.model import Model
from polysem.models.tower import Tower
from polysem.models.wiring import build

__all__ = ["Model", "ModelFolderError", "Tower", "build", "load"]
