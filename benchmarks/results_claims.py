"""What the papers claim, as comparisons of rows, and the rule that judges them; the defects, likewise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

HELD, FAILED, NOISE, OPEN = "held", "did not hold", "within noise", "not judged yet"
LEVEL = 0.95
DEEP = 5.5
"""Negatives: what rounds to the 4 to 5 of VSE+2AD's figure C-2, or to fewer."""


@dataclass(frozen=True)
class Claim:
    """`a` is better than `b` by `metric`; without b, `a` is at most `limit`. published: the papers' own figures."""

    says: str
    source: str
    a: str
    b: str | None
    published: str = ""
    metric: str = "rsum"
    limit: float | None = None


@dataclass(frozen=True)
class Defect:
    """`wrong` has it and `right` has not."""

    name: str
    where: str
    does: str
    wrong: str
    right: str


POSTER, B3, TABLE_3, TABLE_4 = "DivE, poster", "DivE, supplement B.3", "VSE+2AD, Table 3", "VSE+2AD, Table 4"


def _aggregator(row: str, name: str, rsum: str) -> Claim:
    return Claim(f"AdPool beats {name}", TABLE_4, "vse-2ad", row, f"426.9 / {rsum} (COCO 5K)")


CLAIMS = (
    Claim("GPO beats the mean: VSE∞ against VSE++", "VSE∞ (CVPR 2021)", "vse-infty", "vse++", "498.1 / 442.3 (F30K)"),
    Claim("VSE+2AD beats VSE∞", "VSE+2AD, Table 1", "vse-2ad", "vse-infty", "503.7 / 498.1 (F30K)"),
    Claim("… as printed", "VSE+2AD, Eqs. 3 and 6", "vse-2ad-printed", "vse-infty"),
    Claim("… as released", "VSE+2AD, its code", "vse-2ad-official", "vse-infty"),
    Claim("AdOpt beats triplets, under AdPool", TABLE_3, "vse-2ad", "adpool-triplet", "426.9 / 417.9 (COCO 5K)"),
    Claim("AdPool beats the mean", TABLE_3, "vse-2ad", "pool-mean", "426.9 / 419.1 (COCO 5K)"),
    Claim("AdPool's embedding level helps", TABLE_3, "vse-2ad", "adpool-without-embedding", "426.9 / 423.1 (COCO 5K)"),
    Claim("AdPool's token level helps", TABLE_3, "vse-2ad", "pool-softpool"),
    Claim("a learned balance beats equal weights", "VSE+2AD, Table C-2", "vse-2ad", "adpool-equal", "426.9 / 418.2"),
    _aggregator("pool-gpo", "GPO", "422.9"),
    _aggregator("pool-selfattention", "self-attention", "420.1"),
    _aggregator("pool-softpool", "SoftPool", "419.8"),
    _aggregator("pool-manual", "5-max and mean", "419.3"),
    _aggregator("pool-gcn", "GCN", "419.2"),
    _aggregator("pool-adapool", "AdaPool", "418.3"),
    _aggregator("pool-seq2seq", "Seq2Seq", "415.7"),
    _aggregator("pool-lip", "LIP", "414.8"),
    Claim(
        "AdOpt converges sooner than triplets (mean RSUM of all validations)",
        "VSE+2AD, Figure A.2-1",
        "long-adopt",
        "long-triplet",
        metric="area",
    ),
    Claim("… and ends higher", "VSE+2AD, Figure A.2-1", "long-adopt", "long-triplet"),
    Claim(
        "AdOpt ends with five negatives or fewer: Eq. 6 as printed",
        "VSE+2AD, Figure C-2",
        "adopt-printed",
        None,
        "4–5",
        "negatives",
        DEEP,
    ),
    Claim("… the released formula", "VSE+2AD, Figure C-2", "adopt-official", None, "4–5", "negatives", DEEP),
    Claim("two kinds of features beat one", "VSE+2AD, Table 1 (RG)", "vse-2ad both", "vse-2ad", "534.4 / 527.8"),
    Claim("… and beat the better one of the two", "VSE+2AD, Table 1 (RG)", "vse-2ad both", "vse-2ad-2"),
    Claim("… beyond what two seeds bring", "ours", "vse-2ad both", "vse-2ad twice"),
    Claim("DivE beats VSE∞", POSTER, "dive", "vse-infty", "430.7 / 421.9 (COCO 5K)"),
    Claim("… also of as many bytes", "DivE, supplement B.1 (of as many FLOPs)", "dive", "vse-infty-wide"),
    Claim("a wider VSE∞ is worse", "DivE, supplement B.1", "vse-infty", "vse-infty-wide", "−10.8 (F30K)"),
    Claim("four slots beat one", "ours", "dive", "dive-one"),
    Claim("smooth-Chamfer beats Chamfer", POSTER, "dive", "dive-chamfer", "500.8 / 499.6 (F30K)"),
    Claim("smooth-Chamfer beats MIL", POSTER, "dive", "dive-mil", "500.8 / 491.7 (F30K)"),
    Claim("smooth-Chamfer beats MP", POSTER, "dive", "dive-mp", "500.8 / 490.5 (F30K)"),
    Claim("slots beat PIE-Net", POSTER, "dive", "dive-pie-net", "500.8 / 483.3 (F30K)"),
    Claim("slots beat a transformer", POSTER, "dive", "dive-transformer", "500.8 / 496.1 (F30K)"),
    Claim(
        "MP spreads sets less (log variance; a collapse on the poster)",
        POSTER,
        "dive",
        "dive-mp",
        "−2.13 / −5.27",
        "log_variance",
    ),
    Claim("PIE-Net lets sets collapse (log variance)", POSTER, "dive", "dive-pie-net", "−2.13 / −7.35", "log_variance"),
    Claim(
        "a transformer spreads them less (log variance)",
        POSTER,
        "dive",
        "dive-transformer",
        "−2.13 / −2.27",
        "log_variance",
    ),
    Claim("learned slots help", B3, "dive", "dive-without-learned-slots", "430.7 / 427.2 (COCO 5K)"),
    Claim("the residual update helps", B3, "dive", "dive-without-residual-update", "430.7 / 423.3 (COCO 5K)"),
    Claim("the global feature helps", B3, "dive", "dive-without-global", "430.7 / 342.0 (COCO 5K)"),
    Claim("without all three it fails", B3, "dive", "dive-without-any", "430.7 / 0.74 (COCO 5K)"),
)

