"""ECCV Caption: COCO's test split with the right answers that its pairs leave out, as people found them.

Chun et al., ECCV Caption (ECCV 2022). 1,261 images and 1,332 captions are queries, over all 25,000 captions and 5,000
images. Two of the annotated captions are not among the 25,000: they count as never found.

Here too: COCO's ids of a gallery's images and captions, and the annotation files of the package `eccv-caption`. The
package itself is not imported: it warns about what it misses, and only its data files are wanted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polysem.data.collection import Collection, Item
from polysem.environment.packages import install_command
from polysem.errors import InputError
from polysem.evaluation.protocols.base import EvaluationTask, Protocol, ProtocolResult, per_query_metrics, register
from polysem.evaluation.ranking import Ranking, Relevance
from polysem.evaluation.score_matrix import Ints

METRICS = ("map_at_r", "r_precision", "r1")
BY_POSITION = "images and captions matched by position, in Karpathy's test order"
BY_CAPTION_ORDER = "captions matched by their order within the image"

Positives = Mapping[int, Sequence[int]]
"""Ids of right answers by the query's id."""


@register
@dataclass(frozen=True)
class EccvCaptionProtocol(Protocol):
    """annotations: the folder of the package's data files, where the package is not installed."""

    name: str = "eccv-caption"
    about: str = "COCO test with all right answers that people found: mAP@R, R-Precision, R@1"
    split: str | None = "test"
    annotations: str | Path | None = None

    options = ("annotations",)

    def gallery(self, collection: Collection) -> Collection:
        return match_test_split(collection, EccvCaptionFiles.find(self.annotations, self.name), self.name).gallery

    def compute(self, task: EvaluationTask) -> ProtocolResult:
        files = EccvCaptionFiles.find(self.annotations, self.name)
        ids = match_test_split(task.gallery, files, self.name)
        annotated = files.read_positives("eccv")
        matched = ids.match_positives(annotated, self.name)
        rankings = task.rank({way: relevance for way, (relevance, _) in matched.items()}, task.directed_scores())
        complete = {way: add_missing_positives(rankings[way], missing) for way, (_, missing) in matched.items()}
        per_query = per_query_metrics([complete], task.gallery.caption_items, METRICS)
        result: dict[str, Any] = {}
        for way, positives in annotated.items():
            result[way] = {name: float(np.mean(values)) for name, values in per_query[way].values.items()}
            result[way] |= {"queries": len(positives), "positives": sum(len(set(each)) for each in positives.values())}
            if outside := int(matched[way][1].sum()):
                result[way]["positives_outside_gallery"] = outside
        stamp = task.stamp(self.name, measure="annotated positives", remarks=ids.remarks)
        return ProtocolResult(stamp, result, per_query, rankings)


def add_missing_positives(ranking: Ranking, missing: Ints) -> Ranking:
    """Count right answers that are not in the gallery as never found. missing: (Q,) how many each query has.

    They make R, the number of right answers, larger: so ECCV Caption's authors count.
    """
    if not missing.any():
        return ranking
    relevance, size = ranking.relevance, ranking.relevance.gallery
    nth = np.arange(missing.sum()) - np.repeat(np.cumsum(missing) - missing, missing)
    queries = np.concatenate([relevance.queries, np.repeat(np.arange(len(missing)), missing)])
    positives = np.concatenate([relevance.positives, size + nth])
    ranks = np.concatenate([ranking.ranks, size + nth])
    larger = Relevance.from_pairs(queries, positives, (len(relevance), size + int(missing.max())))
    return Ranking(larger, ranks[np.lexsort((ranks, queries))], ranking.top)


