import pytest
import torch

from polysem import sets
from polysem.errors import UnknownNameError
from support import alone, assert_close, batch, cases, load_case, shaken

SMALL = {"heads": 2, "head_dim": 6, "ff_mult": 2}


def released_block(case, variant):
    part = sets.build(
        "slots",
        dim=case.meta["latent_dim"],
        input_dim=case.meta["input_dim"],
        position=case.meta["position_encoding"],
        add_global=False,
        variant=variant,
    )
    return part.load_official(case.weight)


@pytest.mark.parametrize("name", cases("dive_agg"))
def test_the_released_aggregation_block(name):
    case = load_case(name)
    found = released_block(case, "official")(case.features)
    assert_close(found.residual, case.output["slots"], atol=1e-5)
    for step in range(case.meta["iterations"]):
        assert_close(found.attention_steps[step], case.output[f"attention_{step}"], atol=2e-6)
    assert torch.equal(found.attention, found.attention_steps[-1].mean(1))


@pytest.mark.parametrize("name", cases("dive_agg"))
def test_the_masked_block_equals_the_released_one_without_padding(name):
    case = load_case(name)
    assert_close(released_block(case, "paper")(case.features).residual, case.output["slots_alone"], atol=1e-5)


@pytest.mark.parametrize("name", cases("dive_set_prediction"))
@pytest.mark.parametrize(("variant", "suffix"), [("official", ""), ("paper", "_alone")])
def test_the_released_set_prediction_module(name, variant, suffix):
    case = load_case(name)
    part = sets.build(
        "slots",
        dim=case.meta["embed_size"],
        input_dim=case.meta["input_dim"],
        position=case.meta["position_encoding"],
        variant=variant,
    ).load_official(case.weight)
    found = part(case.features, case.input["global_feature"])
    assert_close(found.residual, case.output[f"residual{suffix}"], atol=1e-5)
    direction = torch.nn.functional.normalize(case.output[f"set{suffix}"], dim=-1)
    assert_close(found.vectors, direction, atol=1e-5)


def listed_once_per_iteration(weight):
    """A released state dict names the same layer again for each of its four iterations."""
    layers = {name: tensor for name, tensor in weight.items() if name.startswith("layers.0.")}
    again = [{name.replace("layers.0.", f"layers.{step}."): t for name, t in layers.items()} for step in (1, 2, 3)]
    return {**weight, **again[0], **again[1], **again[2]}


def test_tied_layers_may_be_listed_once_per_iteration():
    case = load_case("dive_agg_image_unpadded")
    listed = listed_once_per_iteration(case.weight)
    part = sets.build("slots", dim=12, add_global=False).load_official(listed)
    assert_close(part(case.features).residual, case.output["slots"], atol=1e-5)


def test_untied_layers_are_all_taken():
    case = load_case("dive_agg_image_unpadded")
    listed = listed_once_per_iteration(case.weight)
    part = sets.build("slots", dim=12, add_global=False, tied=False)
    with pytest.raises(ValueError, match=r"no tensor for 'block\.updates\.1"):
        part.load_official(case.weight)
    assert_close(part.load_official(listed)(case.features).residual, case.output["slots"], atol=1e-5)


def test_a_foreign_tensor_is_named():
    case = load_case("dive_agg_image_unpadded")
    part = sets.build("slots", dim=12, add_global=False)
    with pytest.raises(UnknownNameError, match=r"layers\.0\.9\.weight"):
        part.load_official({**case.weight, "layers.0.9.weight": torch.zeros(1)})


def obvious_slots(part, x, global_feature, over):
    """One unpadded item, one head and one slot at a time, straight from the formulas."""
    block = part.block
    step = block.updates[0]
    attend = step.attention
    heads, width = attend.heads, attend.to_q.weight.shape[0] // attend.heads
    context = attend.norm_context(x)
    slots = block.slots
    maps = []
    for _ in range(block.iterations):
        queries, keys, values = attend.to_q(attend.norm(slots)), attend.to_k(context), attend.to_v(context)
        read, shown = [], []
        for head in range(heads):
            cut = slice(head * width, (head + 1) * width)
            logits = queries[:, cut] @ keys[:, cut].t() / width**0.5
            if over == "slots":
                share = torch.exp(logits) / torch.exp(logits).sum(0, keepdim=True)
                weights = share / (share.sum(1, keepdim=True) + 1e-7)
            else:
                share = weights = torch.exp(logits) / torch.exp(logits).sum(1, keepdim=True)
            shown.append(share)
            read.append(weights @ values[:, cut])
        update = attend.to_out(torch.cat(read, -1))
        slots = slots + update if step.gru is None else step.gru(update, slots)
        slots = slots + step.feed_forward(slots)
        maps.append(torch.stack(shown).mean(0))
    residual = block.norm(slots)
    joined = residual + part.global_norm(global_feature)
    return joined / joined.norm(dim=-1, keepdim=True), residual, maps


