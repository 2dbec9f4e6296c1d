from random import Random

import numpy as np
import pytest

from polysem.synthetic.scenes import caption_facts
from polysem.synthetic.scenes.catalogue import BACKDROPS
from polysem.synthetic.scenes.painting import paint_scene, pixel_box
from polysem.synthetic.scenes.scene import UNIT, Scene, compose, plan_scenes
from synthetic.fake_art import fake_art, fake_kinds

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    art = fake_art()
    return [
        compose(plan.counts, plan.backdrop, art, Random(plan.index)) for plan in plan_scenes(fake_kinds(), 250, seed=2)
    ]


def hidden_shares(scene: Scene) -> list[float]:
    """The share of each object that later ones cover, from full masks on the whole picture."""
    art, masks = fake_art(), []
    for thing in scene.objects:
        x0, y0, x1, y1 = thing.box
        mask = np.zeros((UNIT, UNIT), dtype=bool)
        alpha = np.asarray(art.scale(thing.glyph, x1 - x0, y1 - y0, thing.mirrored).getchannel("A"))
        mask[y0:y1, x0:x1] = alpha >= 128
        masks.append(mask)
    empty = np.zeros((UNIT, UNIT), dtype=bool)
    covers = [np.logical_or.reduce([empty, *masks[index + 1 :]]) for index in range(len(masks))]
    return [float((mask & cover).sum() / mask.sum()) for mask, cover in zip(masks, covers, strict=True)]


def test_two_to_five_objects_of_at_least_two_kinds(scenes):
    assert {len(scene.objects) for scene in scenes} == {2, 3, 4, 5}
    assert all(len({thing.kind for thing in scene.objects}) >= 2 for scene in scenes)


def test_no_object_is_cut_off(scenes):
    for x0, y0, x1, y1 in (thing.box for scene in scenes for thing in scene.objects):
        assert 0 <= x0 < x1 <= UNIT
        assert 0 <= y0 < y1 <= UNIT


def test_occlusion_is_light_and_occurs(scenes):
    shares = [share for scene in scenes for share in hidden_shares(scene)]
    assert max(shares) <= 0.25
    assert any(share >= 0.05 for share in shares)
    assert any(scene.overlaps for scene in scenes)


def test_recorded_overlaps_name_the_nearer_object_first(scenes):
    for scene in scenes:
        for front, back in scene.overlaps:
            assert front > back
            assert hidden_shares(scene)[back] >= 0.03


def test_two_of_a_kind_never_overlap(scenes):
    for scene in scenes:
        for front, back in scene.overlaps:
            assert scene.objects[front].kind != scene.objects[back].kind


def test_things_stand_where_they_belong(scenes):
    for scene in scenes:
        for thing in scene.objects:
            assert not thing.zone.homes or thing.zone.homes & thing.kind.homes
            if thing.zone.footing in ("ground", "water"):
                assert thing.zone.top * UNIT - 1 <= thing.box[3] <= thing.zone.bottom * UNIT + 1


def test_a_nearer_foot_is_drawn_later(scenes):
    for scene in scenes:
        feet = [thing.box[3] for thing in scene.objects if thing.zone.footing == "ground"]
        assert feet == sorted(feet)


def test_the_painted_objects_are_inside_their_boxes():
    art, kinds = fake_art(), {kind.name: kind for kind in fake_kinds()}
    pastel = next(backdrop for backdrop in BACKDROPS if backdrop.name == "pastel")
    scene = compose([(kinds["car"], 1), (kinds["lemon"], 1)], pastel, art, Random(4))
    bare = Scene(pastel, (), frozenset())
    size = 160
    changed = np.asarray(paint_scene(scene, art, size, Random(1)), int) - np.asarray(
        paint_scene(bare, art, size, Random(1)), int
    )
    rows, columns = np.nonzero(np.abs(changed).sum(axis=2))
    boxes = [pixel_box(thing, size) for thing in scene.objects]
    inside = [
        any(x0 <= x < x1 and y0 <= y < y1 for x0, y0, x1, y1 in boxes) for x, y in zip(columns, rows, strict=True)
    ]
    assert all(inside)
    for x0, y0, x1, y1 in boxes:
        assert (np.abs(changed[y0:y1, x0:x1]).sum(axis=2) > 0).mean() > 0.5


@pytest.mark.parametrize("backdrop", BACKDROPS, ids=lambda backdrop: backdrop.name)
def test_every_backdrop_paints_and_repeats(backdrop):
    empty = Scene(backdrop, (), frozenset())
    first = paint_scene(empty, fake_art(), 64, Random(5))
    assert first.size == (64, 64)
    assert first.mode == "RGB"
    assert first.tobytes() == paint_scene(empty, fake_art(), 64, Random(5)).tobytes()
    assert len(first.getcolors(64 * 64)) > 1 or backdrop.name == "pastel"


def test_relations_of_boxes():
    left, right, high = (10, 50, 40, 80), (60, 52, 90, 82), (58, 5, 92, 35)
    assert caption_facts.is_left_of(left, right)
    assert not caption_facts.is_left_of(right, left)
    assert caption_facts.is_above(high, right)
    assert not caption_facts.is_above(right, high)
    assert not caption_facts.is_left_of(high, right)
    assert caption_facts.is_next_to((10, 50, 40, 80), (45, 52, 75, 82))
    assert not caption_facts.is_next_to(left, (150, 50, 180, 80))
    assert caption_facts.is_between((60, 50, 80, 80), left, (100, 50, 130, 80))
    assert not caption_facts.is_between(left, (60, 50, 80, 80), (100, 50, 130, 80))
    assert caption_facts.area((0, 0, 20, 20)) == 4 * caption_facts.area((0, 0, 10, 10))
    assert caption_facts.name_side((5, 5, 60, 60), 224) == "in the top left corner"
    assert caption_facts.name_side((150, 150, 220, 220), 224) == "in the bottom right corner"
    assert caption_facts.name_side((5, 60, 60, 150), 224) == "on the left"
    assert caption_facts.name_side((80, 60, 140, 150), 224) is None
