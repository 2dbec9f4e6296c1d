"""A sweep: which runs it makes, that none is made twice, and that nothing is mixed up."""

from __future__ import annotations

import json

import pytest
import torch

from polysem.data import open_collection
from polysem.errors import ConfigError, InputError, UnknownNameError
from polysem.evaluation import protocols
from polysem.training.loop import TrainingLoop
from polysem.training.sweep import SweepObserver, plan_sweep, sweep
from polysem.training.sweep.plan import SweepPoint, parse_axis
from polysem.training.sweep.result import positions, validation_figures
from training.labelled import LAYERS, SHORT, WIDTHS, make_labelled
from training.small import TINY, WORDS, make_data

pytestmark = pytest.mark.slow

ONCE = (*TINY[:-1], "training.epochs=1", "training.captions=all")
SHARING = [*WIDTHS, *SHORT[:-1], *(f"image.sets.{knob}" for knob in LAYERS), "training.epochs=1"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data") / "toy")


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    return make_labelled(tmp_path_factory.mktemp("data") / "labelled")


def run(data, out, *settings, recipe="vse-infty", given=ONCE, **more):
    return sweep(recipe, [*given, *settings], data, out, tracker=None, **more)


class Trained(SweepObserver):
    """Which runs were trained, and which were found finished."""

    def __init__(self):
        self.now, self.earlier = [], []

    def end(self, run, trained):
        (self.now if trained else self.earlier).append((*run.values.values(), run.seed))


# ------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("objective.lambda=0,0.001,1e-2,10", (0, 0.001, 0.01, 10)),
        ("schedule.milestones=[5],[5,8]", ([5], [5, 8])),
        ("schedule.milestones=[5, 8]", ([5, 8],)),
        ("objective.mining=[[0,all],[1,hardest]],[[0,all]]", ([[0, "all"], [1, "hardest"]], [[0, "all"]])),
        ("optimiser.lr_scales={image: 0.1, text: 1},{}", ({"image": 0.1, "text": 1}, {})),
        ("summary='one, two',\"three\"", ("one, two", "three")),
        ("summary=don't, do", ("don't", "do")),
        ("optimiser.clip=null,2", (None, 2)),
        ("image.augment.drop=none,region", ("none", "region")),
        ("text.augment.words=true,false", (True, False)),
    ],
)
def test_values_are_parted_where_a_reader_would(given, values):
    key, found = parse_axis(given)
    assert key == given.partition("=")[0]
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("optimiser.lr", "path.to.key=value"),
        ("=1,2", "path.to.key=value"),
        ("optimiser.lr=", "there is no value"),
        ("optimiser.lr=1,,2", "comma with no value"),
        ("optimiser.lr=1,2,", "comma with no value"),
        ("optimiser.lr=0.1,1e-1", "0.1 and 1e-1 are the same"),
        ("optimiser.lr=1,2,1", "1 is given twice"),
        ("schedule.milestones=[5],[5", "not closed"),
        ("summary='a,b", "not closed"),
    ],
)
def test_values_that_cannot_be_meant(given, says):
    with pytest.raises(ConfigError, match=says):
        parse_axis(given)


def test_one_and_true_are_two_values():
    assert parse_axis("a.b=1,true") == ("a.b", (1, True))


def test_folders_are_named_by_the_values_and_never_shared():
    assert (
        SweepPoint({"objective.lambda": 1.0}).folder
        == SweepPoint({"objective.lambda": 1}).folder
        == "objective.lambda=1"
    )
    assert SweepPoint({"b": 1, "a": 2}).folder == SweepPoint({"a": 2, "b": 1}).folder
    assert SweepPoint({"data.glove": "a/b"}).folder != SweepPoint({"data.glove": "a_b"}).folder
    assert "/" not in SweepPoint({"data.glove": "a/b"}).folder
    assert len(SweepPoint({"summary": "x" * 500}).folder) < 150


# --------------------------------------------------------------------------------------------------------------- plan


def test_several_keys_make_a_grid_of_checked_recipes():
    found = plan_sweep("vse-infty", [*TINY, "optimiser.lr=1e-4,1e-3", "objective.margin=0.1,0.2,0.3"], seeds=(3, 4))
    assert found.keys == ("optimiser.lr", "objective.margin")
    assert len(found.points) == 6
    assert len(found.recipes) == 12
    recipe = found.recipes[SweepPoint({"optimiser.lr": 1e-3, "objective.margin": 0.3}).folder, 4]
    assert (recipe.optimiser.lr, recipe.objective["margin"], recipe.training.seed) == (1e-3, 0.3, 4)
    assert recipe.dim == 16


