"""What is on the map, before anything is drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inspection import synthetic_galleries as galleries
from polysem.errors import ConfigError, InputError, NonFiniteError, UnknownNameError
from polysem.inspection.map import MapPoints, lay_out, make_points


def random_points(count: int = 6, k: int = 3, side: str = "image", dim: int = 5) -> MapPoints:
    return MapPoints(torch.randn(count, k, dim), side, [f"{side} {i}" for i in range(count)])  # type: ignore[arg-type]


def test_elements_stand_in_the_order_of_items_and_slots() -> None:
    found = lay_out([random_points(2, 3), random_points(3, 2, "text")], method="pca")
    assert found.item.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4]
    assert found.slot.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 0, 1, 0, 1]
    assert [item.side for item in found.items] == ["image"] * 2 + ["text"] * 3
    assert found.slots == 3
    assert len(found.as_dict()["elements"]) == 12


def test_pca_is_the_projection_on_the_two_widest_axes() -> None:
    given = random_points(20, 2)
    vectors = torch.nn.functional.normalize(torch.as_tensor(given.vectors), dim=-1).flatten(0, 1)
    centred = (vectors - vectors.mean(0)).numpy()
    _, widths, axes = np.linalg.svd(centred, full_matrices=False)
    found = lay_out(given, method="pca").positions
    np.testing.assert_allclose(np.abs(found), np.abs(centred @ axes[:2].T), atol=1e-5)
    assert f"{(widths[:2] ** 2).sum() / (widths**2).sum():.0%}" in lay_out(given, method="pca").notes[0]


def test_of_too_many_some_are_drawn_with_their_captions() -> None:
    gallery = galleries.make_diverse(40)
    found = lay_out(make_points(gallery), method="pca", limit=100)
    assert len(found.positions) <= 100
    assert len(found.positions) > 80
    shown = {item.partner for item in found.items if item.side == "image"}
    assert shown == {item.partner for item in found.items if item.side == "text"}
    assert "of 480 elements" in found.notes[0]
    again = lay_out(make_points(gallery), method="pca", limit=100)
    assert [item.id for item in again.items] == [item.id for item in found.items]
    other = lay_out(make_points(gallery), method="pca", limit=100, seed=1)
    assert [item.id for item in other.items] != [item.id for item in found.items]


def test_lines_join_the_nearest_elements_of_a_pair() -> None:
    gallery = galleries.make_diverse(5)
    found = lay_out(make_points(gallery), method="pca", pairs=True)
    assert found.lines.shape == (10, 2)
    for image, text in found.lines.tolist():
        one, other = found.items[found.item[image]], found.items[found.item[text]]
        assert (one.side, other.side) == ("image", "text")
        assert one.partner == other.partner
        row, caption = int(found.item[image]), int(found.item[text]) - 5
        cosines = gallery.embeddings.images[row] @ gallery.embeddings.texts[caption].t()
        assert cosines[found.slot[image], found.slot[text]] == cosines.max()


def test_common_labels_have_a_colour_and_the_rest_share_one() -> None:
    labels = [[f"label {min(i, 8)}"] for i in range(30)]
    given = MapPoints(torch.randn(30, 1, 4), "image", [str(i) for i in range(30)], labels=labels)
    found = lay_out(given, method="pca")
    assert found.labels[0] == "label 8"
    assert len(found.labels) == 8
    assert found.labels[-1] == "other"
    assert lay_out(random_points(), method="pca").labels == []


@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_one_item_and_one_vector_have_a_map(method: str) -> None:
    for given in (random_points(1, 1), random_points(1, 4), random_points(2, 1, dim=1)):
        assert np.isfinite(lay_out(given, method=method).positions).all()  # type: ignore[arg-type]


def test_bad_points_are_refused() -> None:
    with pytest.raises(InputError, match=r"\(items, set size, dim\)"):
        MapPoints(torch.randn(3, 4), "image", ["a", "b", "c"])
    with pytest.raises(InputError, match="as many ids, got 2"):
        MapPoints(torch.randn(3, 1, 4), "image", ["a", "b"])
    with pytest.raises(InputError, match="as many texts, got 1"):
        MapPoints(torch.randn(3, 1, 4), "image", ["a", "b", "c"], ["x"])
    with pytest.raises(NonFiniteError, match="texts hold NaN"):
        MapPoints(torch.full((1, 1, 4), float("nan")), "text", ["a"])
    with pytest.raises(InputError, match="'image' or 'text'"):
        random_points(side="video")
    with pytest.raises(InputError, match="5 and 6 dimensions"):
        lay_out([random_points(), random_points(dim=6)])
    with pytest.raises(InputError, match="there are no items"):
        lay_out([])
    with pytest.raises(UnknownNameError, match="'umap'"):
        lay_out(random_points(), method="umap")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="limit is 1"):
        lay_out(random_points(), limit=1)
