import pytest
from PIL import Image, ImageDraw

from polysem.errors import ConfigError
from polysem.synthetic.scenes.art import find_dominant_colour
from polysem.synthetic.scenes.catalogue import (
    are_confusable,
    choose_article,
    clean_name,
    definite_phrase,
    indefinite_phrase,
    join_phrases,
    name_noun,
    parse_kinds,
    split_tokens,
    to_sentence,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dog", "dogs"),
        ("fox", "foxes"),
        ("bus", "buses"),
        ("butterfly", "butterflies"),
        ("turkey", "turkeys"),
        ("mouse", "mice"),
        ("goose", "geese"),
        ("wolf", "wolves"),
        ("sheep", "sheep"),
        ("tropical fish", "tropical fish"),
        ("jellyfish", "jellyfish"),
        ("octopus", "octopuses"),
        ("tomato", "tomatoes"),
        ("sandwich", "sandwiches"),
        ("snowman", "snowmen"),
        ("bread", "loaves of bread"),
        ("person doing yoga", "people doing yoga"),
        ("slice of cake", "slices of cake"),
        ("T-Rex", "T-Rexes"),
    ],
)
def test_plurals(name, expected):
    assert name_noun(name, several=True) == expected


def test_articles_follow_the_sound():
    assert [choose_article(word) for word in ("apple", "orange cat", "unicorn", "house", "egg", "T-Rex", "hour")] == [
        *("an", "an", "a", "a", "an", "a", "an")
    ]


def test_noun_phrases():
    assert indefinite_phrase("apple", 1, "red") == "a red apple"
    assert indefinite_phrase("apple", 1, "orange") == "an orange apple"
    assert indefinite_phrase("dog", 2) == "two dogs"
    assert indefinite_phrase("sun") == "the sun"
    assert indefinite_phrase("jeans", 1, "blue") == "a pair of blue jeans"
    assert indefinite_phrase("grapes", 3, "purple") == "three bunches of purple grapes"
    assert definite_phrase("dog", 2, "brown") == "the two brown dogs"
    assert definite_phrase("corn") == "the ear of corn"


def test_lists_sentences_and_tokens():
    assert join_phrases(["a dog"]) == "a dog"
    assert join_phrases(["a dog", "a cat", "two trees"]) == "a dog, a cat and two trees"
    assert to_sentence("a dog  and a cat ") == "A dog and a cat."
    assert to_sentence("look, a dog !") == "Look, a dog!"
    assert split_tokens("A T-Rex, and the man's hat!") == ["a", "t-rex", "and", "the", "man's", "hat"]


def test_names_of_the_package_become_everyday_words():
    assert clean_name(":dog:") == "dog"
    assert clean_name(":hot_dog:") == "hot dog"
    assert clean_name(":automobile:") == "car"


def test_a_catalogue_refuses_one_name_for_two_kinds_and_two_names_for_one():
    with pytest.raises(ConfigError, match="both called 'x'"):
        parse_kinds("animal | land | .3 | a b", lambda glyph: "x")
    with pytest.raises(ConfigError, match="different names: a, b"):
        parse_kinds("animal | land | .3 | a=b", lambda glyph: glyph)


def test_a_kind_and_its_special_case_are_confusable():
    tree, fir, dog, fish, shark = parse_kinds(
        "x | land | .3 | tree fir_tree dog fish shark", lambda glyph: glyph.replace("_", " ")
    )
    assert are_confusable(tree, fir)
    assert are_confusable(fir, tree)
    assert are_confusable(shark, fish)
    assert not are_confusable(tree, dog)


def patch(**shares: int) -> Image.Image:
    """Stripes of colours, as wide as given."""
    codes = {"red": "#ea5a47", "dark": "#d22f27", "white": "#ffffff", "ink": "#000000", "amber": "#f1b31c"}
    codes |= {"yellow": "#fcea2b", "black": "#3f3f3f"}
    image, x = Image.new("RGBA", (100, 10)), 0
    for name, width in shares.items():
        ImageDraw.Draw(image).rectangle((x, 0, x + width - 1, 9), codes[name])
        x += width
    return image


def test_a_colour_is_named_only_when_it_clearly_leads():
    assert find_dominant_colour(patch(red=90, white=10)) == "red"
    assert find_dominant_colour(patch(red=40, dark=40, white=20)) == "red"
    assert find_dominant_colour(patch(red=20, ink=80)) == "red"
    assert find_dominant_colour(patch(white=60, black=40)) is None
    assert find_dominant_colour(patch(white=70, black=30)) is None
    assert find_dominant_colour(patch(yellow=60, amber=40)) == "yellow"
    assert find_dominant_colour(patch(amber=90, white=10)) is None
    assert find_dominant_colour(patch()) is None