def test_the_seed_is_the_recipes_unless_given():
    assert plan_sweep("vse-infty", ["optimiser.lr=1e-4,1e-3"]).seeds == (0,)
    assert plan_sweep("vse-infty", ["optimiser.lr=1e-4,1e-3", "training.seed=7"]).seeds == (7,)


@pytest.mark.parametrize(
    ("settings", "seeds", "error", "says"),
    [
        ([], (), ConfigError, "Nothing to sweep"),
        (["optimiser.lr=1e-3"], (0, 1), ConfigError, "Nothing to sweep"),
        (["optimiser.rl=1,2"], (), ConfigError, "optimiser.rl"),
        (["objective.lamda=1,2"], (), UnknownNameError, "lamda"),
        (["optimiser.lr=1e-3,fast"], (), ConfigError, "fast"),
        (["optimiser.lr=1,2", "optimiser.lr=3"], (), ConfigError, "given twice"),
        (["training.seed=1,2"], (), ConfigError, "--seeds"),
        (["training.seed=1", "optimiser.lr=1,2"], (0,), ConfigError, "Leave one of them out"),
        (["optimiser.lr=1,2"], (0, 0), ConfigError, "twice"),
    ],
)
def test_mistakes_are_named_before_anything_is_trained(settings, seeds, error, says, data, tmp_path):
    with pytest.raises(error, match=says):
        run(data, tmp_path / "sweep", *settings, seeds=seeds)
    assert not (tmp_path / "sweep").exists()


def test_the_issues_command_line_is_a_plan():
    found = plan_sweep("small-semantic-sharing", ["objective.lambda=0,0.001,0.01,0.1,1,10"])
    assert [found.recipes[point.folder, 0].objective["lambda"] for point in found.points] == [
        0,
        0.001,
        0.01,
        0.1,
        1,
        10,
    ]


# ---------------------------------------------------------------------------------------------------------------- runs


def test_a_sweep_trains_each_combination_once_and_writes_it_down(data, tmp_path):
    found = run(data, tmp_path / "sweep", "optimiser.lr=1e-3,1e-2", seeds=(0, 1))
    assert [(run.values["optimiser.lr"], run.seed) for run in found.runs] == [
        *((1e-3, 0), (1e-3, 1)),
        *((1e-2, 0), (1e-2, 1)),
    ]
    for each in found.runs:
        about = json.loads((tmp_path / "sweep" / each.folder / f"seed-{each.seed}" / "run.json").read_text())
        assert about["recipe"]["optimiser"]["lr"] == each.values["optimiser.lr"]
        assert about["recipe"]["training"]["seed"] == each.seed
        assert each.figures["rsum"] == about["best"]["rsum"]
    row = found.rows[1]
    first, second = (each.figures["rsum"] for each in row.runs)
    assert found.metrics == ("rsum",)
    assert row.means["rsum"] == pytest.approx((first + second) / 2)
    assert row.spreads["rsum"] == pytest.approx(abs(first - second) / 2**0.5)  # of a sample
    written = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert written["table"][1]["mean"] == row.means
    assert "toy val, 8×40" in written["protocol"]
    assert (tmp_path / "sweep" / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_finished_is_skipped_and_more_values_extend(data, tmp_path):
    run(data, tmp_path / "sweep", "optimiser.lr=1e-3,1e-2")
    seen = Trained()
    found = run(data, tmp_path / "sweep", "optimiser.lr=1e-2,5e-3", seeds=(0,), show=seen)
    assert seen.now == [(5e-3, 0)]
    assert seen.earlier == [(1e-2, 0)]
    assert [run.values["optimiser.lr"] for run in found.runs] == [1e-3, 5e-3, 1e-2]
    assert all("rsum" in run.figures for run in found.runs)
    seen = Trained()
    again = run(data, tmp_path / "sweep", "optimiser.lr=1e-2,5e-3", seeds=(0, 1), show=seen)
    assert seen.now == [(1e-2, 1), (5e-3, 1)]
    assert [len(row.runs) for row in again.rows] == [1, 2, 2]


def test_an_interrupted_run_is_gone_on_with(data, tmp_path, monkeypatch):
    settings = ("optimiser.lr=1e-3,1e-2", "training.epochs=2", "training.checkpoint_every=1")
    straight = run(data, tmp_path / "straight", *settings, given=[*TINY[:-1], "training.captions=all"])
    take_step = TrainingLoop.take_step

    def dying(self, batches, epoch):
        if self.recipe.optimiser.lr == 1e-2 and self.step == 5:
            raise KeyboardInterrupt
        take_step(self, batches, epoch)

    monkeypatch.setattr(TrainingLoop, "take_step", dying)
    with pytest.raises(KeyboardInterrupt):
        run(data, tmp_path / "cut", *settings, given=[*TINY[:-1], "training.captions=all"])
    monkeypatch.setattr(TrainingLoop, "take_step", take_step)
    steps = []
    monkeypatch.setattr(
        TrainingLoop, "take_step", lambda self, *rest: (steps.append(self.step), take_step(self, *rest))
    )
    cut = run(data, tmp_path / "cut", *settings, given=[*TINY[:-1], "training.captions=all"])
    assert steps[0] == 5
    assert [each.figures for each in cut.runs] == [each.figures for each in straight.runs]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["optimiser.lr=3e-3,4e-3", "training.batch=8"], "training.batch: 6 then, 8 now"),
        (["objective.margin=0.1,0.2"], "keys swept: optimiser.lr then, objective.margin now"),
        (["optimiser.lr=3e-3,4e-3", "image.sets.pooling=mean"], "image.sets.pooling"),
    ],
)
def test_another_sweep_does_not_go_into_the_same_folder(settings, says, data, tmp_path):
    run(data, tmp_path / "sweep", "optimiser.lr=1e-3,1e-2")
    before = (tmp_path / "sweep" / "sweep.json").read_bytes()
    given = [each for each in ONCE if each.partition("=")[0] not in str(settings)]
    with pytest.raises(InputError, match=says) as caught:
        run(data, tmp_path / "sweep", *settings, given=given)
    assert "give another --out" in str(caught.value)
    assert (tmp_path / "sweep" / "sweep.json").read_bytes() == before


