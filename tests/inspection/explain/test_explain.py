"""`explain` gives data that adds up, and `draw` draws it."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from inspection.small_models import DIM, WORDS, make_model, make_regions
from polysem import PolysemError, encoders
from polysem.data.collection import Collection, Item, Media
from polysem.inspection import draw, explain
from polysem.inspection.explain.drawing import make_figure

pytestmark = pytest.mark.slow

CAPTION = "a small red dog"
CAPTIONS = [f"{first} {second}" for first in WORDS for second in WORDS]


def photo(size=(120, 60)):
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3)).astype(np.uint8))


@pytest.fixture(scope="module")
def grid():
    """Of pictures, with sets of four."""
    torch.manual_seed(0)
    encoder = encoders.build("grid", pretrained=False, image_size=64, dim=DIM, trainable="none")
    return make_model("slots", "slots", encoder=encoder)


def test_a_set_model_is_explained(grid):
    found = explain(grid, photo(), CAPTION, CAPTIONS)
    score = grid.similarity(grid.encode_images([photo()]), grid.encode_texts([CAPTION])).item()
    assert found.score == pytest.approx(score, abs=1e-6)
    assert float(found.contributions.matrix.sum()) == pytest.approx(score, abs=1e-6)
    assert found.image.weights.shape == (3, 4, 4)
    assert found.places.size == (120, 60)
    assert found.word_weights.shape == (3, 4, 6)
    torch.testing.assert_close(found.word_weights.sum(-1), torch.ones(3, 4), atol=1e-5, rtol=0)
    assert found.winning is None


def test_the_nearest_captions_are_the_nearest(grid, monkeypatch):
    monkeypatch.setattr(sys.modules[explain.__module__], "_BATCH", 10)  # several rounds
    seen = []
    found = explain(grid, photo(), CAPTION, CAPTIONS, progress=lambda *step: seen.append(step))
    image, texts = grid.encode_images([photo()])[0], grid.encode_texts(CAPTIONS)
    for element, near in zip(image, found.nearest, strict=True):
        closeness = [max(float(element @ other) for other in text) for text in texts]
        best = sorted(range(len(CAPTIONS)), key=lambda place: -closeness[place])[:3]
        assert [item.closeness for item in near] == pytest.approx([closeness[place] for place in best], abs=1e-5)
        assert near[0].caption == CAPTIONS[best[0]]
        assert near[0].matches is None
    assert seen[-1] == ("captions", len(CAPTIONS), len(CAPTIONS))


def test_captions_of_the_image_itself_are_known_by_its_file(grid, tmp_path):
    for name in ("one.png", "two.png"):
        photo().save(tmp_path / name)
    items = [
        Item("1", Media(tmp_path, "one.png"), ("red dog", "blue cat"), split="test"),
        Item("2", Media(tmp_path, "two.png"), ("small tree",), split="test"),
        Item("3", Media(tmp_path, "three.png"), ("red car",), split="train"),
    ]
    found = explain(grid, tmp_path / "one.png", CAPTION, Collection("toy", "image", items))
    assert (found.searched.name, found.searched.count) == ("toy, test", 3)
    matches = {near.caption: near.matches for element in found.nearest for near in element}
    assert matches == {"red dog": True, "blue cat": True, "small tree": False}
    everything = explain(grid, photo(), CAPTION, Collection("toy", "image", items))
    assert everything.searched.count == 4
    assert {near.matches for element in everything.nearest for near in element} == {None}
    one = explain(grid, photo(), CAPTION, Collection("toy", "image", items), split="train")
    assert one.nearest[0][0].caption == "red car"


@pytest.mark.parametrize("pooling", ["gpo", "adpool", "max", "mean"])
def test_tokens_of_a_single_vector_add_up_to_the_score(pooling):
    model = make_model(f"single-{pooling}", f"single-{pooling}", "cosine")
    found = explain(model, make_regions(), CAPTION)
    won = found.winning
    assert float(won.image_parts.sum()) == pytest.approx(found.score, abs=1e-5)
    assert float(won.text_parts.sum()) == pytest.approx(found.score, abs=1e-5)
    assert float(won.image_supply.sum()) == pytest.approx(1)
    products = found.image.vectors[0] * found.text.vectors[0]
    speaking = products.clamp(min=0).sum()
    assert set(won.dimensions.tolist()) == set(products.topk(len(won.dimensions)).indices.tolist())
    assert float(won.shares.sum()) >= 0.5 * float(speaking) - 1e-6
    assert float(won.shares[:-1].sum()) < 0.5 * float(speaking)
    # the supplier of the strongest dimension is the one without which it would fall most
    strongest = int(won.dimensions[0])
    parts = found.image.terms[:, strongest] * found.text.vectors[0, strongest]
    assert int(won.image_tokens[0]) == int(parts.argmax())


@pytest.mark.parametrize("setting", ["slots", "single-gpo", "single-seq2seq", "classes"])
def test_it_is_json(setting):
    model = make_model(setting, setting, "smooth_chamfer" if setting == "slots" else "cosine")
    found = explain(model, make_regions(), CAPTION, CAPTIONS)
    told = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert told["score"] == found.score
    assert np.sum(told["contributions"]) == pytest.approx(found.score, abs=1e-5)
    assert np.array(told["image_weights"]["weights"]).shape == found.image.weights.shape
    assert told["image_weights"]["places"]["boxes"] == [None] * 7
    assert [word["text"] for word in told["text_weights"]["words"]][1:-1] == CAPTION.split()
    assert np.sum(told["text_weights"]["by_word"][0][0]) == pytest.approx(1, abs=1e-5)


def reaches(figure):
    """How far what is drawn reaches beyond the figure's edge, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box, (width, height) = figure.get_tightbbox(canvas.get_renderer()), figure.get_size_inches()
    return max(-box.x0, -box.y0, box.x1 - width, box.y1 - height)


