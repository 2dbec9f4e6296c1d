"""Nouns and noun phrases, told by how captions use words."""

from __future__ import annotations

import pytest

from polysem.data.noun_phrases import NounPhraseFinder, split_clauses

CAPTIONS = [
    "A brown dog is on the grass .",
    "A brown dog runs through the grass .",
    "Two brown dogs run in a field .",
    "The dog has a red ball in its mouth .",
    "A large dog with a red ball .",
    "A large brown dog is in the water .",
    "A black and white dog is near the water .",
    "The white and black dogs are in the water .",
    "A black cat is on a chair .",
    "The black cat is under the chair .",
    "A white cat is on the grass .",
    "A man is on a swing .",
    "A boy is on the red swing .",
    "The boy swings over the water .",
    "A boy swinging in a park .",
    "A boy with a ball .",
    "The boy is in the park .",
    "Men in a park with a ball .",
    "A man with a tennis ball .",
    "A woman has a tennis ball in her hand .",
    "Two women are at the side of a field .",
    "A boy sits at the side of the water .",
    "A man is in a light brown jacket .",
    "A woman wears a light brown jacket .",
    "A light brown dog is here .",
    "A light is on a chair",
    "A black jacket is on a chair .",
    "A dog with its tongue hanging out .",
    "A dog with its tongue hanging in the water .",
    "Some glasses are on the table .",
    "A glass is on the table .",
    "The fenced in area , a fence .",
]


@pytest.fixture(scope="module")
def finder() -> NounPhraseFinder:
    return NounPhraseFinder(CAPTIONS)


def names(finder: NounPhraseFinder, caption: str) -> list[tuple[str, set[str]]]:
    return [(phrase.noun, set(phrase.names)) for phrase in finder.find(caption)]


def test_nouns_are_told_from_adjectives_and_verbs(finder: NounPhraseFinder) -> None:
    assert {"dog", "grass", "ball", "water", "cat", "chair", "swing", "man", "woman", "boy", "park"} <= finder.nouns
    assert {"brown", "black", "red", "white", "large"} <= finder.adjectives
    others = {"runs", "run", "sits", "swinging", "hanging", "fenced", "brown", "black", "the", "of", "here", "side"}
    assert not finder.nouns & others


def test_what_is_counted(finder: NounPhraseFinder) -> None:
    assert {"dog", "ball", "chair", "man"} <= finder.countable
    assert not finder.countable & {"grass", "water"}


def test_phrases_and_plurals(finder: NounPhraseFinder) -> None:
    assert names(finder, "Two large brown dogs and men on grass") == [
        ("dog", {"large dog", "brown dog"}),
        ("man", set()),
        ("grass", set()),
    ]


def test_a_dog_of_two_colours_is_a_dog_of_neither(finder: NounPhraseFinder) -> None:
    for caption in ("a black and white dog", "White and black dogs."):
        assert names(finder, caption) == [("dog", {"black and white dog"})]


def test_a_shade_belongs_to_the_colour(finder: NounPhraseFinder) -> None:
    assert names(finder, "a light brown dog") == [("dog", {"brown dog"})]


def test_a_noun_before_a_noun_describes_it(finder: NounPhraseFinder) -> None:
    assert names(finder, "a tennis ball") == [("ball", {"tennis ball"})]
    assert names(finder, "the dog park is here") == [("park", {"dog park"})]


def test_a_verb_that_is_spelt_like_a_noun(finder: NounPhraseFinder) -> None:
    assert names(finder, "the boy swings over a chair") == [("boy", set()), ("chair", set())]
    assert [noun for noun, _ in names(finder, "the boy is on the swings")] == ["boy", "swing"]
    assert [noun for noun, _ in names(finder, "boys want swings")] == ["boy", "swing"]
    assert [noun for noun, _ in names(finder, "a man painting swings")] == ["man", "swing"]
    assert [noun for noun, _ in names(finder, "the boy quickly swings")] == ["boy"]
    assert [noun for noun, _ in names(finder, "boys swing")] == ["boy"]


def test_plurals_that_mean_something_else_stay(finder: NounPhraseFinder) -> None:
    assert finder.fold("glasses") == "glasses"
    assert finder.fold("dogs") == "dog"
    assert finder.fold("women") == "woman"
    assert finder.fold("unicorns") == "unicorns"  # no caption has a unicorn


def test_a_slip_of_the_pen_makes_no_singular() -> None:
    finder = NounPhraseFinder([*CAPTIONS, "A dog on the gras .", "The bu is by a bus .", "The bus is on a road ."])
    assert finder.fold("grass") == "grass"
    assert finder.fold("bus") == "bus"


def test_a_hot_dog_is_no_dog() -> None:
    finder = NounPhraseFinder([*CAPTIONS, "A hot dog on a plate .", "The hot dog is on a table .", "A hot dog ."])
    assert "dog" not in [noun for noun, _ in names(finder, "a hot dog on a plate")]
    assert names(finder, "a hot dog on a chair")[0] == ("hot dog", set())


def test_the_order_of_captions_changes_nothing(finder: NounPhraseFinder) -> None:
    other = NounPhraseFinder(reversed(CAPTIONS))
    assert (other.nouns, other.adjectives, other.countable) == (finder.nouns, finder.adjectives, finder.countable)


@pytest.mark.parametrize("captions", [[], [""], ["...", "?!"], ["犬が走る"], ["12 34 56"], ["the of a"]])
def test_captions_without_nouns(captions: list[str]) -> None:
    finder = NounPhraseFinder(captions)
    assert not finder.nouns
    assert [finder.find(caption) for caption in captions] == [[] for _ in captions]


def test_clauses_end_at_punctuation() -> None:
    assert list(split_clauses("A man's DOG, wet; dogs’ t-shirt!")) == [
        ("a", "man", "dog"),
        ("wet",),
        ("dogs", "t-shirt"),
    ]
