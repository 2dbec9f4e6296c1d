import copy
import json
import pickle
from pathlib import Path

import pytest
import torch

import polysem
from polysem.errors import ConfigError, InputError, UnknownNameError
from polysem.pooling import GPO

FOLDERS = [polysem.pooling, polysem.sets, polysem.similarity, polysem.objectives]
EVERY_PART = [(folder, name) for folder in FOLDERS for name in folder.names()]


def build(folder, name, **knobs):
    known = {knob.name: knob.default for knob in folder.describe(name).knobs}
    widths = {"dim": 8} if "dim" in known else {}
    if known.get("input_dim") == "required":
        widths["input_dim"] = 8
    if "members" in known:
        knobs = {"members": [{"name": "attention_pooling", "hidden": 6}], **knobs}
    return folder.build(name, **widths, **knobs)


def test_every_folder_holds_what_the_documentation_promises():
    poolings = "mean max kmax softpool gpo adpool fspool lip adapool seq2seq gcn selfattention"
    assert set(polysem.pooling.names()) == set(poolings.split())
    sets = "slots transformer pie_net attention_pooling competing_readings ensemble single global_feature"
    sets += " semantic_sharing dscmr"
    assert set(polysem.sets.names()) == set(sets.split())
    assert set(polysem.similarity.names()) == {
        "smooth_chamfer",
        "chamfer",
        "mil",
        "match_probability",
        "soft_maximum",
        "cosine",
    }
    assert set(polysem.objectives.names()) == {
        *("triplet", "infonce", "adopt", "mmd", "diversity"),
        *("semantic_sharing", "dscmr"),
    }


@pytest.mark.parametrize(("folder", "name"), EVERY_PART)
def test_a_config_is_json_and_rebuilds_its_part(folder, name):
    part = build(folder, name)
    config = json.loads(json.dumps(part.config))
    rebuilt = folder.build(**config)
    assert rebuilt.config == part.config == config
    assert folder.registry.current_name(rebuilt.config["name"]) == name
    assert type(rebuilt) is type(part)
    rebuilt.load_state_dict(part.state_dict())


@pytest.mark.parametrize(
    ("folder", "former", "name"),
    [
        (polysem.sets, "chorus", "ensemble"),
        (polysem.sets, "readings", "attention_pooling"),
        (polysem.sets, "classes", "semantic_sharing"),
        (polysem.sets, "common", "dscmr"),
        (polysem.sets, "summary", "global_feature"),
        (polysem.objectives, "labels", "semantic_sharing"),
    ],
)
def test_a_part_keeps_its_former_name_in_configs_and_is_listed_by_its_present_one(folder, former, name):
    """A fingerprint hashes the config: a model saved under the former name must keep its own."""
    part = build(folder, name)
    assert part.config["name"] == former
    assert part.registered_name == name
    assert former not in folder.names()
    assert folder.describe(former).name == name
    assert type(folder.build(**part.config)) is type(part)
    folder.check(former)


def test_the_shipped_model_is_rebuilt_to_the_configs_it_was_saved_with():
    shipped = Path(polysem.__file__).parent / "models" / "shipped" / "photo-small" / "config.json"
    model = json.loads(shipped.read_text(encoding="utf-8"))["model"]
    for side in ("image", "text"):
        assert polysem.sets.build(**model[side]["sets"]).config == model[side]["sets"]


def test_a_name_belongs_to_one_part():
    with pytest.raises(ConfigError, match=r"'gpo'.*polysem\.pooling\.gpo\.GPO"):

        @polysem.pooling.registry.register("gpo")
        class Another(GPO):
            pass


@pytest.mark.parametrize(("folder", "name"), EVERY_PART)
def test_every_part_describes_itself_and_its_knobs(folder, name):
    info = folder.describe(name)
    assert info.name == name
    assert len(info.summary) > 20
    assert {knob.name for knob in info.knobs} == set(build(folder, name).config) - {"name"}


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config.__setitem__("dim", 3),
        lambda config: config.update(dim=3),
        lambda config: config.pop("dim"),
        lambda config: config.clear(),
        lambda config: config.setdefault("x", 1),
        lambda config: config.__ior__({"dim": 3}),
    ],
)
def test_a_config_is_frozen(change):
    part = GPO(dim=8)
    with pytest.raises(TypeError, match="frozen"):
        change(part.config)
    assert part.config["dim"] == 8


def test_a_config_survives_copying_and_pickling():
    part = GPO(dim=8)
    assert copy.deepcopy(part).config == part.config
    assert pickle.loads(pickle.dumps(part.config)) == part.config
    assert hash(part.config) == hash(GPO(dim=8).config)


def test_construction_by_class_and_by_name_give_the_same_config():
    assert GPO(8, generator="mlp").config == polysem.pooling.build("gpo", dim=8, generator="mlp").config


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_unknown_name_lists_the_known_ones(folder):
    with pytest.raises(UnknownNameError) as error:
        folder.build("smooth_chamfre")
    assert all(name in str(error.value) for name in folder.names())


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'smooth_chamfer'"):
        polysem.similarity.build("smooth_chamfre")


