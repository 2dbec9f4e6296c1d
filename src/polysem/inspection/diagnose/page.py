"""The report as one page that needs nothing but itself."""

from __future__ import annotations

import math
import re
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from polysem.inspection.diagnose import charts, thumbnails
from polysem.inspection.diagnose.charts import Frame
from polysem.inspection.diagnose.confusions import KINDS, Confusions
from polysem.inspection.diagnose.verdicts import COLLAPSED, Verdict

if TYPE_CHECKING:
    from polysem.inspection.diagnose.failures import Failure
    from polysem.inspection.diagnose.report import Diagnosis

WAYS = {"i2t": "Image → text", "t2i": "Text → image"}
SIDES = {"image": "Images", "text": "Texts"}
_SIGNS = {"bad": "✕", "watch": "!", "good": "✓"}
_WORDS = {"bad": "problem", "watch": "to watch", "good": "good"}
# Something to copy into a command, for which a line break would be a pity.
_COMMAND = re.compile(r"(--set [\w.]+=(?:'[^']*'|[^\s',;:)]*[^\s',;:).])|`[^`]+`)")


def html(found: Diagnosis) -> str:
    style = resources.files("polysem.inspection.diagnose").joinpath("page.css").read_text(encoding="utf-8")
    gallery = found.gallery
    title = f"{gallery.name} on {gallery.items.name}"
    parts = [
        f"<header><h1>{escape(title)}</h1><p class='faint'>{escape(gallery.described)}; similarity "
        f"{escape(str(gallery.model.similarity.config['name']))}, sets of {gallery.model.set_sizes[0]} and "
        f"{gallery.model.set_sizes[1]}</p><p class='headline'>{escape(found.headline)}</p></header>",
        f"<section><h2>Verdicts</h2>{''.join(map(_verdict, found.verdicts))}</section>",
        _retrieval(found),
        _section("Sets: do their elements differ?", _variances(found)),
        _section("Elements: who does the work?", _usages(found)),
        _section("Pointing game: does attention land on what is named?", _pointing(found)),
        _section("Space", _space(found)),
        _section("Hubs: is every answer returned now and then?", _hubs(found)),
        _section("Scores: can they be believed?", _belief(found)),
        _section("Confusions of labels", _confusions(found)),
        _section("Failures, worst first", _failures(found)),
    ]
    if found.left_out:
        entries = "".join(f"<li>{escape(each)}</li>" for each in found.left_out)
        parts.append(f"<section><h2>Left out</h2><ul>{entries}</ul></section>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Diagnosis of {escape(title)}</title><style>{style}</style></head>\n"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""


def _verdict(verdict: Verdict) -> str:
    advice = _COMMAND.sub(r"<code>\1</code>", escape(verdict.advice, quote=False))
    todo = f"<p><b>What to do:</b> {advice}</p>" if advice else ""
    sign = f'<span class="sign" title="{_WORDS[verdict.level]}">{_SIGNS[verdict.level]}</span>'
    return (
        f'<div class="verdict {verdict.level}">{sign}<div><h3>{escape(verdict.about)} '
        f"<small>{_WORDS[verdict.level]}</small></h3><p>{escape(verdict.says, quote=False)}</p>{todo}</div></div>"
    )


def _retrieval(found: Diagnosis) -> str:
    rows = "".join(
        f"<tr><td>{WAYS[way]}</td>"
        + "".join(f"<td>{found.retrieval[way][name]:.1f}</td>" for name in ("r1", "r5", "r10"))
        + f"<td>{found.retrieval[way]['median_rank']:.0f}</td><td>{found.retrieval[way]['queries']:,}</td></tr>"
        for way in WAYS
    )
    head = "<tr><th></th><th>R@1</th><th>R@5</th><th>R@10</th><th>median rank</th><th>queries</th></tr>"
    return _section("Retrieval", f"<table>{head}{rows}</table>")


def _variances(found: Diagnosis) -> str:
    if not found.spreads:
        return ""
    low = min(each.edges[0] for each in found.spreads.values())
    high = max(0.0, *(each.edges[-1] for each in found.spreads.values()))
    span = (math.floor(min(low, math.log(COLLAPSED)) - 0.5), math.ceil(high))
    figures = []
    for place, (side, each) in enumerate(found.spreads.items()):
        frame = Frame(
            f"{SIDES[side]}: spread within sets", "ln circular variance of a set", "sets", span,
            (0, 1.12 * max(each.counts)),
        )  # fmt: skip
        marks = charts.bars(frame, each.edges, each.counts, f"c{place}")
        marks += charts.upright(frame, math.log(COLLAPSED), "collapsed", end=True)
        said = f"Mean {each.log_variance:.2f}; below {math.log(COLLAPSED):.1f} the elements of a set all but agree."
        figures.append(
            charts.figure(frame, marks, said, note=f"Mean: ln {each.variance:.3g} = {each.log_variance:.2f}")
        )
    note = (
        "<p class='faint'>0 would be elements that point everywhere; further left they agree more. DivE's poster has "
        "−2.1 for sets that hold several meanings, −5.3 and −7.4 for sets that collapsed.</p>"
    )
    return f"<div class='figures'>{''.join(figures)}</div>{note}"


def _usages(found: Diagnosis) -> str:
    figures = []
    for side, each in found.usages.items():
        rows = list(zip(each.supervision, each.wins, each.constancy, strict=True))
        names = [f"element {number + 1}" for number in range(len(rows))]
        frame = Frame(SIDES[side], "", "share", (0, len(rows)), (0, 1.08), percent=True)
        marks = charts.groups(frame, rows, names, ("c0", "c1", "c2"))
        marks += charts.level(frame, 1 / len(rows), "")
        said = "; ".join(f"{name}: supervision {a:.0%}, wins {b:.0%}, same for all {c:.0%}"
                         for name, (a, b, c) in zip(names, rows, strict=True))  # fmt: skip
        key = [("c0", "share of the gradient"), ("c1", "wins"), ("c2", "says the same of everything")]
        figures.append(charts.figure(frame, marks, said, key))
    note = (
        "<p class='faint'>Gradient: what matching pairs could teach the element through this similarity; dashed, an "
        "even share. Wins: how often it is one of the closest two elements of a matching pair. Says the same: how much "
        "of it does not depend on the item.</p>"
    )
    return f"<div class='figures'>{''.join(figures)}</div>{note}" if figures else ""


def _pointing(found: Diagnosis) -> str:
    game = found.pointing
    if isinstance(game, str):
        return ""
    steps = len(game.by_slot)
    most = max(share.high for row in game.by_slot for share in row if math.isfinite(share.high))
    top = min(1.0, max(most, game.chance) * 1.15)
    slots = len(game.by_slot[0])
    along = "iteration" if steps > 1 else ""
    frame = Frame("Hits by element and iteration", along, "hits", (0.6, steps + 0.4), (0, top), True, whole_x=True)
    marks = charts.level(frame, game.chance, "a token by lot")
    said = []
    for slot in range(slots):
        shift = (slot - (slots - 1) / 2) * 0.06
        shares = [(step + 1 + shift, row[slot]) for step, row in enumerate(game.by_slot)]
        marks += charts.whiskers(frame, [(x, share.low, share.high) for x, share in shares], f"c{slot % 8}")
        marks += charts.line(frame, [(x, share.value) for x, share in shares], f"c{slot % 8}")
        said.append(f"element {slot + 1} ends at {shares[-1][1].value:.0%}")
    key = [(f"c{slot % 8}", f"element {slot + 1}") for slot in range(slots)]
    rows = [
        ("all elements, last iteration", _share(game.accuracy)),
        ("a token by lot", f"{game.chance:.1%}"),
        ("where the same element looks in other pictures", f"{game.habit:.1%}"),
        ("above the larger of these", f"{100 * game.above.value:.1f} points ({100 * game.above.low:.1f} to "
                                      f"{100 * game.above.high:.1f})"),
        ("on any thing at all, named or not", f"{game.on_anything:.1%}"),
        ("nearest of the picture's own captions", f"{_share(game.own)}, by lot {game.own_chance:.1%}"),
        ("elements with a trial", f"{game.covered:.0%} of {game.pictures:,} pictures' elements"),
    ]  # fmt: skip
    table = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in rows)
    note = (
        "<p class='faint'>A trial: an element whose nearest caption, of all captions, names a thing with a box in the "
        "picture. A hit: the token it attends to most has its centre in such a box. Intervals: 95%, over pictures.</p>"
    )
    drawn = charts.figure(frame, marks, "; ".join(said), key)
    return f"<div class='figures'>{drawn}<table>{table}</table></div>{note}"


