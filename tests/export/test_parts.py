"""Every pooling and set predictor as ONNX: the same numbers, in batches of any size and length."""

import pytest
import torch

from encoders import tiny_models
from polysem import masked_ops, pooling, sets, similarity
from polysem.encoders import Tokens
from polysem.errors import ConfigError
from polysem.export import onnx
from polysem.export.graphs import FeatureGraph, PixelGraph, SimilarityGraph, TextGraph, build_graphs
from polysem.models import build
from polysem.models.build import build_tower
from support import shaken

pytestmark = pytest.mark.slow

pytest.importorskip("onnxruntime")

DIM, WIDTH = 12, 10
SLOTS = {"heads": 2, "head_dim": 6, "ff_mult": 2, "iterations": 2}
CLASSES = {"name": "semantic_sharing", "layers": 1, "heads": 2, "ff": 10}
GPO = {"name": "single", "pooling": "gpo"}
SETS = {
    **{f"single-{name}": {"name": "single", "pooling": name} for name in pooling.names()},
    "single-gcn": {"name": "single", "pooling": "gcn", "knobs": {"layers": 1}},
    "gpo-mlp": {**GPO, "knobs": {"generator": "mlp"}},
    "gpo-transformer": {**GPO, "knobs": {"generator": "transformer"}},
    "gpo-interpolation": {**GPO, "knobs": {"generator": "interpolation"}},
    "gpo-index": {**GPO, "knobs": {"position": "index"}},
    "gpo-per-dimension": {**GPO, "knobs": {"per_dimension": True}},
    "gpo-feature-input": {**GPO, "knobs": {"feature_input": True}},
    "slots": {"name": "slots", **SLOTS},
    "slots-sine": {"name": "slots", "position": "sine", "tied": False, **SLOTS},
    "slots-original": {"name": "slots", "learned_slots": False, "residual_update": False, "add_global": False, **SLOTS},
    "transformer": {"name": "transformer", **SLOTS},
    "pie_net": {"name": "pie_net"},
    "attention_pooling": {"name": "attention_pooling", "hidden": 14, "attention": 6},
    "ensemble": {
        "name": "ensemble",
        "members": [{"name": "attention_pooling", "k": 2, "hidden": 14, "attention": 6}, {"name": "pie_net", "k": 1}],
    },
    "competing": {"name": "competing_readings", "k": 3, "hidden": 6},
    "competing-cells": {"name": "competing_readings", "k": 3, "hidden": 6, "cells": 40},
    "competing-one": {"name": "competing_readings", "k": 1, "hidden": 6, "head": "mlp", "keep_global": True},
    "competing-global": {"name": "competing_readings", "k": 2, "base": {"name": "global_feature"}},
    "slots-gamma": {"name": "slots", "gamma": 0.5, **SLOTS},
    "pie_net-gamma": {"name": "pie_net", "gamma": 0.5},
    "classes": CLASSES,
    "classes-cls": {**CLASSES, "read": "cls", "normalise": False},
    "common": {"name": "dscmr"},
    "summary": {"name": "global_feature"},
}
CLOSE = 2e-5


def features_tower(config):
    image = {"encoder": {"name": "region", "input_dim": WIDTH, "dim": DIM}, "pool": {"name": "max"}, "sets": config}
    return shaken(build_tower("image", image, DIM))


def words_tower(**knobs):
    encoder = {"name": "bigru", "vocab_size": 20, "dim": DIM, "word_dim": 6, **knobs}
    return shaken(build_tower("text", {"encoder": encoder, "sets": {"name": "global_feature"}}, DIM))


def exported(graph, folder):
    graph = graph.eval()
    onnx.write_graph(graph, folder / "graph.onnx")
    return onnx.compare(graph, folder / "graph.onnx")


def test_every_registered_part_is_under_this_test():
    assert {config["name"] for config in SETS.values()} == set(sets.names())
    assert {config.get("pooling") for config in SETS.values()} >= set(pooling.names())


@pytest.mark.parametrize("setting", SETS)
def test_a_tower_of_features_is_the_same_as_onnx(setting, tmp_path):
    found = exported(FeatureGraph(features_tower(SETS[setting])), tmp_path)
    assert found.difference < CLOSE
    assert found.alone < CLOSE


@pytest.mark.parametrize("dim", [WIDTH, DIM])
def test_precomputed_frames_are_the_same_as_onnx(dim, tmp_path):
    encoder = {"name": "frames", "input_dim": WIDTH, "dim": None if dim == WIDTH else dim}
    tower = shaken(build_tower("image", {"encoder": encoder, "sets": {"name": "single", "pooling": "gpo"}}, dim))
    found = exported(FeatureGraph(tower), tmp_path)
    assert max(found.difference, found.alone) < CLOSE


@pytest.mark.parametrize("local", ["states", "words"])
def test_a_bigru_is_the_same_as_onnx(local, tmp_path):
    sets_config = {"name": "pie_net"} if local == "words" else {"name": "slots", **SLOTS}
    encoder = {"name": "bigru", "vocab_size": 20, "dim": DIM, "word_dim": 6, "local": local}
    tower = shaken(build_tower("text", {"encoder": encoder, "sets": sets_config}, DIM))
    found = exported(TextGraph(tower), tmp_path)
    assert found.difference < CLOSE
    assert found.alone < CLOSE