@pytest.mark.parametrize(("folder", "name"), EVERY_PART)
def test_an_unknown_knob_lists_the_known_ones(folder, name):
    with pytest.raises(UnknownNameError) as error:
        build(folder, name, dimm=3)
    assert "dimm" in str(error.value)
    assert all(knob.name in str(error.value) for knob in folder.describe(name).knobs)


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"dim": "64"}, "dim: .*valid integer.*'64'"),
        ({"dim": 0}, "dim: .*greater than 0"),
        ({"dim": 8, "generator": "lstm"}, "generator: .*'bigru'.*lstm"),
        ({"dim": 8, "temperature": -1.0}, "temperature: .*greater than 0"),
        ({"dim": 8, "per_dimension": 1}, "per_dimension: .*boolean"),
        ({"dim": 8, "d_pe": 31}, "d_pe: .*multiple of 2"),
    ],
)
def test_a_knob_of_the_wrong_type_or_range_is_named(knobs, says):
    with pytest.raises(ConfigError, match=says):
        polysem.pooling.build("gpo", **knobs)


def test_a_missing_knob_is_named():
    with pytest.raises(ConfigError, match="dim: Field required"):
        polysem.pooling.build("lip")


@pytest.mark.parametrize(
    ("folder", "knobs", "says"),
    [
        (polysem.pooling, {"name": "gpo", "per_dimension": True}, "give dim"),
        (polysem.pooling, {"name": "gpo", "dim": 8, "generator": "interpolation", "feature_input": True}, "no input"),
        (polysem.pooling, {"name": "adpool", "dim": 8, "token_level": False, "embedding_level": False}, "both off"),
        (polysem.pooling, {"name": "selfattention", "dim": 9}, "does not divide"),
        (polysem.sets, {"name": "slots", "dim": 8, "input_dim": 7, "position": "sine"}, "even"),
        (polysem.objectives, {"name": "triplet", "mining": [(1, "all")]}, "from 0"),
        (polysem.objectives, {"name": "triplet", "mining": []}, "from 0"),
        (polysem.objectives, {"name": "triplet", "mining": [(0, "all"), (0, "hardest")]}, "ascending"),
    ],
)
def test_impossible_combinations_are_refused(folder, knobs, says):
    with pytest.raises(ConfigError, match=says):
        folder.build(**knobs)


def test_official_tensors_that_are_missing_foreign_or_misshapen_are_named():
    part = polysem.sets.build("pie_net", dim=4)
    state = {theirs: part.state_dict()[ours] for theirs, ours in part.official_keys.items()}
    assert part.load_official(state) is part
    with pytest.raises(InputError, match=r"no tensor for 'fc\.bias'"):
        part.load_official({name: tensor for name, tensor in state.items() if name != "fc.bias"})
    with pytest.raises(UnknownNameError, match=r"fc\.scale"):
        part.load_official({**state, "fc.scale": torch.zeros(1)})
    with pytest.raises(InputError, match=r"\(9,\).*\(4,\)"):
        part.load_official({**state, "fc.bias": torch.zeros(9)})


def test_a_part_that_nobody_released_says_so():
    with pytest.raises(ConfigError, match="no released counterpart"):
        polysem.pooling.build("mean").load_official({})


def test_a_config_is_frozen_all_the_way_down():
    triplet = polysem.objectives.build("triplet", mining=[(0, "all"), (1, "hardest")])
    single = polysem.sets.build("single", dim=8, pooling="kmax", knobs={"k": 3})
    with pytest.raises(TypeError, match="frozen"):
        triplet.config["mining"].append([5, "all"])
    with pytest.raises(TypeError, match="frozen"):
        triplet.config["mining"][0][0] = 7
    with pytest.raises(TypeError, match="frozen"):
        single.config["knobs"]["k"] = 7
    for part, folder in ((triplet, polysem.objectives), (single, polysem.sets)):
        assert folder.build(**json.loads(json.dumps(part.config))).config == part.config
        assert pickle.loads(pickle.dumps(part.config)) == part.config


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: polysem.pooling.KMax(8, 5, 99), "too many positional"),
        (lambda: polysem.pooling.KMax(8, dim=16), "multiple values"),
        (lambda: polysem.similarity.build("smooth_chamfer", alpha=float("inf")), "finite"),
        (lambda: polysem.objectives.build("triplet", margin=float("nan")), "finite"),
        (lambda: polysem.sets.build("single", dim=8, pooling="kmax", knobs={"k": torch.ones(1)}), "Cannot build"),
        (lambda: polysem.pooling.build(3), "Unknown pooling '3'"),
    ],
)
def test_constructor_arguments_never_vanish(make, says):
    with pytest.raises(polysem.PolysemError, match=says):
        make()


def test_types_are_shown_with_their_choices_and_bounds():
    shown = {knob.name: knob.type for knob in polysem.sets.describe("slots").knobs}
    assert shown["dim"] == "int > 0"
    assert shown["input_dim"] == "int > 0 | None"
    assert shown["dropout"] == "float ≥ 0 < 1"
    assert shown["position"] == "'none' | 'sine'"
    mining = {knob.name: knob.type for knob in polysem.objectives.describe("triplet").knobs}["mining"]
    assert mining == "'all' | 'hardest' | 'semi_hard' | list[tuple[int ≥ 0, 'all' | 'hardest' | 'semi_hard']]"


def test_a_part_without_its_method_cannot_be_made():
    class Unfinished(polysem.pooling.Pooling):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Unfinished()
