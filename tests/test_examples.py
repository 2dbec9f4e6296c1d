"""The examples, run as their reader would run them, on stand-ins."""

import importlib
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from polysem.errors import InputError
from support import FIXTURES

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in ("tiny", "new_pooling"))


@pytest.fixture
def example(monkeypatch, tmp_path):
    """The module of a script, as `python examples/NAME.py` would find it, and what it caches out of the way."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    known = set(sys.modules)
    yield importlib.import_module
    for name in {*SCRIPTS, "tiny"} - known:
        sys.modules.pop(name, None)


def test_fine_tuning_measures_both_directions_with_all_captions(example, capsys):
    found = example("fine_tune").main(["--tiny"])
    assert set(found.metrics) >= {"i2t", "t2i", "rsum"}
    # 13 test pictures with 3 captions each: an image is asked about once, every caption once.
    assert len(found.per_query["i2t"].clusters) == 13
    assert len(found.per_query["t2i"].clusters) == 39
    assert "Text to image: R@1" in capsys.readouterr().out


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_a_checkpoint_with_two_towers_gives_frozen_patches(example, family, capsys):
    rsum = example("clip_features").main(["--tiny", "--family", family])
    assert 0 <= rsum <= 600
    # CLIP has a token for the whole picture beside its 4 x 4 patches.
    assert f"{17 if family == 'clip' else 16} patches of width 16 at 32 pixels" in capsys.readouterr().out


def test_an_authors_checkpoint_becomes_a_model(example, tmp_path):
    checkpoint = str(FIXTURES / "checkpoint_vse_infty_bigru.pth")
    scores = example("import_checkpoint").main([checkpoint, "--from", "vse-infty", "--out", str(tmp_path / "model")])
    assert scores.shape == (2, 2)
    assert (tmp_path / "model" / "config.json").is_file()


def test_mixed_lists_are_encoded_and_compared(example, capsys):
    best = example("encode_similarity").main(["--tiny"])
    assert len(best) == len(set(best)) == 4
    assert "7 items, each 2 vectors of width 32" in capsys.readouterr().out


def test_an_application_of_ones_own_searches(example, tmp_path):
    module = example("fastapi_app")
    with TestClient(module.build_app(module.make_index(tmp_path))) as client:
        found = client.get("/find", params={"q": "a red circle", "k": 5}).json()["results"]
        assert len({result["id"] for result in found}) == 5
        assert [result["score"] for result in found] == sorted((r["score"] for r in found), reverse=True)
        assert client.get("/find", params={"q": " "}).status_code == 422


def test_the_exported_files_rank_as_the_model_does(example, tmp_path):
    pytest.importorskip("onnxruntime")
    best = example("onnx_search").main(["--tiny"])
    tiny = example("tiny")
    model, pictures = tiny.model(tmp_path), tiny.pictures(tmp_path / "pictures")
    for name, score in best:
        own = model.similarity(model.encode([pictures / name]), model.encode(["a red circle"])).item()
        assert score == pytest.approx(own, abs=1e-5)
    assert len(best) == 4


def test_the_index_of_examples_names_them_all():
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"({path.name})" in page for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_says_how_to_run_it(example, script, capsys):
    with pytest.raises(SystemExit) as end:
        example(script).main(["--help"])
    assert end.value.code == 0
    assert f"python examples/{script}.py" in capsys.readouterr().out


def test_a_picture_given_as_a_str_is_a_mistake_that_is_named(example, tmp_path):
    tiny = example("tiny")
    picture = next(tiny.pictures(tmp_path / "pictures").glob("*.png"))
    with pytest.raises(InputError, match="takes every str for a text: write Path"):
        tiny.model(tmp_path).encode([str(picture)])
