import pytest
import torch

from polysem import sets
from support import alone, assert_close, batch, cases, load_case, shaken


@pytest.mark.parametrize("name", cases("pienet"))
def test_parity_with_the_released_code(name):
    case = load_case(name)
    meta = case.meta
    part = sets.build(
        "pie_net", dim=meta["embed_size"], input_dim=meta["input_dim"], k=meta["num_embeds"], hidden=meta["hidden"]
    ).load_official(case.weight)
    found = part(case.features, case.input["global_feature"])
    assert_close(found.residual, case.output["residual"], atol=1e-5)
    assert_close(found.attention.transpose(1, 2), case.output["attention"], atol=1e-5)
    assert_close(found.vectors, torch.nn.functional.normalize(case.output["set"], dim=-1), atol=1e-5)


def test_against_the_formula():
    part = shaken(sets.build("pie_net", dim=6, k=3))
    features, global_feature = batch(6), torch.randn(4, 6)
    found = part(features, global_feature)
    for item in range(4):
        x = alone(features, item).values[0]
        for element in range(3):
            logits = torch.tanh(x @ part.w_1.weight.t()) @ part.w_2.weight[element]
            weights = torch.exp(logits) / torch.exp(logits).sum()
            residual = torch.sigmoid(part.fc(weights @ x))
            assert_close(found.residual[item, element], residual, atol=2e-6)
            joined = part.norm(global_feature[item] + residual)
            assert_close(found.vectors[item, element], joined / joined.norm(), atol=2e-6)


def test_the_hidden_width_is_half_the_input_unless_given():
    assert sets.build("pie_net", dim=6, input_dim=10).w_1.weight.shape == (5, 10)
    assert sets.build("pie_net", dim=6, input_dim=10, hidden=3).w_1.weight.shape == (3, 10)