def _share(share: object) -> str:
    value, low, high = (getattr(share, name) for name in ("value", "low", "high"))
    return f"{value:.1%} ({low:.1%} to {high:.1%})"


def _space(found: Diagnosis) -> str:
    each = found.space
    rows = [
        ("Alignment", each.alignment, "mean squared distance of a caption and its image; 0 at best, 2 by chance"),
        ("Uniformity, images", each.uniformity_image, "the lower, the better spread; −4 at best"),
        ("Uniformity, texts", each.uniformity_text, "the same of captions"),
        ("Cosine of two images", each.cosine_image, "near 1, everything lies at one point"),
        ("Cosine of two texts", each.cosine_text, ""),
        ("Modality gap", each.gap, "distance between the centres of images and texts"),
        ("Sides told apart", each.separable, "how often a text lies beyond an image along that line; 0.5: they mingle"),
    ]
    cells = "".join(f"<tr><td>{a}</td><td>{b:.3f}</td><td class='left faint'>{c}</td></tr>" for a, b, c in rows)
    return f"<table>{cells}</table>"


def _hubs(found: Diagnosis) -> str:
    figures = []
    for place, (way, each) in enumerate(found.hubness.items()):
        frame = Frame(WAYS[way], f"queries that have it among the first {each.k}", "answers",
                      (each.edges[0], each.edges[-1]), (0, 1.12 * max(each.counts, default=1)))  # fmt: skip
        marks = charts.bars(frame, each.edges, each.counts, f"c{place}")
        marks += charts.upright(frame, each.expected, "mean")
        said = f"Skewness {each.skewness:.2f}, {each.never_returned:.1f} per cent are never returned."
        note = f"Skewness {each.skewness:.2f}; never returned: {each.never_returned:.1f}%"
        figures.append(charts.figure(frame, marks, said, note=note))
    return f"<div class='figures'>{''.join(figures)}</div>"