@dataclass(frozen=True, eq=False)
class CocoIds:
    """images: (I,) of the gallery's items; captions: (T,) of its captions. remarks: what had to be assumed."""

    gallery: Collection
    images: Ints
    captions: Ints
    remarks: tuple[str, ...] = ()

    def match_positives(self, positives: Mapping[str, Positives], who: str) -> dict[str, tuple[Relevance, Ints]]:
        """Right answers by position, and (Q,) how many of each query's are not in the gallery, by direction. who: the
        protocol, for messages."""
        sides = {"i": self.images, "t": self.captions}
        return {way: relevance_from_ids(each, sides[way[0]], sides[way[2]], who) for way, each in positives.items()}


def relevance_from_ids(positives: Positives, queries: Ints, gallery: Ints, who: str) -> tuple[Relevance, Ints]:
    """The same of one direction. queries, gallery: ids, by position."""
    row, column = ({number: i for i, number in enumerate(ids.tolist())} for ids in (queries, gallery))
    unknown = [query for query in positives if query not in row]
    if unknown:
        raise InputError(
            f"Protocol {who}: {len(unknown)} of its {len(positives)} annotated queries are not in the gallery, e.g. "
            f"{unknown[0]}. Measure the split that holds them."
        )
    rows, columns = [], []
    missing = np.zeros(len(queries), dtype=np.int64)
    for query, answers in positives.items():
        for answer in set(answers):
            if answer in column:
                rows.append(row[query])
                columns.append(column[answer])
            else:
                missing[row[query]] += 1
    return Relevance.from_pairs(rows, columns, (len(queries), len(gallery))), missing


def match_test_split(collection: Collection, files: EccvCaptionFiles, who: str) -> CocoIds:
    """The test images among the collection's, with the five captions of each that count.

    By the items' ids, if they are COCO's. Features of the whole test split that do not say which image is which are
    taken to be in Karpathy's order, as everybody's are. Without caption ids, an image's first five are its five, lowest
    id first: so they are in Karpathy's file.
    """
    images, five = files.read_test_split()
    items = [item for item in collection if item.captions]
    position = {number: i for i, number in enumerate(images.tolist())}
    positions = [position.get(number, -1) if (number := image_id(item)) is not None else -1 for item in items]
    present = set(positions) - {-1}
    remarks: tuple[str, ...] = ()
    if len(present) < len(images):
        if len(items) != len(images) or any(_id_in_file_name(item) for item in items):
            missing = next((number for number, i in position.items() if i not in present), None)
            raise InputError(
                f"Protocol {who} is defined on the {len(images)} images of COCO's test split (Karpathy's); "
                f"{len(present)} of them are among the {len(items)} of {collection.name} here, not image {missing} "
                f"(first: {items[0].id if items else None!r}). Check --split, and that ids are COCO's names or numbers."
            )
        positions, remarks = list(range(len(items))), (BY_POSITION,)
    kept: list[Item] = []
    captions: list[int] = []
    for item, at in zip(items, positions, strict=True):
        if at >= 0:
            kept.append(_select_captions(item, five[at], who))
            captions += [int(caption) for caption in kept[-1].caption_ids] or five[at].tolist()
    if not remarks and any(not item.caption_ids for item in kept):
        remarks = (BY_CAPTION_ORDER,)
    gallery = Collection(collection.name, collection.kind, kept, collection.skipped)
    return CocoIds(gallery, images[[at for at in positions if at >= 0]], np.array(captions, dtype=np.int64), remarks)


def read_own_ids(collection: Collection) -> CocoIds | None:
    """By the ids of the items and of their captions, five each; None where some have none."""
    items = [item for item in collection if item.captions]
    ids = [number for item in items if (number := image_id(item)) is not None]
    named = all(item.caption_ids and all(name.isdecimal() for name in item.caption_ids) for item in items)
    if not items or len(ids) < len(items) or not named:
        return None
    gallery = Collection(collection.name, collection.kind, items, collection.skipped).with_captions(5, "COCO")
    captions = [int(name) for item in gallery for name in item.caption_ids]
    return CocoIds(gallery, np.array(ids, dtype=np.int64), np.array(captions, dtype=np.int64))