def test_other_data_does_not_go_into_the_same_folder(data, tmp_path):
    run(data, tmp_path / "sweep", "optimiser.lr=1e-3,1e-2")
    other = make_data(tmp_path / "toy", train=20)
    with pytest.raises(InputError, match="the data"):
        run(other, tmp_path / "sweep", "optimiser.lr=5e-3,1e-1")


@pytest.mark.parametrize("there", ["a file", "something else"])
def test_a_folder_that_is_no_sweep_is_left_alone(there, data, tmp_path):
    out = tmp_path / "out"
    if there == "a file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"is a file|holds no sweep"):
        run(data, out, "optimiser.lr=1e-3,1e-2")


def test_a_run_that_fails_is_reported_and_the_others_go_on(data, tmp_path):
    found = run(data, tmp_path / "sweep", "training.accumulate=100,1")
    assert [each.status for each in found.runs] == ["finished", "failed"]
    assert "training.accumulate=100" in found.failed[0].error
    assert found.rows[1].means == {}
    assert found.rows[0].means["rsum"] > 0


def test_a_defect_in_one_run_leaves_its_trace_and_the_others_go_on(data, tmp_path, monkeypatch):
    take_step = TrainingLoop.take_step

    def broken(self, *rest):
        if self.recipe.optimiser.lr == 1e-3:
            raise torch.OutOfMemoryError("no memory left")
        take_step(self, *rest)

    monkeypatch.setattr(TrainingLoop, "take_step", broken)
    found = run(data, tmp_path / "sweep", "optimiser.lr=1e-3,1e-2")
    assert "no memory left" in found.failed[0].error
    assert "Traceback" in (tmp_path / "sweep" / "optimiser.lr=0.001" / "seed-0.error.txt").read_text()
    assert found.runs[1].status == "finished"


# ------------------------------------------------------------------------------------------------------------- figures


def test_runs_that_learn_labels_are_judged_by_ndcg_both_ways(labelled, tmp_path):
    found = run(labelled, tmp_path / "sweep", "objective.lambda=0,0.1", recipe="semantic-sharing", given=SHARING)
    assert found.metrics == ("i2t.ndcg50", "t2i.ndcg50")
    about = json.loads((tmp_path / "sweep" / "objective.lambda=0" / "seed-0" / "run.json").read_text())
    assert found.runs[0].figures["t2i.ndcg50"] == about["best"]["labels"]["ndcg50"]["t2i"]
    assert found.runs[0].figures["micro_f1.text"] == about["best"]["labels"]["micro_f1"]["text"]