DEFECTS = (
    Defect(
        "Padding leaks into the slots",
        "DivE, set prediction module",
        "A padded token is shared out evenly among the slots and read like any other; positions of words are relative "
        "to the padded length.",
        "dive-official",
        "dive",
    ),
    Defect(
        "Padding takes weight in AdPool",
        "VSE+2AD, `AP`",
        "Padded places keep the logit ReLU(bias) in the softmax over tokens, each taking exp(0) of its mass.",
        "adpool-official",
        "vse-2ad",
    ),
    Defect(
        "A decay that compounds",
        "VSE+2AD, training loop",
        "`lr *= 0.1 ** (epoch // 15)` is applied anew in every epoch, where the paper lowers the rate once: after "
        "the second such epoch nothing is learned.",
        "decay-compounding",
        "decay-once",
    ),
    Defect(
        "AdOpt's Eq. 6 does not anneal",
        "VSE+2AD, as printed",
        "K = ⌊B cos((align + uniform) π/4)⌋ keeps most of the negatives for ever; and the positive is missing in the "
        "denominator. Right: K falls to 4 as matches come to outrank negatives.",
        "adopt-printed",
        "vse-2ad",
    ),
    Defect(
        "AdOpt's released formula",
        "VSE+2AD, `ADCTO`",
        "Another formula, which falls to one negative early; a match can be drawn as its own negative, since its "
        "score counts as 0 there; a margin that no paper mentions.",
        "adopt-official",
        "vse-2ad",
    ),
    Defect(
        "AdPool's and AdOpt's together",
        "VSE+2AD, as released",
        "The second and the fifth of this list.",
        "vse-2ad-official",
        "vse-2ad",
    ),
    Defect(
        "Padding at −10,000 in GPO",
        "VSE∞, `GPO`",
        "Padding is sorted to the end by a large negative number; features below it would sink under the padding. "
        "Here as a control: no feature is that low, so that nothing changes but the last bits of sums; whatever the "
        "difference is, training made it of these.",
        "gpo-official",
        "vse-infty",
    ),
)


def verdict(interval: tuple[float, float] | None, seeds: int, limit: float = 0.0) -> str:
    """The rule: held if the whole interval is above the limit, did not hold if it is below, else within noise."""
    if interval is None or seeds < 2:
        return OPEN
    low, high = interval
    return HELD if low > limit else FAILED if high < limit else NOISE


def judge(
    claims: tuple[Claim, ...], compare: Callable[[str, str | None, str], Mapping[str, Any] | None]
) -> list[dict[str, Any]]:
    """compare: rows a and b and a metric -> mean, interval and seeds of their difference; None where runs are missing.
    Claims of rows that are not there are left out."""
    found = []
    for claim in claims:
        difference = compare(claim.a, claim.b, claim.metric)
        if difference is None:
            continue
        interval = difference["interval"]
        if claim.limit is not None and interval is not None:  # at most: the other side of the limit
            judged = verdict((-interval[1], -interval[0]), difference["seeds"], -claim.limit)
        else:
            judged = verdict(interval, difference["seeds"])
        found.append({**vars(claim), **difference, "verdict": judged})
    return found