def image_id(item: Item) -> int | None:
    """COCO_val2014_000000391895.jpg, 000000391895 and 391895 -> 391895."""
    return _id_in_file_name(item) or (int(item.id) if item.id.isdecimal() else None)


def parse_file_name(name: str) -> int | None:
    """The id in the name of one of COCO's files: twelve digits at its end."""
    match = re.search(r"(?<!\d)\d{12}$", Path(name).stem)
    return int(match[0]) if match else None


def _id_in_file_name(item: Item) -> int | None:
    return parse_file_name(item.id) or parse_file_name(item.media.name)


def _select_captions(item: Item, ids: Ints, who: str) -> Item:
    if not item.caption_ids:
        if len(item.captions) < len(ids):
            raise InputError(f"{item.id!r} has {len(item.captions)} captions; protocol {who} takes {len(ids)} of each.")
        return replace(item, captions=item.captions[: len(ids)])
    wanted = {str(number) for number in ids.tolist()}
    kept = [pair for pair in zip(item.captions, item.caption_ids, strict=True) if pair[1] in wanted]
    if len(kept) != len(wanted):
        raise InputError(
            f"Protocol {who} takes the captions {', '.join(sorted(wanted))} of {item.id!r}; here it has "
            f"{', '.join(item.caption_ids)}. Caption ids are COCO's annotation ids, as in dataset_coco.json."
        )
    captions, caption_ids = zip(*kept, strict=True)
    return replace(item, captions=captions, caption_ids=caption_ids)


@dataclass(frozen=True)
class EccvCaptionFiles:
    """The data files of the package `eccv-caption`, in a folder: COCO's test captions in order, ECCV Caption's and
    CxC's positives."""

    folder: Path

    @classmethod
    def find(cls, folder: str | Path | None, who: str, why: str = "reads its annotation from") -> EccvCaptionFiles:
        """folder: where the files are, if the package is not installed. who, why: the protocol that needs them."""
        if folder is not None:
            return cls(Path(folder).expanduser())
        spec = find_spec("eccv_caption")
        if spec is None or not spec.submodule_search_locations:
            raise InputError(
                f"Protocol {who} {why} the package eccv-caption, which is not installed. Install it: "
                f"{install_command('eccv')}"
            )
        return cls(Path(spec.submodule_search_locations[0]) / "data")

    def read_test_split(self) -> tuple[Ints, Ints]:
        """(I,) the 5,000 test images in Karpathy's order, and (I, 5) their captions that count, ascending."""
        path, owner = self.folder / "coco_test_ids.npy", self._read("original_caption_to_image")
        try:
            captions = np.load(path, allow_pickle=False).astype(np.int64)
            images = np.array([owner[caption][0] for caption in captions.tolist()]).reshape(-1, 5)
        except (OSError, KeyError, IndexError, ValueError) as error:
            raise self._unexpected(path, error) from None
        if (images != images[:, :1]).any():
            raise self._unexpected(path, "captions of one image are not side by side")
        return images[:, 0], captions.reshape(-1, 5)

    def read_positives(self, name: Literal["eccv", "cxc"]) -> dict[str, Positives]:
        """Right answers that annotators found, by COCO's ids, of "i2t" and "t2i"."""
        return {"i2t": self._read(f"{name}_image_to_caption"), "t2i": self._read(f"{name}_caption_to_image")}

    def _read(self, name: str) -> Positives:
        path = self.folder / f"{name}.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return {int(query): [int(answer) for answer in answers] for query, answers in content.items()}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise self._unexpected(path, error) from None

    def _unexpected(self, path: Path, why: object) -> InputError:
        return InputError(
            f"{path} is not the file of the package eccv-caption that was expected ({why}). Install the package again: "
            "pip install --force-reinstall eccv-caption. Or name a folder of its files: --option annotations=FOLDER."
        )
