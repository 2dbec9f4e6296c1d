"""The report: its verdicts tell good from bad, and it is whole by itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from inspection import small_models
from inspection import synthetic_galleries as galleries
from polysem.cli import app
from polysem.data.collection import Collection
from polysem.errors import InputError
from polysem.inspection.diagnose import Diagnosis, diagnose, diagnose_gallery
from sample_data import karpathy
from training.small import make_data


def bad(found: Diagnosis) -> set[str]:
    return {verdict.about for verdict in found.verdicts if verdict.level == "bad"}


@pytest.mark.parametrize("similarity", ["smooth_chamfer", "chamfer"])
def test_sound_sets_are_called_healthy(similarity: str) -> None:
    found = diagnose_gallery(galleries.make_diverse(similarity=similarity, noise=1.0))
    assert bad(found) == set()
    assert found.headline.startswith("Healthy")
    assert {"diverse sets", "elements in use", "sets at work"} <= {verdict.about for verdict in found.verdicts}


def test_collapsed_sets_are_named() -> None:
    found = diagnose_gallery(galleries.make_collapsed())
    assert bad(found) == {"set collapse", "sets act as one vector"}
    assert found.headline == "Unhealthy: set collapse, sets act as one vector."


def test_diverse_sets_that_the_score_averages_are_named() -> None:
    found = diagnose_gallery(galleries.make_diverse(similarity="match_probability", noise=1.0))
    assert bad(found) == {"sets act as one vector"}


def test_starved_elements_are_named() -> None:
    found = diagnose_gallery(galleries.make_starved())
    assert bad(found) == {"starved elements"}
    (image, text) = (verdict for verdict in found.verdicts if verdict.about == "starved elements")
    assert "3 of 4 get next to nothing" in image.says
    assert "--set image.sets.k=1" in image.advice
    assert "--set text.sets.k=1" in text.advice


def test_a_space_at_one_point_is_named() -> None:
    gallery = galleries.make_diverse()
    vectors = gallery.embeddings
    point = 20 * galleries.unit(vectors.images[:1, :1])
    crowded = galleries.make_gallery(vectors.images + point, vectors.texts + point, gallery.items)
    assert "everything at one point" in bad(diagnose_gallery(crowded))


def test_single_vectors_leave_the_slots_out_with_a_word(tmp_path: Path) -> None:
    found = diagnose_gallery(galleries.make_single())
    assert not found.spreads
    assert not found.usages
    assert found.as_one is None
    assert any("single vector" in each for each in found.left_out)
    page = found.write(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "who does the work" not in page
    assert "single vector" in page


def test_the_page_is_whole_and_its_json_beside_it(tmp_path: Path) -> None:
    gallery = galleries.make_diverse(noise=2.0, boxes=True, labels=True)
    items = [replace(item, captions=("<b>bold</b> & brave", *item.captions[1:])) for item in gallery.items]
    found = diagnose_gallery(replace(gallery, items=Collection("toy", "features", items)))
    path = found.write(tmp_path / "new" / "report.html")
    page = path.read_text(encoding="utf-8")
    assert {each.name for each in path.parent.iterdir()} == {"report.html", "report.json"}
    assert not re.search(r"https?://|@import|url\(|<script|<link", page)
    assert "<b>bold" not in page
    assert "nan" not in page.lower().replace("<b>", "")
    for verdict in found.verdicts:
        assert verdict.about in page
    for word in ("Hubs", "Scores", "Confusions of labels", "Failures", "Left out", "prefers-color-scheme: dark"):
        assert word in page
    data = json.loads((tmp_path / "new" / "report.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert data["headline"] == found.headline
    assert len(data["verdicts"]) == len(found.verdicts)
    assert data["sets"]["image"]["log_variance"] == pytest.approx(found.spreads["image"].log_variance)
    assert data["failures"]["t2i"][0]["rank"] >= data["failures"]["t2i"][-1]["rank"] > 1


def test_json_alone_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    diagnose_gallery(galleries.make_diverse(6)).write(tmp_path / "report.json")
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]


def test_what_cannot_be_diagnosed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"got 'report\.pdf'"):
        diagnose("no such model", "no such data", out="report.pdf")
    gallery = galleries.make_diverse(1)
    with pytest.raises(InputError, match="two items at least"):
        diagnose_gallery(gallery)
    model = small_models.make_model("slots", "slots")
    bare = Collection("bare", "features", [replace(item, captions=()) for item in galleries.make_items(3)])
    with pytest.raises(InputError, match="has no captions"):
        diagnose(model, bare)
    pictures = karpathy(tmp_path / "pictures", [{"filename": f"{i}.png", "split": "test"} for i in range(3)])
    with pytest.raises(InputError, match="polysem features"):
        diagnose(model, pictures)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="Cannot write the report"):
        diagnose_gallery(galleries.make_diverse(6)).write(tmp_path / "file" / "report.html")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["diagnose", *arguments], env={"COLUMNS": "200"})


def test_the_command_says_and_writes_it(tmp_path: Path) -> None:
    folder = small_models.make_model("slots", "slots").save(tmp_path / "model")
    data = make_data(tmp_path / "data", train=4, val=30, captions=2)
    out = tmp_path / "report.html"
    done = run(str(folder), "--data", str(data), "--out", str(out))
    assert done.exit_code == 0, done.output
    written = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    assert f"model: {written['headline']}" in done.stdout
    assert "left out: Pointing game" in done.stdout
    told = json.loads(run(str(folder), "--data", str(data), "--json").stdout)
    assert told == written
    assert told["data"].endswith("val, 30 images, 60 captions")
    (tmp_path / "groups.json").write_text("[1]")
    refused = run(str(folder), "--data", str(data), "--groups", str(tmp_path / "groups.json"))
    assert isinstance(refused.exception, InputError)
    assert "JSON object" in str(refused.exception)
    assert "Example: polysem diagnose runs/dive --data scenes --out report.html" in run("--help").stdout
