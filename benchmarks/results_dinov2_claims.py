"""What the papers claim, and what is claimed of sets here, as comparisons of rows over DINOv2 tokens.

Verdicts are corrected for their number by Holm: the k-th surest of m is tested at 0.05 / (m - k + 1), and its interval
is the one of that level, until one of them is not sure; the rest is then not seen either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scipy.stats import t

HELD, CONTRADICTED, UNSEEN, OPEN = "held", "contradicted", "not seen at this scale", "not judged yet"
LEVEL = 0.95


@dataclass(frozen=True)
class Claim:
    """`a` is better than `b` by `metric`. published: the papers' own figures."""

    says: str
    source: str
    a: str
    b: str
    published: str = ""
    metric: str = "rsum"


POSTER, SUPPLEMENT, OURS = "DivE, poster", "DivE, supplement B", "ours"

CLAIMS = (
    Claim("GPO beats the mean: VSE∞ against VSE++", "VSE∞ (CVPR 2021)", "vse-infty", "vse++", "498.1 / 442.3 (F30K)"),
    Claim("… under InfoNCE on both sides", OURS, "vse-infty-infonce", "mean-infonce"),
    Claim(
        "VSE+2AD beats VSE∞: AdOpt as printed",
        "VSE+2AD, Table 1",
        "vse-2ad-printed",
        "vse-infty",
        "503.7 / 498.1 (F30K)",
    ),
    Claim("… AdOpt annealed as its figure shows", "VSE+2AD, Figure C-2", "vse-2ad", "vse-infty"),
    Claim("… against VSE∞ under InfoNCE", OURS, "vse-2ad-printed", "vse-infty-infonce"),
    Claim(
        "AdOpt as printed beats triplets, under AdPool",
        "VSE+2AD, Table 3",
        "vse-2ad-printed",
        "adpool-triplet",
        "426.9 / 417.9 (COCO 5K)",
    ),
    Claim("… and beats InfoNCE", OURS, "vse-2ad-printed", "adpool-infonce"),
    Claim(
        "AdPool beats GPO, under InfoNCE",
        "VSE+2AD, Table 4",
        "adpool-infonce",
        "vse-infty-infonce",
        "426.9 / 422.9 (COCO 5K)",
    ),
    Claim("DivE beats VSE∞", POSTER, "dive", "vse-infty", "430.7 / 421.9 (COCO 5K)"),
    Claim("… both under InfoNCE", OURS, "dive", "vse-infty-infonce"),
    Claim("… of as many bytes", OURS, "dive", "vse-infty-wide"),
    Claim("… of as many FLOPs", SUPPLEMENT + ".1", "dive", "vse-infty-flops"),
    Claim(
        "a wider VSE∞ is worse: 2,048 numbers for 128",
        SUPPLEMENT + ".1",
        "vse-infty-infonce",
        "vse-infty-flops",
        "−10.8 (F30K)",
    ),
    Claim("four slots beat one", OURS, "dive", "dive-one"),
    Claim("smooth-Chamfer beats Chamfer", POSTER, "dive", "dive-chamfer", "500.8 / 499.6 (F30K)"),
    Claim("smooth-Chamfer beats MIL", POSTER, "dive", "dive-mil", "500.8 / 491.7 (F30K)"),
    Claim("smooth-Chamfer beats MP", POSTER, "dive", "dive-mp", "500.8 / 490.5 (F30K)"),
    Claim("slots beat PIE-Net", POSTER, "dive", "dive-pie-net", "500.8 / 483.3 (F30K)"),
    Claim("slots beat a transformer", POSTER, "dive", "dive-transformer", "500.8 / 496.1 (F30K)"),
    Claim("learned slots help", SUPPLEMENT + ".3", "dive", "dive-without-learned-slots", "430.7 / 427.2 (COCO 5K)"),
    Claim("the global feature helps", SUPPLEMENT + ".3", "dive", "dive-without-global", "430.7 / 342.0 (COCO 5K)"),
    Claim("PIE-Net lets sets collapse (log variance)", POSTER, "dive", "dive-pie-net", "−2.13 / −7.35", "log_variance"),
    Claim("elements that begin at the global vector help (γ)", OURS, "dive-gamma", "dive"),
    Claim("PVSE's four vectors beat one", "PVSE (CVPR 2019)", "pvse", "pvse-one"),
    Claim("PCME-MP's four vectors beat one", OURS, "pcme-mp", "pcme-mp-one"),
    Claim("polysem's set beats its K = 1 twin", OURS, "sets", "sets-one"),
    Claim("… and one vector of its bytes", OURS, "sets", "sets-wide"),
    Claim("… by all captions of an image (mAP@R)", OURS, "sets", "sets-one", metric="i2t.map_at_r"),
    Claim("… by nouns (mAP)", OURS, "sets", "sets-one", metric="nouns.map"),
    Claim("the local set beats its K = 1 twin by nouns (mAP)", OURS, "local", "sets-one", metric="nouns.map"),
    Claim("… by phrases (mAP)", OURS, "local", "sets-one", metric="phrases.map"),
    Claim("… by nouns, against one vector of its bytes", OURS, "local", "local-wide", metric="nouns.map"),
    Claim("… by RSUM", OURS, "local", "sets-one"),
    Claim("… and with phrases, by nouns (mAP)", OURS, "local-phrases", "one-phrases", metric="nouns.map"),
    Claim("phrases to learn from help a set, by nouns (mAP)", OURS, "local-phrases", "local", metric="nouns.map"),
    Claim("… and one vector", OURS, "one-phrases", "sets-one", metric="nouns.map"),
    Claim("polysem's set beats DivE's", OURS, "sets", "dive"),
)

Compare = Callable[[str, str, str], Mapping[str, Any] | None]


def judge(claims: tuple[Claim, ...], compare: Compare) -> list[dict[str, Any]]:
    """Claims whose rows are there, each with its difference, p-value, corrected interval and verdict.

    compare: rows a and b and a metric -> mean, error, freedom and seeds of their difference; None where runs are
    missing. With one seed nothing is judged.
    """
    found = [
        {**vars(claim), **apart} for claim in claims if (apart := compare(claim.a, claim.b, claim.metric)) is not None
    ]
    judged = [each for each in found if each["seeds"] > 1 and each["error"] is not None]
    for each in found:
        each |= {"verdict": OPEN, "p": None, "level": LEVEL}
    for each in judged:
        each["p"] = (
            2 * float(t.sf(abs(each["mean"]) / each["error"], each["freedom"]))
            if each["error"]
            else float(each["mean"] == 0)
        )
    sure = True
    for place, each in enumerate(sorted(judged, key=lambda one: one["p"])):
        tail = (1 - LEVEL) / (len(judged) - place)
        half = float(t.ppf(1 - tail / 2, each["freedom"])) * each["error"]
        each |= {"level": 1 - tail, "interval": [each["mean"] - half, each["mean"] + half]}
        sure = sure and each["p"] < tail
        each["verdict"] = UNSEEN if not sure else HELD if each["mean"] > 0 else CONTRADICTED
    return found
