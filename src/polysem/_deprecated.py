"""Former import paths of the public API: they work for one release, with a DeprecationWarning.

A name that moved out of a package that still exists is found by the package's `__getattr__`; a module that is gone is
found by a finder at the end of `sys.meta_path`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

REMOVED_IN = "0.3"

# "old.module:name": "new.module:name"
NAMES: dict[str, str] = {
    "polysem.data.clips.make:make_emoji_clips": "polysem.synthetic.clips.make:make_emoji_clips",
    "polysem.data.emoji.make:make_emoji_scenes": "polysem.synthetic.scenes.make:make_emoji_scenes",
    "polysem.data.readers:read_coco": "polysem.data.readers.coco:read_coco",
    "polysem.data.readers:read_folder": "polysem.data.readers.folder:read_folder",
    "polysem.data.readers:read_karpathy": "polysem.data.readers.karpathy:read_karpathy",
    "polysem.data.readers:read_mirflickr": "polysem.data.readers.flickr_tags:read_mirflickr",
    "polysem.data.readers:read_nus_wide": "polysem.data.readers.flickr_tags:read_nus_wide",
    "polysem.data.readers:read_precomp": "polysem.data.readers.precomp:read_precomp",
    "polysem.data.readers:read_video": "polysem.data.readers.video:read_video",
    "polysem.data.readers:read_video_folder": "polysem.data.readers.video:read_video_folder",
    "polysem.data.store:Entry": "polysem.data.store:StoreEntry",
    "polysem.data.store:Manifest": "polysem.data.store:FeatureManifest",
    "polysem.demo:Found": "polysem.demo:ExampleSearch",
    "polysem.environment:Finding": "polysem.environment:EnvironmentFinding",
    "polysem.evaluation.costs.cost:cost": "polysem.evaluation.cost:cost",
    "polysem.evaluation.costs.untrained:find_model": "polysem.evaluation.cost:find_model",
    "polysem.evaluation.protocols:Cxc": "polysem.evaluation.protocols.cxc:CxcProtocol",
    "polysem.evaluation.protocols:EccvCaption": "polysem.evaluation.protocols.eccv:EccvCaptionProtocol",
    "polysem.evaluation.protocols:Judged": "polysem.evaluation.protocols.judgements:JudgementsProtocol",
    "polysem.evaluation.protocols:Labels": "polysem.evaluation.protocols.labels:LabelsProtocol",
    "polysem.evaluation.protocols:Measured": "polysem.evaluation.protocols:ProtocolResult",
    "polysem.evaluation.protocols:Pairs": "polysem.evaluation.protocols.pairs:PairsProtocol",
    "polysem.evaluation.protocols:Subject": "polysem.evaluation.protocols:ModelScores",
    "polysem.evaluation.protocols:Video": "polysem.evaluation.protocols.video:VideoProtocol",
    "polysem.evaluation:retrieval": "polysem.evaluation:compute_recalls",
    "polysem.inspection.contributions:contributions": "polysem.inspection:decompose_score",
    "polysem.inspection.diagnose.report:diagnose": "polysem.inspection.diagnose.diagnose:diagnose",
    "polysem.inspection.diagnose:Verdict": "polysem.inspection.diagnose:HealthVerdict",
    "polysem.inspection.diagnose:examine": "polysem.inspection.diagnose:diagnose_gallery",
    "polysem.inspection.explain.making:explain": "polysem.inspection.explain.explain:explain",
    "polysem.inspection.explain:Near": "polysem.inspection.explain:NearestCaption",
    "polysem.inspection.explain:Winning": "polysem.inspection.explain:WinningDimensions",
    "polysem.inspection.map.draw:map_space": "polysem.inspection.map.drawing:map_space",
    "polysem.inspection.map:Points": "polysem.inspection.map:MapPoints",
    "polysem.inspection.map:points_of": "polysem.inspection.map:make_points",
    "polysem.inspection.map:write": "polysem.inspection.map:write_map",
    "polysem.inspection.places:places": "polysem.inspection:locate_tokens",
    "polysem.inspection:Places": "polysem.inspection:TokenBoxes",
    "polysem.inspection:Points": "polysem.inspection:MapPoints",
    "polysem.inspection:Verdict": "polysem.inspection:HealthVerdict",
    "polysem.inspection:contributions": "polysem.inspection:decompose_score",
    "polysem.inspection:places": "polysem.inspection:locate_tokens",
    "polysem.inspection:regions": "polysem.inspection:locate_regions",
    "polysem.inspection:stored_places": "polysem.inspection:locate_stored_tokens",
    "polysem.objectives:Labelled": "polysem.objectives:LabelledBatch",
    "polysem.objectives:Labels": "polysem.objectives:SemanticSharingLoss",
    "polysem.search.engine:Hits": "polysem.search.engine:TopHits",
    "polysem.search.engine:Plan": "polysem.search.engine:SketchPlan",
    "polysem.search.engine:search_many": "polysem.search.engine:search_engines",
    "polysem.search.store:View": "polysem.search.store:SegmentView",
    "polysem.search:Result": "polysem.search:SearchResult",
    "polysem.search:Results": "polysem.search:SearchResults",
    "polysem.sets:Chorus": "polysem.sets:Ensemble",
    "polysem.sets:Classes": "polysem.sets:SemanticSharing",
    "polysem.sets:Common": "polysem.sets:CommonSpace",
    "polysem.sets:Readings": "polysem.sets:AttentionPooling",
    "polysem.sets:Summary": "polysem.sets:GlobalFeature",
    "polysem.sets:Transformer": "polysem.sets:TransformerPredictor",
    "polysem.training.sweep:Plan": "polysem.training.sweep:SweepPlan",
    "polysem.training.sweep:Row": "polysem.training.sweep:SweepRow",
    "polysem.training.sweep:Run": "polysem.training.sweep:SweepRun",
    "polysem.training.sweep:Watcher": "polysem.training.sweep:SweepObserver",
    "polysem.training:Result": "polysem.training:TrainingResult",
    "polysem:masked": "polysem.masked_ops:",
}


def find_deprecated(module: str) -> Callable[[str], Any]:
    """A module's `__getattr__` that finds the names which have left it.

    Args:
        module: `__name__` of the module.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        new = NAMES.get(f"{module}:{name}")
        if new is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        target, _, attribute = new.partition(":")
        warnings.warn(
            f"{module}.{name} is now {target}{f'.{attribute}' if attribute else ''}; "
            f"the old name goes in polysem {REMOVED_IN}.",
            DeprecationWarning,
            stacklevel=2,
        )
        found = import_module(target)
        return getattr(found, attribute) if attribute else found

    return __getattr__


class _RemovedModuleFinder(MetaPathFinder, Loader):
    """Finds modules that are gone, where a public name was in them."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith("polysem.") or not any(old.startswith((f"{name}:", f"{name}.")) for old in NAMES):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__getattr__"] = find_deprecated(module.__name__)


def install() -> None:
    """Add the finder of removed modules, once."""
    if not any(isinstance(finder, _RemovedModuleFinder) for finder in sys.meta_path):
        sys.meta_path.append(_RemovedModuleFinder())
