from random import Random

import pytest

from polysem.synthetic.scenes.captions import TEMPLATES, SceneCaption, write_captions
from polysem.synthetic.scenes.scene import Scene, compose, plan_scenes
from synthetic.caption_truth import named, relations, untruths
from synthetic.fake_art import disc, fake_art, fake_kinds, make_fake_scenes

pytestmark = pytest.mark.slow

ITEMS = 150
NAMES = [kind.name for kind in fake_kinds()]


@pytest.fixture(scope="module")
def told() -> list[tuple[Scene, list[SceneCaption]]]:
    art = fake_art()
    scenes = [
        compose(plan.counts, plan.backdrop, art, Random(plan.index))
        for plan in plan_scenes(fake_kinds(), ITEMS, seed=5)
    ]
    return [(scene, write_captions(scene, Random(index))) for index, scene in enumerate(scenes)]


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    return make_fake_scenes(tmp_path_factory.mktemp("made") / "scenes", ITEMS, seed=8, size=224)


def test_no_caption_is_false_of_its_picture(entries):
    assert [fault for entry in entries for fault in untruths(entry, NAMES)] == []


def test_the_reader_of_captions_notices_lies():
    dog = {"name": "dog", "group": "animal", "color": "brown", "box": [10, 50, 40, 90]}
    car = {"name": "car", "group": "vehicle", "color": "red", "box": [60, 50, 100, 90]}
    for lie in (
        "Two dogs on the grass.",
        "A red dog.",
        "The car is brown.",
        "A car is to the left of a dog.",
        "To the right of the car there is a dog.",
        "A dog in front of a red car.",
        "Three things in one picture: a dog and a car.",
        "Two animals on the grass.",
        "A dog with a cat.",
        "The dog is above the car.",
    ):
        entry = {"objects": [dog, car], "sentences": [{"raw": lie}]}
        assert untruths(entry, NAMES), lie
    for truth in ("A brown dog is to the left of a red car.", "The car is red.", "A dog and a car side by side."):
        assert untruths({"objects": [dog, car], "sentences": [{"raw": truth}]}, NAMES) == []


def test_most_pictures_have_a_caption_that_relates_two_things(entries):
    related = [any(relations(line["raw"], NAMES) for line in entry["sentences"]) for entry in entries]
    assert sum(related) > 0.7 * len(related)


def test_a_picture_has_five_captions_that_say_different_things(told):
    for _, five in told:
        assert len({caption.text for caption in five}) == 5
        assert len({caption.claim.content for caption in five}) == 5


def test_captions_name_different_subsets_of_the_objects(entries):
    for entry in entries:
        subsets = {frozenset(named(line["raw"], NAMES)) for line in entry["sentences"]}
        assert len(subsets - {frozenset()}) >= 2
    together = [set().union(*(named(line["raw"], NAMES) for line in entry["sentences"])) for entry in entries]
    kinds = [{thing["name"] for thing in entry["objects"]} for entry in entries]
    covered = [len(names) / len(there) for names, there in zip(together, kinds, strict=True)]
    assert sum(covered) / len(covered) > 0.95


def test_the_wording_varies(told):
    assert len({caption.template for _, five in told for caption in five}) > 60
    assert len({template for templates in TEMPLATES.values() for template in templates}) > 80


def test_captions_read_as_sentences(entries):
    for line in (line for entry in entries for line in entry["sentences"]):
        text = line["raw"]
        assert text[0].isupper() or text.startswith("T-")
        assert text[-1] in ".!?"
        assert "  " not in text
        assert "{" not in text
        assert " ," not in text
        assert line["tokens"]
        assert all(token == token.lower() for token in line["tokens"])


def test_two_of_a_kind_wear_the_same_colour(told):
    for scene, _ in told:
        glyphs: dict[str, str] = {}
        for thing in scene.objects:
            assert glyphs.setdefault(thing.kind.name, thing.glyph) == thing.glyph


def test_discs_differ():
    assert disc("apple.red").tobytes() != disc("apple.green").tobytes()
