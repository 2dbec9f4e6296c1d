"""Former import paths of the public API work, and say where the name is now."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from polysem._deprecated import NAMES, REMOVED_IN
from polysem.data import Collection, Item, Media
from polysem.errors import InputError


@pytest.mark.parametrize("old", NAMES)
def test_a_former_path_gives_what_stands_at_the_new_one(old):
    module, _, name = old.partition(":")
    target, _, attribute = NAMES[old].partition(":")
    present, former = import_module(target), import_module(module)
    vars(former).pop(name, None)  # a removed module of the same name, imported by another test
    with pytest.warns(DeprecationWarning, match=f"{name} is now {target}.*polysem {REMOVED_IN}"):
        found = getattr(former, name)
    assert found is (getattr(present, attribute) if attribute else present)


def test_a_former_attribute_gives_what_the_new_one_does():
    from polysem.search import AddReport

    report = AddReport(1, 0, 0, 0, conflicts=["a"])
    with pytest.warns(DeprecationWarning, match=f"AddReport.clashes is now conflicts.*polysem {REMOVED_IN}"):
        assert report.clashes == ["a"]
    collection = Collection("toy", "image", [Item("a", Media(Path("x"), "a.png"))])
    with pytest.warns(DeprecationWarning, match=f"Collection.held_out is now hold_out.*polysem {REMOVED_IN}"):
        assert [len(part) for part in collection.held_out()] == [len(part) for part in collection.hold_out()]
    from polysem.search.filters import Field

    with pytest.warns(DeprecationWarning, match=f"Field.named is now from_keys.*polysem {REMOVED_IN}"):
        assert Field.named(("metadata", "year")) == Field(("year",))
    from polysem.inspection import Attention

    attention = Attention(torch.eye(2), torch.ones(1, 2, 1), "attention", global_weights=torch.ones(1))
    with pytest.warns(DeprecationWarning, match=f"Attention.common is now global_weights.*polysem {REMOVED_IN}"):
        assert attention.common is attention.global_weights
    from polysem.encoders import Preprocessing

    seen = Preprocessing(4, "crop", (0.5,) * 3, (0.5,) * 3, "bilinear")
    with pytest.warns(DeprecationWarning, match=f"Preprocessing.augmented is now augment.*polysem {REMOVED_IN}"):
        assert seen.augmented == seen.augment


def test_a_former_argument_does_what_the_new_one_does(tmp_path):
    from polysem.search import Index, Manifest

    with Index.create(tmp_path / "index", Manifest("mine", {"image": 1}, 2, {"name": "cosine"})) as index:
        empty = Collection("toy", "image", [])
        for former in (True, False):
            with (
                pytest.warns(DeprecationWarning, match=rf"replacing=….* is now replace.*polysem {REMOVED_IN}") as told,
                pytest.raises(InputError, match="model"),
            ):
                index.add(empty, replacing=former)
            assert told[0].filename == __file__
        with pytest.warns(DeprecationWarning, match="Index.pictures is now collect_files"):
            assert list(index.pictures([])) == []


def test_what_never_was_is_still_an_error():
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        getattr(import_module("polysem.sets"), "nothing_of_this_name")  # noqa: B009
    with pytest.raises(ImportError):
        import_module("polysem.no_such_module")
    assert "polysem.no_such_module" not in sys.modules
