"""People's judgements of pairs that nobody had paired: graded relevance, and recall without the false negatives.

Hodosh et al., Framing Image Description as a Ranking Task (JAIR 2013), on Flickr8k. Its files ExpertAnnotations.txt and
CrowdFlowerAnnotations.txt have lines of an image, a caption (`image.jpg#number`) and three numbers, separated by tabs.
Experts: three marks from 1 (does not describe the image) to 4 (describes it). Crowd: the share of those who say yes (it
describes the image, perhaps with minor mistakes), and how many said yes and no.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polysem.data.collection import Collection
from polysem.errors import InputError
from polysem.evaluation import metrics
from polysem.evaluation.metrics import Values
from polysem.evaluation.protocols.base import EvaluationTask, Protocol, ProtocolResult, per_query_metrics, register
from polysem.evaluation.ranking import Relevance
from polysem.evaluation.result import PerQuery
from polysem.evaluation.score_matrix import Ints
from polysem.progress import section

INSIDE = 0.5
"""The share of judged pairs that must be in the gallery: with fewer it is the wrong split or the wrong data set."""
FILES = "ExpertAnnotations.txt or CrowdFlowerAnnotations.txt of Flickr8k"


@register
@dataclass(frozen=True)
class JudgementsProtocol(Protocol):
    """NDCG of judged answers, and recall with judged positives.

    NDCG is that of each query's judged answers, ordered by score; the gain is the experts' mean mark minus 1, or the
    share of yes. Recall is over the whole gallery, where pairs judged right (a mean mark of 3 or more, or a majority of
    yes) count like the original pairs; the uncorrected one is given beside it. annotations: the file of judgements.
    """

    name: str = "judgements"
    about: str = "Flickr8k with judgements of experts or the crowd: NDCG, and recall without false negatives"
    split: str | None = "test"
    annotations: str | Path | None = None

    options = ("annotations",)

    def compute(self, task: EvaluationTask) -> ProtocolResult:
        if self.annotations is None:
            raise InputError(f"Protocol {self.name} needs a file of judgements: --option annotations=FILE, {FILES}.")
        judged = read_judgements(Path(self.annotations).expanduser())
        owners, shape = task.gallery.caption_items, (len(task.gallery.captions), len(task.gallery))
        images, texts, inside = _positions(judged, task.gallery, task.split)
        right = inside & judged.right
        paired = Relevance.from_pairs(np.arange(len(owners)), owners, shape)
        both = np.concatenate([np.arange(len(owners)), texts[right]]), np.concatenate([owners, images[right]])
        corrected = Relevance.from_pairs(*both, shape=shape)
        scores = task.directed_scores()
        halves = [section(task.progress, 1000 * half, 1000, 2000) for half in (0, 1)]
        rankings = replace(task, progress=halves[0]).rank({"i2t": corrected.transpose(), "t2i": corrected}, scores)
        as_paired = {"i2t": paired.transpose(), "t2i": paired}
        before = metrics.bidirectional_metrics(replace(task, keep=0, progress=halves[1]).rank(as_paired, scores))
        result, per_query = metrics.bidirectional_metrics(rankings), per_query_metrics([rankings], owners)
        for way, rows, columns in (("i2t", images[inside], texts[inside]), ("t2i", texts[inside], images[inside])):
            queries, values = ndcg(rows, judged.gains[inside], scores[way].pairs(rows, columns))
            mean = float(values.mean()) if len(values) else float("nan")
            result[f"judged_{way}"] = {"ndcg": mean, "queries": len(queries)}
            per_query[f"judged_{way}"] = PerQuery({"ndcg": values}, queries if way == "i2t" else owners[queries])
        added = len(corrected.positives) - len(paired.positives)
        remarks = [f"{int(inside.sum())} pairs judged by {judged.who}, {added} of them new positives"]
        if not inside.all():
            remarks.append(f"{int((~inside).sum())} judged pairs outside the gallery left out")
        stamp = task.stamp(self.name, measure="hit rate, judged positives added", remarks=tuple(remarks))
        return ProtocolResult(stamp, {**result, "uncorrected": before}, per_query, rankings)


def ndcg(queries: Ints, gains: Values, scores: Values) -> tuple[Ints, Values]:
    """The queries whose judged answers differ in gain, and the NDCG of each, in per cent. All are arrays of P pairs.

    Over the judged answers alone, all of them: sum of gain / log2(rank + 1), as a share of the largest possible. Of
    equal scores the lower gain ranks first. Where all gains are equal, any order is right and nothing is measured.
    """
    order = np.lexsort((gains, -scores, queries))
    queries, gains = queries[order], gains[order]
    query_ids, values = [], []
    for pairs in np.split(np.arange(len(queries)), np.flatnonzero(np.diff(queries)) + 1):
        own = gains[pairs]
        if len(own) and own.min() < own.max():
            discount = metrics.discounts(len(own))
            query_ids.append(queries[pairs[0]])
            values.append(100.0 * (own / discount).sum() / (np.sort(own)[::-1] / discount).sum())
    return np.array(query_ids, dtype=np.int64), np.array(values, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class PairJudgements:
    """Judgements of P pairs by "experts" or the "crowd": how well a caption, given by its image and number, describes
    an image, from 0 on, and whether it counts as right."""

    who: str
    images: tuple[str, ...]
    captions: tuple[tuple[str, int], ...]
    gains: npt.NDArray[np.float64]
    right: npt.NDArray[np.bool_]


def read_judgements(path: Path) -> PairJudgements:
    """The numbers tell the two files apart: no three marks are a share and its two counts."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}). Annotations are {FILES}.") from None
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                image, caption, *texts = line.split("\t")
                owner, nth = caption.rsplit("#", 1)
                first, second, third = map(float, texts)
                rows.append((image, (owner, int(nth)), (first, second, third)))
            except ValueError:
                raise InputError(
                    f"{path} line {number}: expected an image, a caption such as image.jpg#2 and three numbers, "
                    f"separated by tabs; got {line[:80]!r}. Annotations are {FILES}."
                ) from None
    if not rows:
        raise InputError(f"{path} holds no judgements. Annotations are {FILES}.")
    images, captions, numbers = zip(*rows, strict=True)
    marks = np.array(numbers)
    share, yes, no = marks.T
    if (np.abs(share * (yes + no) - yes) < 0.01 * (yes + no)).all() and (yes + no > 0).all():
        return PairJudgements("crowd", images, captions, share, share > 0.5)
    if ((marks >= 1) & (marks <= 4)).all():
        # Almost right, with minor mistakes: a mark of 3, and what the crowd was told to call a yes.
        return PairJudgements("experts", images, captions, marks.mean(1) - 1.0, marks.mean(1) >= 3.0)
    raise InputError(
        f"{path}: the numbers are neither three marks from 1 to 4 nor a share with its counts of yes and no. "
        f"Annotations are {FILES}."
    )


def _positions(judged: PairJudgements, gallery: Collection, split: str) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Positions of each pair's image and caption in the gallery, -1 if not there, and whether both are."""
    position = {Path(name).name: i for i, item in enumerate(gallery) for name in (item.media.name, item.id)}
    counts = np.array([len(item.captions) for item in gallery])
    starts = np.cumsum(counts) - counts
    images = np.array([position.get(name, -1) for name in judged.images])
    owners = np.array([position.get(name, -1) for name, _ in judged.captions])
    numbers = np.array([number for _, number in judged.captions])
    there = (owners >= 0) & (numbers >= 0) & (numbers < counts[owners])
    texts = np.where(there, starts[owners] + numbers, -1)
    inside = (images >= 0) & there
    if inside.mean() < INSIDE:
        lost = int(np.flatnonzero(~inside)[0])
        name, number = judged.captions[lost]
        raise InputError(
            f"{int((~inside).sum())} of {len(inside)} judged pairs are not in the gallery of {gallery.name} {split}, "
            f"e.g. {judged.images[lost]} with {name}#{number}; its first item is {gallery[0].id!r}. Measure the split "
            "that holds them (Flickr8k's: --split test), with items named as Flickr8k names its files."
        )
    return images, texts, inside
