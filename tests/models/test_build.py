"""Models that were trained apart, joined to one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import polysem
from polysem import models
from polysem.cli import app
from polysem.errors import InputError

WORDS = {"name": "bigru", "vocab_size": 9, "dim": 8, "word_dim": 6}


def model(seed: int, dim: int = 12, **image: Any) -> models.Model:
    torch.manual_seed(0)
    readings = {"name": "attention_pooling", "k": 1, "hidden": 8, "attention": 4}
    built = models.build(
        dim=dim,
        image={"encoder": {"name": "region", "input_dim": 10, "dim": 9, "form": "linear"}, "sets": readings, **image},
        text={"encoder": WORDS, "sets": readings},
        similarity={"name": "cosine"},
    )
    torch.manual_seed(seed)
    with torch.no_grad():
        for part in (built.image.sets, built.text.sets):
            for parameter in part.parameters():
                parameter.normal_()
    data = {"name": "photos", "items": ["a", f"only in {seed}"]}
    built.provenance = {"recipe": {"name": f"seed {seed}"}, "data": data, "selected_on": "val"}
    return built.eval()


REGIONS = [np.random.default_rng(i).normal(size=(3 + i, 10)).astype(np.float32) for i in range(3)]
TEXTS = [[4, 5], [6, 4, 7, 6, 4], [8]]


def test_its_sets_hold_the_vectors_of_all():
    apart = [model(seed) for seed in (1, 2, 3)]
    joined = models.join(apart)
    assert joined.set_sizes == (3, 3)
    for way, given in (("encode_images", REGIONS), ("encode_texts", TEXTS)):
        expected = torch.cat([getattr(each, way)(given) for each in apart], dim=1)
        torch.testing.assert_close(getattr(joined, way)(given), expected)
    assert [each["recipe"]["name"] for each in joined.provenance["joined"]] == ["seed 1", "seed 2", "seed 3"]
    assert joined.provenance["data"] == {"name": "photos", "items": ["a", "only in 1", "only in 2", "only in 3"]}
    assert joined.provenance["selected_on"] == "val"


def test_it_leaves_the_given_models_alone():
    first, second = model(1), model(2)
    joined = models.join([first, second])
    with torch.no_grad():
        for parameter in joined.parameters():
            parameter.zero_()
    assert first.fingerprint() == model(1).fingerprint()


def test_saved_and_loaded_it_is_the_same(tmp_path: Path):
    joined = models.join([model(1), model(2)], {"name": "smooth_chamfer", "alpha": 8.0})
    loaded = polysem.load(joined.save(tmp_path))
    assert loaded.fingerprint() == joined.fingerprint()
    assert loaded.similarity.config["alpha"] == 8.0


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: model(2, dim=16), "width 16"),
        (lambda: model(2, project={"name": "region", "form": "linear"}), "projects or pools"),
        (lambda: _moved(model(2)), "another image encoder"),
    ],
)
def test_what_does_not_fit_together_is_refused(other, said):
    with pytest.raises(InputError, match=said):
        models.join([model(1), other()])
    with pytest.raises(InputError, match="at least two"):
        models.join([model(1)])


def _moved(built: models.Model) -> models.Model:
    with torch.no_grad():
        next(built.image.encoder.parameters()).add_(1)
    return built


def test_one_sided_members_stay_so(tmp_path: Path):
    """Sets of 8 x 1 become sets of 16 x 2, in which each text vector chooses among the elements of its own member."""

    def uneven(seed: int) -> models.Model:
        torch.manual_seed(seed)
        image = {"encoder": {"name": "region", "input_dim": 10, "dim": 9, "form": "linear"}}
        image["sets"] = {"name": "competing_readings", "k": 8}
        text = {"encoder": WORDS, "sets": {"name": "competing_readings", "k": 1}}
        built = models.build(12, image, text, {"name": "soft_maximum", "alpha": 20.0})
        built.image.encoder.load_state_dict(model(1).image.encoder.state_dict())
        built.text.encoder.load_state_dict(model(1).text.encoder.state_dict())
        return built.eval()

    joined = models.join([uneven(1), uneven(2)])
    assert joined.set_sizes == (16, 2)
    assert joined.similarity.config == uneven(1).similarity.config
    assert joined.similarity(joined.encode_images(REGIONS), joined.encode_texts(TEXTS)).shape == (3, 3)
    assert models.join([uneven(1), model(2)]).similarity.config["name"] == "smooth_chamfer"
    folders = [str(uneven(seed).save(tmp_path / str(seed))) for seed in (1, 2)]
    result = CliRunner().invoke(app, ["join", *folders, "--out", str(tmp_path / "both"), "--alpha", "4"])
    assert result.exit_code == 0, result.output
    config = polysem.load(tmp_path / "both").similarity.config
    assert (config["name"], config["alpha"]) == ("soft_maximum", 4)


def test_the_command_joins_folders(tmp_path: Path):
    folders = [str(model(seed).save(tmp_path / str(seed))) for seed in (1, 2)]
    result = CliRunner().invoke(app, ["join", *folders, "--out", str(tmp_path / "both"), "--alpha", "4"])
    assert result.exit_code == 0, result.output
    assert "2 vectors per image" in result.output
    joined = polysem.load(tmp_path / "both")
    assert joined.similarity.config["alpha"] == 4
    torch.testing.assert_close(joined.encode_texts(TEXTS)[:, 1:], model(2).encode_texts(TEXTS))