@pytest.mark.parametrize(
    ("setting", "how"),
    [
        *(("slots", how) for how in ("cells", "boxes", "unknown")),
        *(("single-gpo", how) for how in ("cells", "unknown")),
        ("single-seq2seq", "boxes"),
    ],
)
def test_nothing_of_a_drawing_is_cut_off(setting, how, grid):
    similarity = "smooth_chamfer" if setting == "slots" else "cosine"
    long = "a small red dog " * 12
    if how == "cells":
        model = make_model(setting, setting, similarity, grid.image.encoder)
        found = explain(model, photo((200, 80)), long, [*CAPTIONS, "a very long caption of a blue boat " * 9])
    else:
        boxes = np.array([[5.0, 5, 40, 30]] * 7) + np.arange(7)[:, None]
        where = {"picture": photo(), "boxes": boxes} if how == "boxes" else {}
        found = explain(make_model(setting, setting, similarity), make_regions(), long, CAPTIONS, **where)
    assert found.places.kind == how
    assert reaches(make_figure(found)) < 0.02


def test_all_maps_of_a_drawing_share_one_scale(grid):
    figure = make_figure(explain(grid, photo(), CAPTION))
    maps = [image for image in figure.findobj() if getattr(image, "get_alpha", lambda: None)() == 0.62]
    assert len(maps) == 3 * 4 + 1  # and the global feature's
    assert len({(image.norm.vmin, image.norm.vmax, image.get_cmap().name) for image in maps}) == 1


@pytest.mark.parametrize(("theme", "ending"), [("light", "png"), ("dark", "svg"), ("light", "pdf")])
def test_it_is_drawn_in_either_theme(grid, tmp_path, theme, ending):
    found = explain(grid, photo(), "what costs $5 and $6, 日本?")
    out = draw(found, tmp_path / "new" / f"why.{ending}", theme)
    assert [path.name for path in out.parent.iterdir()] == [f"why.{ending}"]
    assert out.stat().st_size > 10_000
    if ending == "png":
        with Image.open(out) as image:
            corner = image.convert("L").getpixel((2, 2))
        assert (corner > 200) == (theme == "light")


def test_mistakes(grid, tmp_path):
    boxed = make_model()
    found = explain(grid, photo(), CAPTION)
    (tmp_path / "no.png").write_text("no picture")
    (tmp_path / "blank.txt").write_text("\n \n")
    np.save(tmp_path / "many.npy", np.ones((5, 7, 10), np.float32))
    mistakes = [
        (lambda: explain(grid, photo(), "  "), "caption is empty"),
        (lambda: explain(grid, tmp_path / "gone.png", CAPTION), "cannot be opened"),
        (lambda: explain(grid, tmp_path / "no.png", CAPTION), "not a picture"),
        (lambda: explain(boxed, tmp_path / "no.png", CAPTION), r"\.npy file"),
        (lambda: explain(boxed, photo(), CAPTION), "precomputed features"),
        (lambda: explain(boxed, tmp_path / "many.npy", CAPTION), "np.save"),
        (
            lambda: explain(boxed, make_regions(), CAPTION, boxes=np.ones((3, 4)), picture=photo()),
            "3 boxes for 7 tokens",
        ),
        (lambda: explain(grid, photo(), CAPTION, tmp_path / "blank.txt"), "no caption"),
        (lambda: explain(grid, photo(), CAPTION, []), "no caption"),
        (lambda: draw(found, tmp_path / "why.gif"), r"\.png, \.svg, \.pdf"),
        (lambda: draw(found, tmp_path / "why"), r"\.png"),
        (lambda: draw(found, tmp_path / "blank.txt" / "why.png"), "Cannot write the explanation"),
        (lambda: draw(found, tmp_path / "why.png", "blue"), "dark, light"),
    ]
    for mistake, says in mistakes:
        with pytest.raises(PolysemError, match=says) as error:
            mistake()
        assert "\n" not in str(error.value)


def test_a_drawing_without_captions_or_picture(tmp_path):
    found = explain(make_model("single-gpo", "single-gpo", "cosine"), make_regions(), CAPTION)
    assert draw(replace(found, winning=None), tmp_path / "why.png").stat().st_size > 5000
