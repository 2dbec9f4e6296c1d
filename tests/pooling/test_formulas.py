"""Each pooling against a slow, obvious computation of one unpadded item at a time."""

import math

import pytest
import torch

from polysem import LocalFeatures, pooling
from support import alone, batch, shaken

DIM = 6


def rows(features):
    return [alone(features, item).values[0] for item in range(len(features))]


def check_pooling(name, obvious, **knobs):
    torch.manual_seed(3)
    part = shaken(pooling.build(name, dim=DIM, **knobs))
    features = batch(DIM)
    expected = torch.stack([obvious(part, x) for x in rows(features)])
    torch.testing.assert_close(part(features), expected, atol=2e-6, rtol=1e-5)


def test_mean():
    check_pooling("mean", lambda part, x: sum(x) / len(x))


def test_max():
    check_pooling("max", lambda part, x: torch.stack([max(column) for column in x.t()]))


@pytest.mark.parametrize("k", [1, 3, 5, 50])
def test_kmax_takes_what_there_is(k):
    def obvious(part, x):
        return torch.stack([sum(sorted(column, reverse=True)[:k]) / min(k, len(x)) for column in x.t()])

    check_pooling("kmax", obvious, k=k)


def test_softpool():
    def obvious(part, x):
        columns = x.t().tolist()
        return torch.tensor([sum(math.exp(v) * v for v in c) / sum(math.exp(v) for v in c) for c in columns])

    check_pooling("softpool", obvious)


def test_the_released_softpool_weights_whole_tokens_and_clamps():
    def obvious(part, x):
        weight = [sum(math.exp(v) for v in token) for token in x.tolist()]
        return (sum(w * token for w, token in zip(weight, x, strict=True)) / sum(weight)).clamp(min=0)

    check_pooling("softpool", obvious, variant="official")


def test_lip():
    def obvious(part, x):
        raw = x @ part.logit.weight.t()
        normed = (raw - raw.mean(0)) / (raw.var(0, unbiased=False) + 1e-5).sqrt()
        e = torch.exp(12 * torch.sigmoid(part.norm_scale * normed + part.norm_shift))
        return (e * x).sum(0) / e.sum(0)

    check_pooling("lip", obvious)


def test_lip_starts_as_the_mean():
    features = batch(DIM)
    torch.testing.assert_close(pooling.build("lip", dim=DIM)(features), pooling.build("mean")(features))


def test_adapool():
    def obvious(part, x):
        mean = x.mean(0)
        e = torch.exp(2 * (x * mean).abs() / (x**2 + mean**2))
        soft = torch.exp(x)
        beta = part.beta.clamp(0, 1)
        return beta * (e * x).sum(0) / e.sum(0) + (1 - beta) * (soft * x).sum(0) / soft.sum(0)

    check_pooling("adapool", obvious)


def test_adapool_keeps_its_mix_between_its_two_halves():
    part, features = pooling.build("adapool"), batch(DIM)
    for beta, clamped in ((7.0, 1.0), (-3.0, 0.0)):
        part.beta.data.fill_(beta)
        pooled = part(features)
        part.beta.data.fill_(clamped)
        assert torch.equal(pooled, part(features))


def test_seq2seq_is_the_last_state_of_a_gru_cell():
    def obvious(part, x):
        cell = torch.nn.GRUCell(DIM, DIM)
        cell.load_state_dict({name.removesuffix("_l0"): w for name, w in part.gru.state_dict().items()})
        state = torch.zeros(1, DIM)
        for token in x:
            state = cell(token[None], state)
        return state[0]

    check_pooling("seq2seq", obvious)