@pytest.mark.parametrize(
    ("name", "over", "knobs"),
    [("slots", "slots", {}), ("slots", "slots", {"residual_update": False}), ("transformer", "tokens", {})],
)
def test_against_the_formulas(name, over, knobs):
    part = shaken(sets.build(name, dim=8, k=3, iterations=3, **SMALL, **knobs))
    features, global_feature = batch(8), torch.randn(4, 8)
    found = part(features, global_feature)
    for item in range(4):
        x = alone(features, item).values[0]
        vectors, residual, maps = obvious_slots(part, x, global_feature[item], over)
        assert_close(found.vectors[item], vectors, atol=2e-6)
        assert_close(found.residual[item], residual, atol=5e-6)
        for step, shown in enumerate(maps):
            seen = found.attention_steps[step, item].mean(0)[:, features.mask[item]]
            assert_close(seen, shown, atol=2e-6)


def test_slots_share_out_every_token_and_transformer_slots_do_not():
    features = batch(8, (5,))
    slots = shaken(sets.build("slots", dim=8, **SMALL))(features, torch.zeros(1, 8))
    assert_close(slots.attention.sum(1), torch.ones(1, 5), atol=1e-6)
    transformer = shaken(sets.build("transformer", dim=8, **SMALL))(features, torch.zeros(1, 8))
    assert_close(transformer.attention.sum(2), torch.ones(1, 4), atol=1e-6)


def test_tokens_are_read_once_when_iterations_share_their_weights():
    part = sets.build("slots", dim=8, iterations=4, **SMALL)
    calls = []
    part.block.updates[0].attention.norm_context.register_forward_hook(lambda *_: calls.append(1))
    part(batch(8), torch.zeros(4, 8))
    assert len(calls) == 1


def test_drawn_slots_vary_in_training_and_are_fixed_outside_it():
    part = shaken(sets.build("slots", dim=8, learned_slots=False, **SMALL))
    features, global_feature = batch(8), torch.zeros(4, 8)
    first, second = part(features, global_feature), part(features, global_feature)
    assert torch.equal(first.vectors, second.vectors)
    distances = (first.residual[:, 0] - first.residual[:, 1]).norm(dim=-1)
    assert (distances > 1e-3).all()  # one noise for each slot: they do not start alike
    part.train()
    assert not torch.equal(part(features, global_feature).vectors, first.vectors)


def test_each_modification_of_slot_attention_can_be_switched_off():
    full = sets.build("slots", dim=8, **SMALL)
    assert hasattr(full.block, "slots")
    assert full.block.updates[0].gru is None
    assert full.global_norm is not None
    off = sets.build("slots", dim=8, learned_slots=False, residual_update=False, add_global=False, **SMALL)
    assert not hasattr(off.block, "slots")
    assert off.block.updates[0].gru is not None
    assert off.global_norm is None


def test_the_released_size():
    """The text block of the released COCO recipe."""
    part = sets.build("slots", dim=1024, input_dim=300, position="sine", add_global=False)
    assert sum(p.numel() for p in part.parameters()) == 13_828_696


def test_an_untied_checkpoint_is_not_mistaken_for_a_tied_one():
    case = load_case("dive_agg_image_unpadded")
    listed = {**case.weight, "layers.1.0.norm.weight": case.weight["layers.0.0.norm.weight"] + 1}
    with pytest.raises(ValueError, match=r"not tied.*tied=False"):
        sets.build("slots", dim=12, add_global=False).load_official(listed)


def test_tensors_for_what_a_part_was_built_without_are_named():
    case = load_case("dive_set_prediction_unpadded")
    with pytest.raises(ValueError, match=r"global_norm.*built without it"):
        sets.build("slots", dim=12, add_global=False).load_official(case.weight)


@pytest.mark.parametrize("name", ["slots", "transformer", "pie_net"])
def test_dropout_acts_in_training_alone(name):
    knobs = {} if name == "pie_net" else SMALL
    part = sets.build(name, dim=8, dropout=0.5, **knobs)
    features, global_feature = batch(8), torch.randn(4, 8)
    assert not torch.equal(part(features, global_feature).vectors, part(features, global_feature).vectors)
    part.eval()
    plain = sets.build(**{**part.config, "dropout": 0.0}).eval()
    plain.load_state_dict(part.state_dict())
    assert torch.equal(part(features, global_feature).vectors, plain(features, global_feature).vectors)


def test_drawn_slots_follow_the_learned_mean_and_deviation():
    part = sets.build("slots", dim=8, learned_slots=False, **SMALL).train()
    part.block.slot_mean.data.fill_(3.0)
    part.block.slot_log_std.data.fill_(-1.0)
    drawn = part.block.initial_slots(4000)
    assert drawn.mean().item() == pytest.approx(3.0, abs=0.01)
    assert drawn.std().item() == pytest.approx(0.3679, abs=0.01)