def test_a_protocol_measures_each_run_once(labelled, tmp_path, monkeypatch):
    from polysem.training.sweep import result

    asked = []
    evaluate = result.evaluate
    monkeypatch.setattr(
        result, "evaluate", lambda *given, **how: (asked.append(how["split"]), evaluate(*given, **how))[1]
    )
    protocol = protocols.find("labels").with_options(k=5)
    how = {"recipe": "semantic-sharing", "given": SHARING, "protocol": protocol}
    found = run(labelled, tmp_path / "sweep", "objective.eta=0,1", **how)
    assert found.metrics == ("i2t.ndcg5", "t2i.ndcg5")
    assert "NDCG@5 by shared labels" in found.protocols[0]
    assert asked == ["val", "val"]  # there is no test split
    again = run(labelled, tmp_path / "sweep", "objective.eta=0,1", **how)
    assert len(asked) == 2
    assert again.runs == found.runs
    run(labelled, tmp_path / "sweep", "objective.eta=0,1", **{**how, "protocol": protocols.find("pairs")})
    assert len(asked) == 4
    run(labelled, tmp_path / "sweep", "objective.eta=0,1", **how)
    with pytest.raises(UnknownNameError, match="ndcg5"):
        run(labelled, tmp_path / "sweep", "objective.eta=0,1", metrics=["i2t.ndcg"], **how)


def test_queries_for_parts_measure_each_run(data, tmp_path):
    (tmp_path / "queries.txt").write_text("\n".join(WORDS))
    protocol = protocols.find("parts").with_options(queries=tmp_path / "queries.txt")
    found = run(data, tmp_path / "sweep", "optimiser.lr=1e-4,1e-3", protocol=protocol)
    assert found.metrics == ("nouns.map",)
    assert all(0 < each.figures["nouns.map"] < 100 for each in found.runs)
    assert found.runs[0].figures["nouns.queries"] == len(WORDS)
    assert "nouns and 0 phrases of queries.txt" in found.protocols[0]
    assert len(found.protocols) == 1


def test_a_metric_that_is_none_is_refused_before_anything_is_trained(data, tmp_path):
    with pytest.raises(UnknownNameError, match=r"i2t\.ndcg50"):
        run(data, tmp_path / "sweep", "optimiser.lr=1,2", metrics=["i2t.ndcg50"])  # of a run that learns no labels
    with pytest.raises(ConfigError, match="--protocol"):
        run(data, tmp_path / "sweep", "optimiser.lr=1,2", split="test")
    assert not (tmp_path / "sweep").exists()


def test_validation_figures_have_the_paths_of_a_protocol():
    best = {"step": 3, "epoch": 1, "rsum": 5.0, "i2t": {"r1": 1.0}, "t2i": {"r1": 2.0}}
    best["labels"] = {"ndcg50": {"i2t": 3.0, "t2i": 4.0}, "micro_f1": {"image": 5.0, "text": 6.0}}
    assert validation_figures(best) == {
        **{"rsum": 5.0, "i2t.r1": 1.0, "i2t.ndcg50": 3.0, "t2i.r1": 2.0, "t2i.ndcg50": 4.0},
        **{"micro_f1.image": 5.0, "micro_f1.text": 6.0},
    }


def test_a_collection_that_is_open_already_will_do(data, tmp_path):
    assert len(run(open_collection(data), tmp_path / "sweep", "optimiser.lr=1e-3,1e-2").runs) == 2


# ------------------------------------------------------------------------------------------------------------- picture


def test_places_on_the_axis():
    places, ticks, scale = positions([0, 0.001, 10])
    assert places == {"0": 0.0, "0.001": 0.001, "10": 10.0}
    assert [text for _, text in ticks] == ["0", "0.001", "10"]
    assert scale == 0.001  # logarithmic from there on, with room for 0
    assert positions([1, 2, 3])[2] is None
    assert positions(["mean", "gpo"])[0] == {'"mean"': 0.0, '"gpo"': 1.0}
    assert positions([1, None])[0] == {"1": 0.0, "null": 1.0}
