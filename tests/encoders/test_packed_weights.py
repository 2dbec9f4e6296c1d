"""The packed twin of a network makes what the network makes, follows its weights, and leaves no trace in it."""

import copy
import gc
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional as F

from polysem.encoders.cpu import packed_weights
from polysem.encoders.cpu.packed_weights import PackedBlock, PackedLinear

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
BLOCKS = ["dinov2", "dinov2_with_registers", "vit"]
FAMILIES = [*BLOCKS, "clip", "siglip", "dinov3"]


def pixels(items=3):
    return torch.randn(items, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def states(network, x):
    return network(x).last_hidden_state


def packed_states(network, x):
    twin = packed_weights.find_twin(network)
    assert twin is not None
    return states(twin, x)


@pytest.fixture
def network(build):
    return build("dinov2").backbone


@pytest.mark.parametrize("family", FAMILIES)
def test_it_equals_the_plain_network_alone_and_in_a_batch(build, family):
    network, x = build(family).backbone, pixels()
    # Trained networks have layer scales and biases that are neither one nor zero.
    torch.manual_seed(0)
    with torch.no_grad():
        for tensor in network.parameters():
            tensor.add_(0.3 * torch.randn_like(tensor))
    with torch.inference_mode():
        whole = packed_states(network, x)
        torch.testing.assert_close(whole, states(network, x), rtol=1e-5, atol=1e-5)
        for row in range(len(x)):
            torch.testing.assert_close(packed_states(network, x[row : row + 1])[0], whole[row], rtol=1e-5, atol=1e-5)
    twin = packed_weights.find_twin(network)
    expected = PackedBlock if family in BLOCKS else PackedLinear
    assert any(isinstance(module, expected) for module in twin.modules())
    assert not any(type(module) is torch.nn.Linear for module in twin.modules())


def test_the_encoder_uses_it_where_nothing_learns(build, monkeypatch):
    encoder, calls, forward = build("dinov2"), [], PackedBlock.forward
    assert packed_weights.find_twin(encoder.backbone) is not None
    monkeypatch.setattr(PackedBlock, "forward", lambda *given, **named: calls.append(1) or forward(*given, **named))
    encoder(pixels())
    assert len(calls) == 2
    with torch.inference_mode():
        encoder.set_trainable("all").eval()(pixels())
    assert len(calls) == 4
    with torch.no_grad():
        encoder(pixels())
    encoder(pixels())
    encoder.set_trainable("none").eval()(pixels().requires_grad_())
    with torch.autocast("cpu", torch.bfloat16):
        encoder(pixels())
    torch._C._set_mkldnn_enabled(False)  # what mkldnn.flags() does, without its warning of a GPU
    try:
        encoder(pixels())
    finally:
        torch._C._set_mkldnn_enabled(True)
    with packed_weights.plain_networks():
        encoder(pixels())
    encoder.backbone.train()
    encoder(pixels())
    assert len(calls) == 4


def test_a_hook_sees_the_network_itself(network):
    seen = []
    handle = network.encoder.layer[0].register_forward_hook(lambda *_: seen.append(1))
    packed_weights.run(network, pixels())
    assert seen == [1]
    handle.remove()
    packed_weights.run(network, pixels())
    assert seen == [1]


def test_a_graph_that_is_traced_is_of_the_network_itself(build):
    encoder = build("dinov2")
    encoder(pixels())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda x: encoder(x).values, pixels(), check_trace=False)
    assert "mkldnn" not in str(traced.inlined_graph)
    exported = torch.export.export(Values(encoder), (pixels(),))
    assert "mkldnn" not in str(exported.graph)


class Values(torch.nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x):
        return self.encoder(x).values


def change_in_place(network):
    with torch.no_grad():
        network.encoder.layer[1].mlp.fc1.weight.mul_(1.5)


def load_others(network):
    network.load_state_dict({name: 1.5 * tensor for name, tensor in network.state_dict().items()})


def assign_others(network):
    network.load_state_dict({name: 1.5 * tensor for name, tensor in network.state_dict().items()}, assign=True)


def change_a_layer_scale(network):
    with torch.no_grad():
        network.encoder.layer[0].layer_scale1.lambda1.fill_(0.25)


def replace_data(network):
    weight = network.encoder.layer[0].attention.q_proj.weight
    weight.data = weight.data + 1.0


CHANGES = [change_in_place, load_others, assign_others, change_a_layer_scale, replace_data]