def _belief(found: Diagnosis) -> str:
    figures = []
    for place, (way, each) in enumerate(found.calibration.items()):
        frame = Frame(WAYS[way], "probability that the score stands for", "first answers that are right",
                      (0, 1), (0, 1), percent=True)  # fmt: skip
        marks = [f'<path class="mark" d="M{frame.px(0)} {frame.py(0)}L{frame.px(1)} {frame.py(1)}"/>']
        marks += charts.line(frame, [(b.claimed, b.right) for b in each.bins], f"c{place}")
        said = f"AUROC {each.auroc:.2f}, calibration error {each.error:.1f} points."
        note = f"AUROC of the first score {each.auroc:.2f}; error {each.error:.1f} points; dashed: perfect"
        figures.append(charts.figure(frame, marks, said, note=note))
    note = (
        "<p class='faint'>Each dot is a tenth of the queries, by the score of their first answer. The probability "
        "comes from a logistic curve, fitted on other items than those it is tested on.</p>"
    )
    return f"<div class='figures'>{''.join(figures)}</div>{note}" if figures else ""


def _confusions(found: Diagnosis) -> str:
    return "".join(_confusion(WAYS[way], each) for way, each in found.confusions.items() if each.wrong)


def _confusion(name: str, each: Confusions) -> str:
    rows = "".join(
        f"<tr><td>{kind}</td><td>{each.kinds[kind]:,}</td><td>{each.kinds[kind] / each.wrong:.0%}</td>"
        f"<td class='left'><span class='bar c{place}' style='width:{80 * each.kinds[kind] / each.wrong:.1f}%'></span>"
        f"</td><td class='left faint'>{KINDS[kind]}</td></tr>"
        for place, kind in enumerate(KINDS)
    )
    swaps = "".join(
        f"<tr><td>{escape(swap.says)}</td><td class='left'>{escape(swap.shows)}</td><td>{swap.times}</td>"
        f"<td class='left'>{swap.kind}</td><td>{swap.together:.0%}</td></tr>"
        for swap in each.swaps
    )
    head = (
        "<tr><th>the text says</th><th class='left'>the picture shows</th><th>times</th><th class='left'>kind</th>"
        "<th>seen together</th></tr>"
    )
    table = (
        f"<details><summary>What stands in for what</summary><table>{head}{swaps}</table></details>" if swaps else ""
    )
    return f"<h3>{name}: {each.wrong:,} wrong first answers</h3><table class='kinds'>{rows}</table>{table}"


def _failures(found: Diagnosis) -> str:
    pictures = thumbnails.Thumbnails(found.gallery.items)
    return "".join(
        f"<h3>{WAYS[way]}</h3>{''.join(_failure(found, way, each, pictures) for each in some)}"
        for way, some in found.failures.items()
        if some
    )


def _failure(found: Diagnosis, way: str, each: Failure, pictures: thumbnails.Thumbnails) -> str:
    captions = found.gallery.items.captions

    def shown(is_text: bool, place: int, item: int, below: str) -> str:
        inside = f"<p>{escape(captions[place])}</p>" if is_text else pictures.tag(item)
        return f"<div class='card'>{inside}<small>{escape(below)}</small></div>"

    asks_text = way == "t2i"
    right = pictures.tag(each.item) if asks_text else f"<p>{escape(captions[each.right])}</p>"
    answers = "".join(shown(not asks_text, a.place, a.item, f"{a.score:.3f}") for a in each.answers)
    return (
        f"<div class='failure'>{shown(asks_text, each.query, each.item, 'asked')}"
        f"<div class='card right'>{right}<small>right: place {each.rank:,}</small></div>"
        f"<div class='arrow' aria-hidden='true'>→</div>{answers}</div>"
    )
