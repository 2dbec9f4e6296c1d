"""Queries for parts of pictures: how they are made, what is right, and what is measured."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.sample_collections import NOWHERE, sorted_places
from evaluation.sample_photos import THINGS, photos
from polysem.data import open_collection
from polysem.data.collection import Box, Collection, Item
from polysem.errors import ConfigError, InputError, PolysemError
from polysem.evaluation import evaluate, protocols
from polysem.evaluation.part_queries import make_queries
from polysem.evaluation.reports.compare import compare
from polysem.evaluation.reports.tables import as_plain
from polysem.inspection.diagnose.error_analysis import NameFinder
from synthetic.fake_art import make_fake_scenes

IRREGULAR = {"man": "men", "child": "children"}


def objects() -> Collection:
    """What the captions do not say, the boxes do."""
    things = [[("tree", None)], [("fir tree", "green")], [("apple", "red"), ("dog", None)], [("apple", "green")]]
    things += [[("hot dog", None), ("sun", None)], [("jeans", "blue"), ("corn", None), ("dog", None)]]
    things += [[("car", None)], [("taxi", None)]]
    items = [
        Item(
            f"{number}.png",
            NOWHERE,
            ("a scene .",),
            tuple(name for name, _ in own),
            "test",
            tuple(Box(name, 0, 0, 9, 9, "thing", colour) for name, colour in own),
        )
        for number, own in enumerate(things)
    ]
    return Collection("scenes", "features", items)


def options(**values: Any) -> Any:
    return protocols.find("parts").with_options(**values)


def asked(collection: Collection, **values: Any) -> dict[str, tuple[str, list[int]]]:
    """Of every query its text and the pictures it is right for."""
    gallery = options(**values).gallery(collection)
    texts = {name: text for item in gallery for name, text in zip(item.caption_ids, item.captions, strict=True)}
    return {name: (text, [i for i, item in enumerate(gallery) if name in item.labels]) for name, text in texts.items()}


# ---------------------------------------------------------------------------------------------------------- the truth


def test_right_are_the_pictures_any_of_whose_captions_names_it() -> None:
    collection, shown = photos()
    found = asked(collection, least=1, share=1.0)
    for thing in (*THINGS, "man"):
        assert found[f"nouns/{thing}"][1] == [i for i, own in enumerate(shown) if thing in own], thing
    phrases = sorted({name for own in shown for name in own if " " in name})
    assert sorted(name.removeprefix("phrases/") for name in found if name.startswith("phrases/")) == phrases
    for phrase in phrases:
        assert found[f"phrases/{phrase}"][1] == [i for i, own in enumerate(shown) if phrase in own], phrase


def test_a_word_searched_in_the_captions_finds_the_same() -> None:
    """The obvious twin: a regular expression for the word and its plural."""
    collection, _ = photos(seed=1)
    for name, (_, items) in asked(collection, least=1, share=1.0).items():
        words = name.partition("/")[2]
        pattern = re.compile(rf"\b({words}s?|{words[:-3]}{IRREGULAR.get(words, words)})\b")
        assert items == [i for i, item in enumerate(collection) if any(map(pattern.search, item.captions))], name


def test_queries_read_as_people_ask() -> None:
    found = {name: text for name, (text, _) in asked(photos()[0], least=1, share=1.0).items()}
    assert found["nouns/elephant"] == "an elephant"
    assert found["nouns/man"] == "a man"
    assert found["nouns/grass"] == "grass"
    assert found["phrases/brown dog"] == "a brown dog"
    other = {n: text for n, (text, _) in asked(photos()[0], least=1, share=1.0, prompt="a photo of a {} .").items()}
    assert other["nouns/elephant"] == "a photo of an elephant ."
    assert other["nouns/water"] == "a photo of water ."
    assert asked(photos()[0], prompt="{}")["nouns/dog"][0] == "dog"


def test_limits() -> None:
    collection, _ = photos()
    every, some = asked(collection, least=1, share=1.0), asked(collection, least=8, share=0.3)
    assert some == {name: each for name, each in every.items() if 8 <= len(each[1]) <= 18}
    assert 0 < len(some) < len(every)


def test_some_of_the_queries_are_always_the_same() -> None:
    collection, _ = photos()
    every, few = asked(collection, least=1, share=1.0), asked(collection, least=1, share=1.0, most=3)
    assert few.items() <= every.items()
    assert [sum(name.startswith(kind) for name in few) for kind in ("nouns", "phrases")] == [3, 3]
    mixed = replace(collection, items=list(collection.items)[::-1])
    assert sorted(asked(mixed, least=1, share=1.0, most=3)) == sorted(few)
    assert asked(collection) == asked(collection)


def test_a_list_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "queries.txt"
    path.write_text("# mine\n\na dog\nBrown dogs\nis near the grass\na unicorn\n", encoding="utf-8")
    collection, shown = photos()
    found = asked(collection, queries=str(path))
    assert set(found) == {"nouns/dog", "phrases/brown dog", "phrases/is near the grass"}
    assert found["nouns/dog"] == ("a dog", [i for i, own in enumerate(shown) if "dog" in own])
    assert found["phrases/brown dog"] == ("a brown dog", [i for i, own in enumerate(shown) if "brown dog" in own])
    near = [i for i, item in enumerate(collection) if any("is near the grass" in text for text in item.captions)]
    assert found["phrases/is near the grass"][1] == near
    scores = np.random.default_rng(0).random((60, 3))
    stamp = str(evaluate(scores, collection, protocol=options(queries=path), intervals=False).stamp)
    assert "1 nouns and 2 phrases of queries.txt, 1 that no picture shows left out" in stamp


def test_objects_of_the_data_set_are_exact() -> None:
    found = asked(objects(), least=1, share=1.0)
    assert found == {
        "nouns/tree": ("a tree", [0, 1]),  # a fir tree is a tree
        "nouns/fir tree": ("a fir tree", [1]),
        "nouns/apple": ("an apple", [2, 3]),
        "nouns/dog": ("a dog", [2, 5]),  # a hot dog is none
        "nouns/hot dog": ("a hot dog", [4]),
        "nouns/sun": ("the sun", [4]),
        "nouns/jeans": ("a pair of jeans", [5]),
        "nouns/corn": ("an ear of corn", [5]),
        "nouns/car": ("a car", [6, 7]),
        "nouns/taxi": ("a taxi", [7]),
        "phrases/green fir tree": ("a green fir tree", [1]),
        "phrases/red apple": ("a red apple", [2]),
        "phrases/green apple": ("a green apple", [3]),
        "phrases/blue jeans": ("a pair of blue jeans", [5]),
    }
    assert asked(objects(), least=1, share=1.0, truth="labels").keys() == {n for n in found if n.startswith("nouns")}
    assert asked(objects(), least=1, share=1.0, prompt="{}")["phrases/blue jeans"][0] == "pair of blue jeans"


@pytest.mark.slow
def test_emoji_scenes_know_what_they_show(tmp_path: Path) -> None:
    entries = make_fake_scenes(tmp_path / "scenes", 60, 0, 64)
    collection = open_collection(tmp_path / "scenes")
    found = asked(collection, least=1, share=1.0)
    pairs = [[(thing["name"], thing["color"]) for thing in entry["objects"]] for entry in entries]
    for name in {name for own in pairs for name, _ in own} - {"fish", "car"}:
        assert found[f"nouns/{name}"][1] == [i for i, own in enumerate(pairs) if name in dict(own)], name
    for name, colour in {pair for own in pairs for pair in own if pair[1]} - {("car", "red")}:
        right = [i for i, own in enumerate(pairs) if (name, colour) in own]
        assert found[f"phrases/{colour} {name}"][1] == right
    # Captions name different parts of a picture: most leave something out, and together they name all.
    finder = NameFinder(name for own in pairs for name, _ in own)
    named = [
        [finder.find(caption) & set(dict(own)) for caption in item.captions]
        for item, own in zip(collection, pairs, strict=True)
    ]
    whole = [len(each) == len(dict(own)) for own, captions in zip(pairs, named, strict=True) for each in captions]
    assert np.mean(whole) < 0.3
    assert (
        np.mean([frozenset().union(*captions) == set(dict(own)) for own, captions in zip(pairs, named, strict=True)])
        > 0.9
    )


def test_captions_on_request_where_there_are_objects() -> None:
    collection, _ = photos()
    boxed = replace(collection, items=[replace(each, boxes=(Box("house", 0, 0, 1, 1),)) for each in collection])
    assert list(asked(boxed, share=1.0)) == ["nouns/house"]
    assert asked(boxed, truth="captions") == asked(collection)


def test_a_few_pictures_with_objects_do_not_speak_for_all() -> None:
    collection, _ = photos()
    boxed = [replace(item, boxes=(Box("house", 0, 0, 1, 1),)) for item in collection.items[:20]]
    assert asked(replace(collection, items=[*boxed, *collection.items[20:]])) == asked(collection)


def test_pictures_without_captions_are_no_wrong_answers() -> None:
    collection, _ = photos()
    more = replace(collection, items=[*collection, Item("bare.jpg", NOWHERE, split="test")])
    assert len(options().gallery(more)) == len(collection)
    known = replace(objects(), items=[*objects(), more[60]])  # where objects are known, it has none
    assert len(options(least=1, share=1.0).gallery(known)) == 9


# -------------------------------------------------------------------------------------------------------- the figures


def measured(seed: int = 0, **values: Any) -> tuple[Any, Any, np.ndarray]:
    collection, _ = photos()
    protocol = options(least=2, share=1.0, rare=6, **values)
    gallery = protocol.gallery(collection)
    scores = np.round(np.random.default_rng(seed).random((len(gallery), len(gallery.captions))), 2)  # with ties
    return evaluate(scores, collection, protocol=protocol), gallery, scores


def test_map_and_precision_are_their_definitions() -> None:
    found, gallery, scores = measured()
    values: dict[str, list[tuple[float, float]]] = {}
    names = [name for item in gallery for name in item.caption_ids]
    for query, name in enumerate(names):
        right = [i for i, item in enumerate(gallery) if name in item.labels]
        places = sorted_places(scores[:, query].tolist(), right)
        average = sum((n + 1) / (place + 1) for n, place in enumerate(places)) / len(right)
        figures = 100 * average, 100 * sum(place < 10 for place in places) / 10
        kind = name.partition("/")[0]
        for group in (kind, f"rare_{kind}") if len(right) <= 6 else (kind,):
            values.setdefault(group, []).append(figures)
    assert set(found.metrics) == set(values)
    assert set(values) >= {"nouns", "phrases", "rare_phrases"}
    for group, each in values.items():
        np.testing.assert_allclose(
            [found.metrics[group]["map"], found.metrics[group]["precision10"]], np.mean(each, axis=0)
        )
        assert found.metrics[group]["queries"] == len(each)
        low, high = found.intervals[f"{group}.map"]
        assert low <= found.metrics[group]["map"] <= high
    assert "rsum" not in found.metrics


def test_a_perfect_model_has_a_hundred() -> None:
    collection, _ = photos()
    gallery = options().gallery(collection)
    names = [name for item in gallery for name in item.caption_ids]
    scores = np.array([[float(name in item.labels) for name in names] for item in gallery])
    found = evaluate(scores, collection, protocol="parts")
    assert found.metrics["nouns"]["map"] == found.metrics["phrases"]["map"] == 100
    assert found.intervals["nouns.map"] == (100, 100)
    assert evaluate(np.zeros_like(scores), collection, protocol="parts").metrics["nouns"]["map"] < 50  # ties are wrong


def test_phrases_of_one_noun_are_drawn_together() -> None:
    found, gallery, _ = measured()
    names = [name for item in gallery for name in item.caption_ids if name.startswith("phrases/")]
    clusters = found.per_query["phrases"].clusters
    nouns = [name.rpartition(" ")[2] for name in names]
    assert len(set(clusters.tolist())) == len(set(nouns)) < len(nouns)
    assert len({*zip(clusters.tolist(), nouns, strict=True)}) == len(set(nouns))


def test_the_stamp_says_how_queries_were_made() -> None:
    found, gallery, _ = measured()
    text = str(found.stamp)
    assert f"toys test, 60×{len(gallery.captions)}, mAP and precision@10, inductive" in text
    assert re.search(r"\d+ nouns and \d+ phrases in 2 pictures or more and at most 100 % of them", text)
    assert 'truth by captions (noun phrases v1), asked as "a {}", rare: 6 pictures or fewer, queries ' in text
    assert found.stamp.as_dict()["resampled"] == "nouns"


def test_models_are_compared_on_the_same_queries_alone() -> None:
    (one, _, _), (two, _, _), (other, _, _) = measured(), measured(seed=1), measured(prompt="{}")
    table = compare([one, two])
    assert table.columns[:2] == ("nouns.map", "nouns.precision10")
    assert all(row.cells["nouns.map"].interval is not None for row in table.rows)
    low, high = next(row.cells["nouns.map"].difference for row in table.rows if row.cells["nouns.map"].difference)
    assert low < high
    text = as_plain(table)
    for part in ("bootstrapped over nouns", "sign-flip test over nouns", "rare phrases", "P@10"):
        assert part in text
    with pytest.raises(InputError, match="not measured alike"):
        compare([one, other])


def test_rankings_as_trec_files_name_the_queries(tmp_path: Path) -> None:
    collection, _ = photos()
    gallery = options().gallery(collection)
    scores = np.random.default_rng(0).random((60, len(gallery.captions)))
    evaluate(scores, collection, protocol="parts", trec_folder=tmp_path, intervals=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t2i.qrels", "t2i.run"]
    assert "nouns/ball 0 " in (tmp_path / "t2i.qrels").read_text()


# ------------------------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("captions", "says"),
    [
        ((), "toys has no captions"),
        (("quickly slowly",), "no noun in 5 pictures or more that the captions name.*3 pictures.*--option least=1"),
    ],
)
def test_nothing_to_ask_for(captions: tuple[str, ...], says: str) -> None:
    items = [Item(f"{number}.jpg", NOWHERE, captions, (), "test") for number in range(3)]
    with pytest.raises(InputError, match=says):
        evaluate(np.zeros((3, 3)), Collection("toys", "features", items), protocol="parts")


def test_files_of_queries_that_are_none(tmp_path: Path) -> None:
    collection, _ = photos()
    (tmp_path / "empty.txt").write_text("# nothing\n")
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfe\x00\xd8")
    (tmp_path / "absent.txt").write_text("a unicorn\n")
    for name, says in (
        ("nowhere.txt", "nowhere.txt cannot be read.*a query on each line"),
        ("odd.txt", "odd.txt cannot be read"),
        ("empty.txt", "empty.txt holds no query.*such as: a brown dog"),
        ("absent.txt", "nothing to ask for: no noun of .*absent.txt.*Write other queries"),
    ):
        with pytest.raises(InputError, match=says):
            options(queries=str(tmp_path / name)).gallery(collection)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"prompt": "a dog"}, r"needs \{\} once, got 'a dog'"),
        ({"least": 0}, "least.*got 0"),
        ({"share": 1.5}, "share.*got 1.5"),
        ({"truth": "guesses"}, "truth.*got 'guesses'"),
        ({"depth": 5}, "depth"),
    ],
)
def test_options_that_make_no_sense(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError if "depth" not in values else PolysemError, match=says):
        options(**values)


@pytest.mark.parametrize("truth", ["objects", "labels"])
def test_a_truth_that_is_not_there(truth: str) -> None:
    with pytest.raises(InputError, match=rf"toys has no {truth} here.*--option truth=captions"):
        options(truth=truth).gallery(photos()[0])


def test_scores_of_other_queries() -> None:
    with pytest.raises(InputError, match=r"60 images and \d+ queries here.*\(images, queries\)"):
        evaluate(np.zeros((60, 3)), photos()[0], protocol="parts")


def test_make_queries_counts_positions() -> None:
    collection, shown = photos()
    queries = make_queries(collection, "captions", "a {}", least=1, share=1.0)
    dog = next(query for query in queries if query.name == "dog")
    assert (dog.kind, dog.text, dog.id, dog.noun) == ("nouns", "a dog", "nouns/dog", "dog")
    assert dog.items == tuple(i for i, own in enumerate(shown) if "dog" in own)
