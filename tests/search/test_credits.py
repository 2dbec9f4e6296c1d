"""Whom to name for the pictures: from the data set's file to the index."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from polysem.data import open_collection
from polysem.search import Index
from search.photos import make_photos, tiny_model


@pytest.mark.slow
def test_a_credit_goes_with_the_pictures_into_the_index(tmp_path):
    photos = make_photos(tmp_path / "photos")
    entries = [{"filename": name, "split": "train", "sentences": []} for name in ("red.png", "blue.png")]
    (photos / "dataset_toy.json").write_text(json.dumps({"credit": "By A, CC BY 4.0.", "images": entries}))
    named = open_collection(photos)
    assert named.credit == named.split("train").credit == "By A, CC BY 4.0."
    with Index.create(tmp_path / "index", tiny_model(tmp_path)) as index:
        assert index.stats().credits == []
        index.add(replace(named, credit=""))
        assert index.stats().credits == []
        for credit in (named.credit, "By B.", named.credit):
            index.add(replace(named, credit=credit))
        assert index.stats().credits == ["By A, CC BY 4.0.", "By B."]
