"""Pages and pictures of a map, and the command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from inspection import small_models
from inspection import synthetic_galleries as galleries
from polysem.cli import app
from polysem.errors import InputError
from polysem.inspection.map import Map, lay_out, make_points, map_space, write_map
from polysem.search.store import Entry, Manifest, Store, VectorBatch
from training.small import make_data
from waiting import LONG


@pytest.fixture
def found() -> Map:
    return lay_out(make_points(galleries.make_diverse(8, labels=True)), method="pca", pairs=True)


def content(page: str) -> dict:
    (data,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(data)


def test_the_page_holds_every_element_and_asks_for_nothing(found: Map, tmp_path: Path) -> None:
    page = write_map(found, tmp_path / "deep" / "map.html", title="A <title>").read_text(encoding="utf-8")
    data = content(page)
    assert len(data["x"]) == len(data["y"]) == len(data["item"]) == len(found.positions)
    assert data["slot"] == found.slot.tolist()
    assert [item[0] for item in data["items"]] == [item.id for item in found.items]
    assert [each["name"] for each in data["colourings"]] == ["slot", "label"]
    assert data["lines"] == found.lines.tolist()
    assert not re.search(r"https?://|@import|url\(|\bsrc=|<link|fetch\(|XMLHttp", page)
    assert "A &lt;title&gt;" in page
    assert "prefers-color-scheme: dark" in page
    # Places keep their shape: a map is not stretched.
    places = np.array([data["x"], data["y"]]).T
    scale = np.ptp(places, 0) / np.ptp(found.positions, 0)
    np.testing.assert_allclose(scale[0], scale[1], rtol=1e-3)


def test_captions_cannot_end_the_script(tmp_path: Path) -> None:
    given = make_points(galleries.make_diverse(3))[1]
    evil = "</script><script>alert(1)</script>"
    given = type(given)(given.vectors, "text", given.ids, [evil] * len(given))
    page = write_map(lay_out(given, method="pca"), tmp_path / "map.html").read_text(encoding="utf-8")
    assert evil not in page
    assert content(page)["items"][0][2] == evil


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_pictures_are_written_whole(found: Map, ending: str, tmp_path: Path) -> None:
    path = write_map(found, tmp_path / f"map.{ending}", title="Joint space")
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    if ending == "png":
        with Image.open(path) as picture:
            assert min(picture.size) > 800
            colours = {colour for _, colour in picture.convert("RGB").resize((400, 400)).getcolors(1 << 20)}
        assert len(colours) > 20
    else:
        assert path.read_bytes()[:5] in (b"<?xml", b"%PDF-")


def test_an_unknown_ending_or_colour_is_refused_before_any_work(found: Map, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.html.*got 'map\.jpeg'"):
        map_space("no such model", "no such data", out="map.jpeg")
    with pytest.raises(InputError, match="slot or the label"):
        map_space("no such model", "no such data", colour="size")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="give --data"):
        map_space("no such model")
    bare = lay_out(make_points(galleries.make_diverse(3)), method="pca")
    with pytest.raises(InputError, match="no labels"):
        write_map(bare, tmp_path / "map.html", colour="label")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="Cannot write the map"):
        write_map(found, tmp_path / "file" / "map.html")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["map", *arguments], env={"COLUMNS": "200"})


@pytest.mark.slow
def test_the_command_maps_a_model(tmp_path: Path) -> None:
    folder = small_models.make_model("slots", "slots").save(tmp_path / "model")
    data = make_data(tmp_path / "data", train=4, val=6, captions=2)
    out = tmp_path / "map.html"
    done = run(str(folder), "--data", str(data), "--out", str(out), "--method", "pca", "--pairs")
    assert done.exit_code == 0, done.output
    k = small_models.make_model("slots", "slots").set_sizes
    elements = 6 * k[0] + 12 * k[1]
    assert f"{elements} elements of 18 items" in done.stdout
    assert len(content(out.read_text(encoding="utf-8"))["lines"]) == 12
    told = run(str(folder), "--data", str(data), "--out", str(out), "--json", "--limit", "40")
    assert len(json.loads(told.stdout)["elements"]) <= 40


def test_the_command_maps_an_index(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    with Store.create(folder, Manifest("abc", {"image": 2, "text": 1}, 6)) as store:
        vectors = np.random.default_rng(0).normal(size=(5, 2, 6)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
        entries = [Entry(f"photo {i}", caption=f"a dog {i}", labels=["dog"]) for i in range(5)]
        store.add(VectorBatch("image", entries, vectors))
    out = tmp_path / "map.html"
    done = run(str(folder), "--out", str(out), "--method", "pca", "--colour", "label")
    assert done.exit_code == 0, done.output
    data = content(out.read_text(encoding="utf-8"))
    assert len(data["x"]) == 10
    assert data["items"][0][:3] == ["photo 0", "image", "a dog 0"]
    assert data["colourings"][1]["names"] == ["dog"]
    refused = run(str(folder), "--out", str(out), "--data", "scenes")
    assert isinstance(refused.exception, InputError)
    assert "is an index" in str(refused.exception)


def test_the_command_itself_loads_nothing_heavy() -> None:
    probe = (
        "import sys, polysem.cli.inspection; print([m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=LONG, check=True)
    assert finished.stdout == "[]\n"
    assert "Example: polysem map runs/dive --data scenes --out map.html" in run("--help").stdout