@pytest.mark.parametrize("family", ["bert", "mpnet", "modernbert"])
def test_a_text_transformer_is_the_same_as_onnx(family, tmp_path):
    tiny_models.save(family, tmp_path / family)
    encoder = {"name": "transformer", "model": str(tmp_path / family), "dim": DIM}
    tower = build_tower("text", {"encoder": encoder, "sets": {"name": "single", "pooling": "mean"}}, DIM)
    found = exported(TextGraph(tower), tmp_path)
    assert found.difference < CLOSE
    assert found.alone < CLOSE


# clip is seen at another size than its positions were learned for; the registers' family asks whether it is traced.
@pytest.mark.parametrize(
    ("family", "knobs"),
    [("resnet", {"image_size": 32}), ("clip", {"image_size": 40}), ("dinov2_with_registers", {}), ("owlvit", {})],
)
def test_a_tower_of_pixels_is_the_same_as_onnx(family, knobs, tmp_path):
    tiny_models.save(family, tmp_path / family)
    known = {**tiny_models.KNOBS.get(family, {}), **knobs}
    encoder = {"name": tiny_models.ENCODER[family], "model": str(tmp_path / family), "dim": DIM, **known}
    tower = build_tower("image", {"encoder": encoder, "sets": {"name": "single", "pooling": "gpo"}}, DIM)
    found = exported(PixelGraph(tower), tmp_path)
    assert found.difference < CLOSE


def test_a_tower_of_several_networks_is_the_same_as_onnx(tmp_path):
    """One of them sees a smaller picture, and its map does not divide evenly."""
    folders = [str(tiny_models.save(family, tmp_path / family)) for family in ("resnet", "convnext")]
    encoder = {"name": "grids", "models": folders, "sizes": [56, 96]}
    readings = {"name": "attention_pooling", "k": 2, "hidden": 14, "attention": 6}
    tower = shaken(build_tower("image", {"encoder": encoder, "sets": readings}, DIM))
    assert exported(PixelGraph(tower), tmp_path).difference < CLOSE


def test_a_tower_of_videos_is_the_same_as_onnx(tmp_path):
    tiny_models.save("resnet", tmp_path / "resnet")
    inner = {"name": "grid", "model": str(tmp_path / "resnet"), "image_size": 32}
    encoder = {"name": "video_frames", "encoder": inner, "frames": 4, "dim": DIM}
    tower = build_tower("image", {"encoder": encoder, "sets": {"name": "single", "pooling": "gpo"}}, DIM)
    assert exported(PixelGraph(tower), tmp_path).difference < CLOSE


@pytest.mark.parametrize(
    "config",
    [
        {"name": "smooth_chamfer"},
        {"name": "smooth_chamfer", "metric": "euclidean"},
        {"name": "chamfer"},
        {"name": "mil"},
        {"name": "match_probability", "form": "pcme"},
    ],
    ids=lambda config: "-".join(config.values()),
)
def test_a_similarity_is_the_same_as_onnx(config, tmp_path):
    graph = SimilarityGraph(similarity.build(**config), (3, 2), DIM)
    assert exported(graph, tmp_path).difference < 1e-5
    a, b = graph.samples()[1]
    torch.testing.assert_close(graph(a, b), graph.similarity(a, b), atol=1e-6, rtol=0)


def test_what_stands_in_the_padding_has_no_effect(tmp_path):
    graph = TextGraph(words_tower()).eval()
    onnx.write_graph(graph, tmp_path / "text.onnx")
    session = onnx.open_session(tmp_path / "text.onnx")
    ids, mask = torch.randint(20, (2, 6)), torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    other = ids.where(mask.bool(), 19 - ids)
    names = [port.name for port in graph.inputs]
    first, second = (
        session.run(None, dict(zip(names, (x.numpy(), mask.numpy()), strict=True)))[0] for x in (ids, other)
    )
    assert (first == second).all()


def test_a_tower_that_reads_padding_is_refused():
    text = {
        "encoder": {"name": "bigru", "vocab_size": 20, "dim": DIM, "word_dim": 6},
        "sets": {"name": "global_feature"},
    }
    knobs = {"variant": "official"}
    official = {"name": "single", "pooling": "adpool", "knobs": knobs}
    model = build(DIM, {"encoder": {"name": "region", "input_dim": 10}, "sets": official}, text, {"name": "cosine"})
    with pytest.raises(ConfigError, match=r"image tower cannot be exported.*'official'"):
        build_graphs(model)


def test_everything_is_as_before_after_tracing(tmp_path):
    tower = words_tower().eval()
    tokens = Tokens(torch.randint(20, (2, 5)), torch.ones(2, 5, dtype=torch.bool))
    before, seen = tower(tokens).vectors, []
    tower.register_forward_hook(lambda *_: seen.append(masked_ops.is_tracing()))
    onnx.write_graph(TextGraph(tower), tmp_path / "text.onnx")
    assert seen == [True]
    assert torch.equal(tower(tokens).vectors, before)
    assert seen == [True, False]
