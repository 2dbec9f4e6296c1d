import json
from html.parser import HTMLParser

import pytest

from polysem.training import charts
from polysem.training.monitoring import report


def step(i, **more):
    return {
        "kind": "step", "step": i, "epoch": 0, "loss": 5.0 / i, "parts": {"i2t": 2.0 / i, "t2i": 3.0 / i, "mmd": 0.01},
        "lr": {"image.project": 5e-4, "text.project": 5e-4, "image.encoder": 5e-5}, "grad_norm": 1.0 / i,
        "info": {"active": 0.5}, "variance": {"image": 0.1, "text": 0.2}, "items_per_second": 100.0, "seconds": 0.1 * i,
        **more,
    }  # fmt: skip


VALIDATION = {
    "kind": "validation", "step": 10, "epoch": 0, "rsum": 321.5, "i2t": {"r1": 41.5, "r5": 60.0, "r10": 70.0},
    "t2i": {"r1": 30.0, "r5": 50.0, "r10": 70.0}, "log_variance": {"image": -2.1, "text": -2.2}, "best": True,
}  # fmt: skip
DIAGNOSIS = {
    "kind": "diagnosis", "step": 7, "name": "set collapse", "says": "variance < 0.001 & falling",
    "advice": "Try --set image.sets.name=slots.",
}  # fmt: skip
RUN = {
    "recipe": {"name": "dive", "summary": "four <slots>", "dim": 1024, "image": {"sets": {"name": "slots"}}},
    "data": {"name": "flickr8k", "train": 6000, "val": 1000},
    "protocol": "val, 1000 images × 5000 captions",
    "steps": 20,
    "status": "finished",
    "seconds": 3725.0,
    "best": {"step": 10, "rsum": 321.5, "i2t": VALIDATION["i2t"], "t2i": VALIDATION["t2i"]},
    "versions": {"torch": "2.13"},
}


def written(folder, records, run=RUN, tail=""):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records) + tail)
    if run is not None:
        (folder / "run.json").write_text(json.dumps(run))
    return report.write_report(folder).read_text(encoding="utf-8")


class Page(HTMLParser):
    """Tags are closed in order; titles of figures and outside addresses are noted."""

    def __init__(self, html):
        super().__init__()
        self.open, self.titles, self.addresses, self.labels, self.paths = [], [], [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "br"):
            self.open.append(tag)
        attributes = dict(attributes)
        self.addresses += [attributes[name] for name in ("href", "src") if name in attributes]
        if tag == "svg":
            self.labels.append(attributes["aria-label"])
        if tag == "path" and "stroke" in attributes["class"]:
            self.paths.append(attributes["d"])

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h3":
            self.titles.append(data)


def test_the_page_shows_the_run_its_figures_and_every_curve(tmp_path):
    html = written(tmp_path, [*(step(i) for i in range(1, 21)), VALIDATION, DIAGNOSIS])
    page = Page(html)
    assert page.open == []
    assert page.titles == [
        "set collapse, step 7",
        "Loss",
        "Validation RSUM",
        "Validation recalls",
        "Learning rates",
        "Active triplets",
        "Log circular variance of the sets",
        "Gradient norm",
        "Speed",
    ]
    for expected in ("dive on flickr8k", "321.5", "1 h 02 min", "val, 1000 images × 5000 captions", "<td>41.5</td>"):
        assert expected in html
    assert "name: slots" in html  # the recipe as YAML
    assert any("total: from 5 to 0.25 at step 20" in label for label in page.labels)


def test_the_page_asks_nothing_of_the_outside_and_runs_nothing(tmp_path):
    html = written(tmp_path, [step(1), step(2), VALIDATION])
    assert Page(html).addresses == []
    for word in ("http", "<script", "@import", "url("):
        assert word not in html


def test_words_from_outside_cannot_become_markup(tmp_path):
    html = written(tmp_path, [step(1), DIAGNOSIS])
    assert "four &lt;slots&gt;" in html
    assert "variance &lt; 0.001 &amp; falling" in html
    assert "<code>--set image.sets.name=slots</code>." in html


def test_groups_with_one_learning_rate_share_a_curve(tmp_path):
    assert "image.project, text.project" in written(tmp_path, [step(1), step(2)])


def test_adopts_k_has_a_curve(tmp_path):
    records = [step(i, info={"k": 60.0 - i, "k_i2t": 60.0, "k_t2i": 58.0}) for i in range(1, 5)]
    titles = Page(written(tmp_path, records)).titles
    assert "Negatives per match, K" in titles
    assert "Active triplets" not in titles


@pytest.mark.parametrize(
    ("records", "run", "tail"),
    [
        ([], None, ""),
        ([], {}, ""),
        ([step(1)], {"recipe": None, "best": None, "data": []}, '{"kind": "step", "st'),
        (
            [{"kind": "step", "step": 3}, {"kind": "validation", "step": 3}, {"kind": "diagnosis", "step": 3}],
            RUN,
            "[]\n",
        ),
        ([{"step": 3}, {"kind": "step"}, {"kind": "step", "step": 1, "loss": None, "lr": None, "info": 7}], RUN, ""),
        ([step(1, loss=float("nan"), grad_norm=float("inf")), step(2)], RUN, ""),
        ([step(1, loss=-1.0, grad_norm=0.0), step(2, loss=-1.0, grad_norm=0.0)], RUN, ""),
    ],
)
def test_what_is_missing_or_cut_off_is_left_out(tmp_path, records, run, tail):
    page = Page(written(tmp_path, records, run, tail))
    assert page.open == []
    assert all("nan" not in path and "inf" not in path for path in page.paths)


def test_an_unreadable_run_json_still_gives_the_curves(tmp_path):
    (tmp_path / "run.json").write_text("{")
    assert "Loss" in Page(written(tmp_path, [step(1), step(2)], run=None)).titles


def test_a_long_run_is_thinned_and_keeps_its_peaks(tmp_path):
    points = [(float(i), 1.0) for i in range(100_000)]
    points[77_777] = (77_777.0, 9.0)
    points[33_333] = (33_333.0, -9.0)
    thin = report.downsample(points)
    assert len(thin) <= report.POINTS
    assert {points[0], points[-1], points[77_777], points[33_333]} <= set(thin)
    assert thin == sorted(thin)
    html = written(tmp_path, [step(i) for i in range(1, 5001)])
    assert max(path.count("L") for path in Page(html).paths) <= report.POINTS
    assert len(html) < 400_000


def test_ticks_are_round_and_inside():
    for values in [(0, 1), (0.1234, 0.1239), (-3.2, 900), (5, 5), (0, 0), (1e-9, 3e-9)]:
        low, high = charts.data_range(values)
        ticks = charts.ticks(low, high)
        slack = 1e-6 * (high - low)
        assert 2 <= len(ticks) <= 8
        assert all(low - slack <= tick <= high + slack for tick in ticks)
    assert charts.ticks(*charts.data_range([2e-6, 5e-4], log=True), log=True) == pytest.approx([1e-6, 1e-5, 1e-4, 1e-3])
