"""The BiGRU: against the authors' released code, and the tokens it takes."""

import pytest
import torch

from polysem import PolysemError, encoders, pooling, sets
from polysem.data.vocabulary import Vocabulary
from polysem.masked_ops import normalise
from support import assert_close, cases, load_case, shaken

from .test_region import split


def tokens(case):
    ids, lengths = case.input["captions"].long(), case.input["lengths"]
    return encoders.Tokens(ids, torch.arange(ids.shape[1]) < lengths[:, None])


def vocabulary():
    return Vocabulary(["<pad>", "<start>", "<end>", "<unk>", "dog", "runs", "a"])


@pytest.mark.parametrize("name", cases("vse_infty_bigru"))
def test_vse_infty(name):
    case = load_case(name)
    gpo, own = split(case.weight, "gpool.")
    encoder = encoders.build("bigru", vocab_size=40, dim=16, word_dim=12).load_official(own).eval()
    pool = pooling.build("gpo", dim=16).load_official(gpo).eval()
    assert_close(normalise(pool(encoder(tokens(case)))), case.output["embedding"], atol=2e-6)


def test_vse_2ad():
    case = load_case("vse_2ad_bigru")
    adpool, own = split(case.weight, "pool.")
    encoder = encoders.build("bigru", vocab_size=40, dim=16, word_dim=12).load_official(own).eval()
    for variant, output in (("official", "embedding"), ("corrected", "embedding_alone")):
        pool = pooling.build("adpool", dim=16, variant=variant).load_official(adpool)
        assert_close(normalise(pool(encoder(tokens(case)))), case.output[output], atol=2e-6)


@pytest.mark.parametrize("name", cases("dive_text_encoder"))
@pytest.mark.parametrize("variant", ["paper", "official"])
def test_dive(name, variant):
    case = load_case(name)
    spm, own = split(case.weight, "spm.")
    knobs = {"vocab_size": 40, "dim": 12, "word_dim": 10, "local": "words", "dropout": 0.1, "variant": variant}
    encoder = encoders.build("bigru", **knobs).load_official(own).eval()
    predictor = sets.build("slots", dim=12, input_dim=10, position="sine", variant=variant).load_official(spm).eval()
    local = encoder(tokens(case))
    found = predictor(local, local.summary)
    suffix = "" if variant == "official" else "_alone"
    assert_close(found.vectors, case.output[f"set{suffix}"], atol=1e-5)
    assert_close(found.residual, case.output[f"residual{suffix}"], atol=1e-5)


@pytest.mark.parametrize("local", ["states", "words"])
def test_gradients_are_right(local):
    encoder = shaken(encoders.build("bigru", vocab_size=6, dim=3, word_dim=2, local=local)).double()
    given = encoders.Tokens.from_lists([[1, 4, 5], [2]])
    names = [name for name, _ in encoder.named_parameters()]

    def run(*parameters):
        found = torch.func.functional_call(encoder, dict(zip(names, parameters, strict=True)), (given,))
        return found.values, found.summary

    assert torch.autograd.gradcheck(run, tuple(p.detach().clone().requires_grad_() for p in encoder.parameters()))


def test_the_summary_is_the_mean_of_both_final_states():
    encoder = shaken(encoders.build("bigru", vocab_size=9, dim=4, word_dim=3))
    found = encoder(encoders.Tokens.from_lists([[1, 2, 3], [4]]))
    states, _ = encoder.gru(encoder.embedding(torch.tensor([[1, 2, 3]])))
    torch.testing.assert_close(found.summary[0], (states[0, -1, :4] + states[0, 0, 4:]) / 2)
    assert encoder.summary_dim == 4


def test_embeddings_start_small_and_padding_is_an_ordinary_row():
    weight = encoders.build("bigru", vocab_size=500, dim=4, word_dim=30).embedding.weight
    assert 0.099 < weight.abs().max() <= 0.1
    assert weight[0].abs().min() > 0


def test_dropout_acts_in_training_alone():
    encoder = encoders.build("bigru", vocab_size=9, dim=4, word_dim=3, dropout=0.5).train()
    given = encoders.Tokens.from_lists([[1, 2, 3]])
    assert not torch.equal(encoder(given).values, encoder(given).values)
    assert torch.equal(encoder.eval()(given).values, encoder(given).values)


def test_texts_need_a_vocabulary_and_keep_it_when_saved(tmp_path):
    encoder = encoders.build("bigru", vocab_size=7, dim=4, word_dim=3)
    bare = encoder.fingerprint()
    with pytest.raises(PolysemError, match="no vocabulary"):
        encoder.tokenize(["a dog"])
    encoder.vocabulary = vocabulary()
    given = encoder.tokenize(["a dog runs", "zebra"])
    assert given.ids.tolist() == [[1, 6, 4, 5, 2], [1, 3, 2, 0, 0]]
    assert encoder.fingerprint() != bare
    encoder.save_preprocessing(tmp_path)
    again = encoders.build(**encoder.config)
    again.load_state_dict(encoder.state_dict())
    again.load_preprocessing(tmp_path)
    assert again.fingerprint() == encoder.fingerprint()
    assert torch.equal(again.tokenize(["a dog runs"]).ids, given.ids[:1])


def test_a_long_text_is_cut():
    encoder = encoders.build("bigru", vocab_size=7, dim=4, word_dim=3, max_length=5)
    encoder.vocabulary = vocabulary()
    assert encoder.tokenize(["dog " * 100]).ids.shape == (1, 5)


def test_ids_beyond_the_embeddings_are_refused():
    encoder = encoders.build("bigru", vocab_size=7, dim=4, word_dim=3)
    with pytest.raises(PolysemError, match=r"0 to 6.*up to 7"):
        encoder(encoders.Tokens.from_lists([[1, 7]]))


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        (torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool), "long"),
        (torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 2, dtype=torch.bool), "shape"),
        (torch.zeros(1, 2, dtype=torch.long), torch.tensor([[False, True]]), "come first"),
        (torch.zeros(1, 2, dtype=torch.long), torch.tensor([[False, False]]), "at least one"),
    ],
)
def test_tokens_that_make_no_sense_are_refused(ids, mask, message):
    with pytest.raises(PolysemError, match=message):
        encoders.Tokens(ids, mask)
