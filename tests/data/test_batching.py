from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polysem.data.batching import Batches
from polysem.data.collection import Collection, Item, Media, normalise_caption
from polysem.errors import InputError


def collection(captions: list[list[str]]) -> Collection:
    media = Media(Path("."), "x.png")
    return Collection("toy", "image", [Item(f"i{n}", media, tuple(texts)) for n, texts in enumerate(captions)])


def numbered(counts: list[int]) -> Collection:
    return collection([[f"image {i} caption {c}" for c in range(count)] for i, count in enumerate(counts)])


@pytest.mark.parametrize("captions", ["one", "all", 2, 3])
def test_an_epoch_visits_every_caption_of_full_batches_once(captions):
    batches = Batches(numbered([5] * 12), 4, captions, seed=1)
    seen = np.concatenate([batch.captions for batch in batches.epoch(0)])
    assert sorted(seen) == list(range(60))
    assert len(batches) == len(list(batches.epoch(0)))


def test_all_captions_of_an_image_come_together_and_match_it_alone():
    for batch in Batches(numbered([5, 3, 4, 5]), 2, "all").epoch(0):
        for column, (caption, row) in enumerate(zip(batch.captions, batch.owner_rows, strict=True)):
            assert numbered([5, 3, 4, 5]).caption_items[caption] == batch.images[row]
            assert batch.positives[:, column].tolist() == [r == row for r in range(len(batch.images))]


def test_an_image_stands_once_in_a_batch():
    for batch in Batches(numbered([5] * 10), 4, "one").epoch(3):
        assert len(set(batch.images.tolist())) == len(batch.images)


def test_a_short_last_batch_is_dropped_unless_it_is_the_only_one():
    assert [len(b.images) for b in Batches(numbered([1] * 10), 4, "all").epoch(0)] == [4, 4]
    assert [len(b.images) for b in Batches(numbered([1] * 3), 4, "all").epoch(0)] == [3]


def test_images_with_fewer_captions_leave_the_later_visits():
    batches = Batches(numbered([1, 3, 3, 1]), 2, "one")
    seen = np.concatenate([batch.captions for batch in batches.epoch(0)])
    assert sorted(seen) == list(range(8))


def test_the_same_text_on_two_images_is_never_a_negative():
    same = collection([["A dog runs.", "one"], ["a  dog runs", "two"], ["three", "four"]])
    for epoch in range(3):
        for batch in Batches(same, 3, "all", seed=epoch).epoch(epoch):
            rows = {int(image): row for row, image in enumerate(batch.images)}
            for column, caption in enumerate(batch.captions):
                if normalise_caption(same.captions[caption]) == "a dog runs":
                    assert batch.positives[rows[0], column]
                    assert batch.positives[rows[1], column]
                    assert not batch.positives[rows[2], column]


def test_a_shared_text_counts_though_only_one_of_its_captions_is_in_the_batch():
    same = collection([["a dog", "x"], ["y", "a dog"]])
    found = set()
    for epoch in range(20):
        for batch in Batches(same, 2, "one").epoch(epoch):
            for column, caption in enumerate(batch.captions):
                if same.captions[caption] == "a dog":
                    assert batch.positives[:, column].all()
                    found.add(int(caption))
    assert found == {0, 3}


def test_order_is_a_function_of_seed_and_epoch_and_can_begin_anywhere():
    batches = Batches(numbered([5] * 20), 4, "one", seed=7)
    whole = list(batches.epoch(2))
    again = list(Batches(numbered([5] * 20), 4, "one", seed=7).epoch(2, start=9))
    assert len(again) == len(whole) - 9
    for one, other in zip(whole[9:], again, strict=True):
        assert one.images.tolist() == other.images.tolist()
        assert one.captions.tolist() == other.captions.tolist()
    assert [b.images.tolist() for b in batches.epoch(3)] != [b.images.tolist() for b in whole]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_processes_share_whole_images_with_their_captions(world_size):
    batch = next(iter(Batches(numbered([5, 2, 3, 1, 4, 5, 2]), 7, "all").epoch(0)))
    shares = [batch.share(rank, world_size) for rank in range(world_size)]
    assert np.concatenate([batch.images[rows] for rows, _ in shares]).tolist() == batch.images.tolist()
    assert np.concatenate([batch.captions[columns] for _, columns in shares]).tolist() == batch.captions.tolist()
    for rows, columns in shares:
        assert set(batch.owner_rows[columns].tolist()) == set(range(rows.start, rows.stop))


def test_a_collection_without_captions_is_refused():
    with pytest.raises(InputError, match="no captions"):
        Batches(numbered([0, 0]), 2)


def test_a_single_image_is_refused():
    with pytest.raises(InputError, match="at least two"):
        Batches(numbered([5]), 2)


def test_one_caption_more_than_the_rest_makes_no_batch_without_negatives():
    batches = Batches(numbered([5] * 23 + [6]), 6, "one")
    assert all(len(batch.images) >= 4 for batch in batches.epoch(0))
    assert len(batches) == len(list(batches.epoch(0))) == 20


def test_a_collection_smaller_than_a_batch_still_shows_every_caption():
    batches = Batches(numbered([5] * 6), 128, "one")
    assert sorted(np.concatenate([batch.captions for batch in batches.epoch(0)])) == list(range(30))


PHRASES = [(0, 1, 2), (2,), (4, 5)]


def test_a_batch_has_a_phrase_of_each_image_that_has_one_and_each_once():
    data = numbered([2] * 6)
    for captions in ("one", "all"):
        for batch in Batches(data, 3, captions, seed=2, phrases=PHRASES).epoch(0):
            phrases = batch.captions[batch.phrases] - 12
            assert len(set(phrases.tolist())) == len(phrases)
            for image in batch.images.tolist():
                own = {number for number, items in enumerate(PHRASES) if image in items}
                assert not own or own & set(phrases.tolist())
            for column in np.flatnonzero(batch.phrases):
                items = PHRASES[batch.captions[column] - 12]
                assert batch.positives[:, column].tolist() == [image in items for image in batch.images]
                assert batch.images[batch.owner_rows[column]] in items
            assert (np.diff(batch.owner_rows) >= 0).all()


def test_phrases_leave_the_captions_of_batches_as_they_are_and_a_later_start_draws_the_same():
    data = numbered([3] * 8)
    plain = list(Batches(data, 4, "one", seed=5).epoch(1))
    with_phrases = Batches(data, 4, "one", seed=5, phrases=PHRASES)
    for before, after in zip(plain, with_phrases.epoch(1), strict=True):
        assert before.phrases is None
        assert before.captions.tolist() == after.captions[~after.phrases].tolist()
        assert (before.positives == after.positives[:, ~after.phrases]).all()
    resumed = [batch.captions.tolist() for batch in with_phrases.epoch(1, start=2)]
    assert resumed == [batch.captions.tolist() for batch in with_phrases.epoch(1)][2:]
    drawn = {tuple(batch.captions[batch.phrases]) for epoch in range(8) for batch in with_phrases.epoch(epoch)}
    assert len(drawn) > 3