def test_selfattention():
    def obvious(part, x):
        layer = part.layer
        y = layer.norm1(x)
        q, k, v = (y @ layer.self_attn.in_proj_weight.t() + layer.self_attn.in_proj_bias).chunk(3, -1)
        heads = [
            torch.softmax(q[:, h] @ k[:, h].t() / math.sqrt(DIM / 2), -1) @ v[:, h]
            for h in (slice(0, DIM // 2), slice(DIM // 2, DIM))
        ]
        x = x + layer.self_attn.out_proj(torch.cat(heads, -1))
        return (x + layer.linear2(torch.relu(layer.linear1(layer.norm2(x))))).mean(0)

    check_pooling("selfattention", obvious, heads=2)


def gcn_step(layer, x):
    relation = layer.theta(x) @ layer.phi(x).t() / len(x)
    y = layer.out(relation @ layer.g(x))
    norm = layer.norm
    y = (y - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
    return x + y


def test_gcn():
    def obvious(part, x):
        for layer in part.layers:
            x = gcn_step(layer, x)
        states, _ = part.gru((x / x.norm(dim=-1, keepdim=True))[None])
        return states[0, -1]

    check_pooling("gcn", obvious, layers=2)


def test_the_released_gcn_normalises_over_tokens_and_lets_padding_in():
    def obvious(part, x):
        for layer in part.layers:
            x = gcn_step(layer, x)
        states, _ = part.gru((x / x.norm(dim=0, keepdim=True))[None])
        return states[0, -1]

    torch.manual_seed(3)
    part = shaken(pooling.build("gcn", dim=DIM, layers=2, variant="official"))
    features = LocalFeatures(batch(DIM).values.clamp(max=2), batch(DIM).mask)
    expected = torch.stack([obvious(part, x) for x in features.values])
    torch.testing.assert_close(part(features), expected, atol=1e-5, rtol=1e-5)


def test_gcn_takes_the_tensors_of_vsrn():
    part = shaken(pooling.build("gcn", dim=DIM))
    renamed = {}
    for name, tensor in part.state_dict().items():
        name = name.replace(".out.", ".W.0.").replace(".norm.", ".W.1.").replace("gru.", "img_rnn.")
        for i in range(4):
            name = name.replace(f"layers.{i}.", f"Rs_GCN_{i + 1}.")
        is_convolution = tensor.ndim == 2 and "img_rnn" not in name
        renamed[name] = tensor[..., None] if is_convolution else tensor
    assert "Rs_GCN_4.W.0.weight" in renamed
    loaded = pooling.build("gcn", dim=DIM).eval().load_official(renamed)
    assert torch.equal(loaded(batch(DIM)), part(batch(DIM)))
    with pytest.raises(ValueError, match="no tensor for"):
        loaded.load_official({name: w for name, w in renamed.items() if "Rs_GCN_2" not in name})


def test_batch_norm_statistics_come_from_real_tokens_alone():
    part = pooling.build("gcn", dim=DIM, layers=1).train()
    padded = pooling.build(**part.config).train()
    padded.load_state_dict(part.state_dict())
    part(batch(DIM, (4, 2)))
    tight = batch(DIM, (4, 2))
    wide = torch.nn.functional.pad(tight.values, (0, 0, 0, 5), value=3.0)
    padded(LocalFeatures.from_lengths(wide, [4, 2]))
    torch.testing.assert_close(padded.layers[0].norm.running_var, part.layers[0].norm.running_var)
    assert not torch.allclose(part.layers[0].norm.running_var, torch.ones(DIM))


def test_fspool():
    def obvious(part, x):
        pooled = []
        for column, knots in zip(x.t(), part.knots, strict=True):
            total = 0.0
            for rank, value in enumerate(sorted(column.tolist(), reverse=True)):
                at = (rank / (len(x) - 1) if len(x) > 1 else 0.0) * 5
                left = min(int(at), 4)
                total += value * (knots[left] + (at - left) * (knots[left + 1] - knots[left])).item()
            pooled.append(total)
        return torch.tensor(pooled)

    check_pooling("fspool", obvious, pieces=5)


def test_adpool_as_printed():
    def obvious(part, x):
        u = x.sort(0, descending=True).values
        tok = (torch.softmax(u @ part.linear.weight.t(), 0) * u).sum(0)
        emb = (torch.softmax(x, 0) * x).sum(0)
        balance = torch.softmax(torch.stack([tok, emb]) @ part.balance.weight[0], 0)
        return balance[0] * tok + balance[1] * emb

    check_pooling("adpool", obvious, variant="paper")


def test_gcn_starts_without_any_message():
    """Its layers are identities at first: the embedding is the GRU's over the plain tokens."""
    part = pooling.build("gcn", dim=DIM).eval()
    features = batch(DIM)
    plain = pooling.build("seq2seq", dim=DIM)
    plain.gru.load_state_dict(part.gru.state_dict())
    normed = LocalFeatures(torch.nn.functional.normalize(features.zero_padding().values, dim=-1), features.mask)
    torch.testing.assert_close(part(features), plain(normed))


def test_adapool_can_come_back_from_either_end():
    part = pooling.build("adapool").train()
    part.beta.data.fill_(-0.06)
    optimiser = torch.optim.Adam(part.parameters(), lr=0.02)
    features, target = batch(DIM), pooling.build("adapool").eval()
    target.beta.data.fill_(1.0)
    for _ in range(200):
        loss = (part(features) - target(features).detach()).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert part.beta.item() > 0.9