@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_change_are_packed_again(network, change):
    before = packed_states(network, pixels())
    change(network)
    after = packed_states(network, pixels())
    assert not torch.allclose(before, after, atol=1e-3)
    torch.testing.assert_close(after, states(network, pixels()), rtol=1e-5, atol=1e-5)


def test_there_is_one_twin_for_as_long_as_there_is_a_network(build):
    network = copy.deepcopy(build("vit").backbone)
    gc.collect()
    count = len(packed_weights._twins)
    twin = packed_weights.find_twin(network)
    assert packed_weights.find_twin(network) is twin
    assert len(packed_weights._twins) == count + 1
    own = {tensor.data_ptr() for tensor in network.parameters()}
    assert {tensor.data_ptr() for tensor in twin.parameters()} <= own
    del twin, network
    gc.collect()
    assert len(packed_weights._twins) == count


def test_the_network_is_saved_and_copied_as_if_it_had_none(build):
    encoder = build("dinov2")
    before, fingerprint = list(encoder.state_dict()), encoder.fingerprint()
    expected = encoder(pixels()).values
    assert list(encoder.state_dict()) == before
    assert encoder.fingerprint() == fingerprint
    for other in (copy.deepcopy(encoder).backbone, pickle.loads(pickle.dumps(encoder.backbone))):
        change_in_place(other)
        assert not torch.allclose(packed_states(other, pixels()), packed_states(encoder.backbone, pixels()), atol=1e-3)
    assert torch.equal(encoder(pixels()).values, expected)


def test_a_result_that_differs_or_operations_that_are_missing_leave_the_plain_network(build, monkeypatch):
    network = copy.deepcopy(build("dinov2").backbone)
    plain = states(network, pixels())
    monkeypatch.setattr(packed_weights, "_is_gelu", lambda _: False)
    monkeypatch.setattr(PackedLinear, "add_to", lambda self, residual, x: residual + 1.001 * self(x))
    assert packed_weights.find_twin(network) is None
    assert torch.equal(states_of_run(network), plain)

    def missing(self, *_, **__):
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'")

    monkeypatch.setattr(PackedLinear, "__init__", missing)
    other = copy.deepcopy(network)
    assert packed_weights.find_twin(other) is None
    assert torch.equal(states_of_run(other), plain)


def states_of_run(network):
    return packed_weights.run(network, pixels()).last_hidden_state


def test_only_float32_is_packed(build):
    assert packed_weights.find_twin(copy.deepcopy(build("vit").backbone).double()) is None


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "quick_gelu", "relu"])
def test_every_activation_is_kept(act):
    import transformers

    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=32,
        patch_size=8,
        hidden_act=act,
        qkv_bias=False,
    )
    network = transformers.ViTModel(config, add_pooling_layer=False).eval().requires_grad_(False)
    twin = packed_weights.find_twin(network)
    assert twin.layers[0].fused == (act == "gelu")
    torch.testing.assert_close(states(twin, pixels()), states(network, pixels()), rtol=1e-5, atol=1e-5)


def test_a_block_of_gated_units_keeps_its_own_code():
    import transformers

    knobs = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    network = transformers.Dinov2Model(transformers.Dinov2Config(**knobs, use_swiglu_ffn=True)).eval()
    network.requires_grad_(False)
    twin = packed_weights.find_twin(network)
    assert not any(isinstance(module, PackedBlock) for module in twin.modules())
    torch.testing.assert_close(states(twin, pixels()), states(network, pixels()), rtol=1e-5, atol=1e-5)


def test_a_linear_layer_takes_any_layout():
    layer, x = torch.nn.Linear(6, 4), torch.randn(5, 6, 3).transpose(1, 2)
    packed = PackedLinear(layer.weight, layer.bias)
    with torch.no_grad():
        torch.testing.assert_close(packed(x), layer(x))
        torch.testing.assert_close(packed(x, "gelu"), F.gelu(layer(x)))
        torch.testing.assert_close(packed.add_to(layer(x), x), 2 * layer(x))


def test_threads_share_one_twin(build):
    network = copy.deepcopy(build("dinov2").backbone)
    with ThreadPoolExecutor(4) as pool:
        twins = list(pool.map(lambda _: packed_weights.find_twin(network), range(8)))
        results = list(pool.map(lambda _: states_of_run(network), range(8)))
    assert len({id(twin) for twin in twins}) == 1
    assert all(torch.equal(result, results[0]) for result in results)
