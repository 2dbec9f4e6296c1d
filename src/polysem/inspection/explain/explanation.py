"""Why an image and a caption have the score they have: the score taken apart, and the data to draw or keep as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from polysem.data.vocabulary import END, START, tokenise
from polysem.encoders import BiGRU, Encoder, TextEncoder, Transformer
from polysem.errors import InputError, kind
from polysem.inspection.attention import Attention
from polysem.inspection.score_map import PhraseMap, ScoreMap
from polysem.inspection.token_boxes import TokenBoxes
from polysem.models.video import Moment
from polysem.similarity import Similarity

_WINNING_SHARE = 0.5
"""Of all positive products: what the winning dimensions hold together."""


@dataclass(frozen=True, eq=False)
class Contributions:
    """The score of a set of K vectors against one of L.

    matrix: (K, L) each pair's share; the shares sum to the score. A pair that decides nothing has a share near 0.
    closeness: (K, L) how close the two elements are by themselves: their cosine, unless the similarity says otherwise.
    score: the score, as the similarity gives it.
    match: the probability that the two match, where the similarity is calibrated to tell; None elsewhere.
    """

    matrix: Tensor
    closeness: Tensor
    score: float
    match: float | None = None

    @property
    def rows(self) -> Tensor:
        """(K,): what each element of the first set contributes in all."""
        return self.matrix.sum(1)

    @property
    def columns(self) -> Tensor:
        """(L,): what each element of the second set contributes in all."""
        return self.matrix.sum(0)

    @property
    def transposed(self) -> Contributions:
        """The same seen from the second set: (L, K)."""
        return Contributions(self.matrix.t(), self.closeness.t(), self.score, self.match)


@torch.no_grad()
def decompose_score(similarity: Similarity, first: Tensor, second: Tensor) -> Contributions:
    """The score of two sets, (K, D) and (L, D), split over pairs of elements. Either may be the image's
    where the similarity is symmetric; the first where it is not.

    Example:
        >>> import torch
        >>> from polysem import similarity
        >>> result = decompose_score(similarity.build("mil"), torch.eye(3)[:2], torch.eye(3)[:1])
        >>> result.score, result.matrix.tolist()
        (1.0, [[1.0], [0.0]])
    """
    for vectors in (first, second):
        if not isinstance(vectors, Tensor) or vectors.ndim != 2 or not vectors.is_floating_point():
            raise InputError(f"decompose_score() takes two sets, (elements, dim) tensors; got {kind(vectors)}.")
    score = similarity.scores(first[None], second[None])[0, 0]
    # In double precision, so that the shares sum to the score to its last digit.
    x, y = similarity.prepare(first.double()), similarity.prepare(second.double())
    matrix = similarity.contributions(first.double(), second.double())
    match = similarity.match_probabilities(score.double())
    closeness = similarity.closeness(x, y.t()).float()
    return Contributions(matrix.float(), closeness, float(score), None if match is None else float(match))


@torch.no_grad()
def find_score_drops(similarity: Similarity, image: Attention, text: Attention) -> tuple[Tensor | None, Tensor | None]:
    """How much the score of two sets falls without each token of the image (N,) and of the text (M,).

    None of a side whose tokens were not left out.
    """
    score = similarity.scores(image.vectors[None], text.vectors[None])[0, 0]
    drops = [
        None if image.without is None else score - similarity.scores(image.without, text.vectors[None])[:, 0],
        None if text.without is None else score - similarity.scores(image.vectors[None], text.without)[0],
    ]
    return drops[0], drops[1]


@dataclass(frozen=True, eq=False)
class WinningDimensions:
    """The dimensions that made two single vectors close, and the tokens that supplied them.

    dimensions: (J,) the fewest that hold half of the sum of all positive products, the strongest first.
    shares: (J,) what each adds to the closeness.
    image_tokens, text_tokens: (J,) the token that supplies most of it, on either side.
    image_supply, text_supply: (N,), (M,) in which share of these dimensions the token supplies the most; sums to 1.
    image_parts, text_parts: (N,), (M,) what each token adds to the closeness over all dimensions; sums to it.
    names: what the dimensions stand for, where they are classes.
    """

    dimensions: Tensor
    shares: Tensor
    image_tokens: Tensor
    text_tokens: Tensor
    image_supply: Tensor
    text_supply: Tensor
    image_parts: Tensor
    text_parts: Tensor
    names: tuple[str, ...] = ()


def find_winning_dimensions(
    similarity: Similarity, image: Attention, text: Attention, names: Sequence[str] | None = None
) -> WinningDimensions | None:
    """None unless both vectors are sums over tokens and their closeness is a sum over dimensions (called `names`)."""
    if image.terms is None or text.terms is None:
        return None
    x, y = (similarity.prepare(side.vectors.double())[0] for side in (image, text))
    shares = x * y
    with torch.no_grad():
        closeness = similarity.closeness(x[None], y[:, None])[0, 0]
    if not torch.isclose(closeness.double(), shares.sum(), atol=1e-6):
        return None  # a distance, say
    order = shares.argsort(descending=True)
    positive = shares[order].clamp(min=0)
    count = int((positive.cumsum(0) < _WINNING_SHARE * positive.sum()).sum()) + 1
    chosen = order[:count]
    # A token's part in a dimension is its term there, times the other side's value in it.
    parts = _prepare_terms(image, x) * y, _prepare_terms(text, y) * x
    columns: list[Any] = [part[:, chosen].argmax(0) for part in parts]
    columns += [torch.bincount(own, minlength=len(part)) / count for own, part in zip(columns, parts, strict=True)]
    columns += [part.sum(1).float() for part in parts]
    columns.append(() if names is None else tuple(names[dimension] for dimension in chosen.tolist()))
    return WinningDimensions(chosen, shares[chosen].float(), *columns)


def _prepare_terms(side: Attention, prepared: Tensor) -> Tensor:
    """(N, D): the terms, scaled as the similarity scales the vector."""
    terms, length = side.terms.double(), side.vectors.double().norm()  # type: ignore[union-attr]
    return terms * (prepared.norm() / length) if length > 0 else terms


@dataclass(frozen=True)
class NearestCaption:
    """A caption near an element. closeness: of the caption's nearest element, usually the cosine.

    matches: whether it is one of this very image's captions; None where that is not known.
    """

    caption: str
    closeness: float
    matches: bool | None


@dataclass(frozen=True)
class CaptionSource:
    """The captions that the nearest ones were chosen from: their name and number."""

    name: str
    count: int


@dataclass(frozen=True)
class LabelProbability:
    """A label and the probability that the model gives it."""

    label: str
    probability: float


@dataclass(frozen=True)
class Word:
    """A word as a person reads it.

    tokens: the positions of its tokens. special: a token that is not a word, such as the start of a sentence.
    known: False for a word outside the model's vocabulary, which it cannot tell from any other such word.
    """

    text: str
    tokens: tuple[int, ...]
    special: bool = False
    known: bool = True


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why an image (a set of K vectors) and a caption (a set of L) have their score.

    image, places: which local features each vector took in, and their boxes. picture: to draw on, if there is one.
    text, words: the same for the caption.
    contributions: the score split over pairs of elements.
    nearest: for each element of the image the captions nearest to it, the nearest first; of those in `searched`.
    winning: for models of one vector that is a weighted sum.
    moment: of a video, the part that the caption matches best; the picture is the frame there.
    image_drops, text_drops: (N,), (M,) of a side whose tokens were left out one by one: how much the score falls
    without the token, given the other side as it is; negative where it rises.
    score_map: what each local feature of the image adds to the score: where in the image this caption is.
    phrase_maps: the same of each phrase of the caption that names a thing, asked by itself; empty for one phrase alone.
    labels: of a model that predicts labels, the likeliest of the "image" and of the "text", the likeliest first.
    """

    model: str
    image_name: str
    caption: str
    similarity: str
    picture: Image.Image | None
    image: Attention
    places: TokenBoxes
    text: Attention
    words: tuple[Word, ...]
    contributions: Contributions
    nearest: tuple[tuple[NearestCaption, ...], ...] = ()
    searched: CaptionSource | None = None
    winning: WinningDimensions | None = None
    moment: Moment | None = None
    labels: Mapping[str, tuple[LabelProbability, ...]] = field(default_factory=dict)
    image_drops: Tensor | None = None
    text_drops: Tensor | None = None
    score_map: ScoreMap | None = None
    phrase_maps: tuple[PhraseMap, ...] = ()

    @property
    def score(self) -> float:
        return self.contributions.score

    @property
    def match(self) -> float | None:
        """The probability that image and caption match, where the model is calibrated to tell; None elsewhere."""
        return self.contributions.match

    @property
    def word_weights(self) -> Tensor:
        """(T, L, words): the share of each word in what an element of the caption takes in."""
        return sum_over_words(self.text.weights, self.words)

    @property
    def label_line(self) -> str:
        """The labels of both sides in a line; empty without labels."""
        said = {side: ", ".join(f"{x.label} {x.probability:.2f}" for x in some) for side, some in self.labels.items()}
        return "labels of the image: {image} · of the caption: {text}".format(**said) if said else ""

    def as_dict(self) -> dict[str, Any]:
        """JSON-able. The vectors themselves are left out: `encode_images` gives them."""
        winning: dict[str, Any] | None = None
        if self.winning is not None:
            winning = {name: value.tolist() for name, value in vars(self.winning).items() if name != "names"}
            winning["names"] = list(self.winning.names) or None
        places = self.places
        boxes = [box.tolist() if known else None for box, known in zip(places.boxes, places.located, strict=True)]
        located: dict[str, Any] = {"kind": places.kind, "size": list(places.size), "grid": list(places.grid)}
        located["boxes"] = boxes
        if places.kind == "frames":
            located["times"] = list(places.times) or None
        return {
            "model": self.model,
            "image": self.image_name,
            "caption": self.caption,
            "score": self.score,
            "match": self.match,
            "similarity": self.similarity,
            "contributions": self.contributions.matrix.tolist(),
            "closeness": self.contributions.closeness.tolist(),
            "image_weights": {**_weights_as_dict(self.image, self.image_drops), "places": located},
            "text_weights": {
                **_weights_as_dict(self.text, self.text_drops),
                "words": [{**asdict(word), "tokens": list(word.tokens)} for word in self.words],
                "by_word": self.word_weights.tolist(),
            },
            "nearest": [[asdict(near) for near in element] for element in self.nearest],
            "searched": None if self.searched is None else asdict(self.searched),
            "winning": winning,
            "score_map": None if self.score_map is None else self.score_map.as_dict(),
            "phrase_maps": [each.as_dict() for each in self.phrase_maps],
            "labels": {side: [asdict(each) for each in some] for side, some in self.labels.items()} or None,
            "moment": None if self.moment is None else asdict(self.moment),
        }


def _weights_as_dict(attention: Attention, drops: Tensor | None) -> dict[str, Any]:
    """Shapes: weights and won (iterations, elements, tokens), the others (tokens,)."""
    values = {"weights": attention.weights, "won": attention.won, "wins": attention.wins}
    values |= {"global_feature": attention.global_weights, "score_drops": drops}
    known = {"how": attention.how, "hidden_together": attention.hidden_together}
    return {**known, **{name: None if x is None else x.tolist() for name, x in values.items()}}


def align_words(encoder: Encoder, text: str) -> tuple[Word, ...]:
    """The words of `text`, special tokens included: together they hold every token the encoder makes of it, once."""
    if not isinstance(encoder, TextEncoder):
        raise InputError(f"{type(encoder).__name__} does not read texts.")
    tokens = encoder.tokenize([text])  # also checks the text
    if isinstance(encoder, Transformer):
        return _align_subwords(encoder, text)
    if isinstance(encoder, BiGRU):
        texts = [START, *tokenise(text), END][: encoder.max_length]
        return tuple(
            Word(word, (i,), word in (START, END), encoder.vocabulary is None or word in encoder.vocabulary)
            for i, word in enumerate(texts)
        )
    return tuple(Word(f"token {i + 1}", (i,)) for i in range(tokens.ids.shape[1]))


def sum_over_words(weights: Tensor, words: tuple[Word, ...]) -> Tensor:
    """(..., N) over tokens -> (..., words): the weight of a word is the sum of its tokens' weights."""
    return torch.stack([weights[..., list(word.tokens)].sum(-1) for word in words], dim=-1)


def _align_pieces(encoder: Transformer, text: str) -> tuple[Word, ...]:
    """The words of a tokenizer that does not say where its tokens are from: sentencepiece marks where one begins."""
    tokenizer, words = encoder.tokenizer, list[Word]()
    for i, token in enumerate(encoder.call_tokenizer([text])["input_ids"][0]):
        piece, known = tokenizer.convert_ids_to_tokens(token), token != tokenizer.unk_token_id
        if token in tokenizer.all_special_ids and known:
            words.append(Word(piece, (i,), special=True))
        elif words and not words[-1].special and not piece.startswith("▁"):
            last = words[-1]
            words[-1] = Word(last.text + piece, (*last.tokens, i), known=last.known and known)
        else:
            words.append(Word(piece.removeprefix("▁"), (i,), known=known))
    return tuple(words)


def _align_subwords(encoder: Transformer, text: str) -> tuple[Word, ...]:
    text = encoder.prepare_text(text)
    if not encoder.tokenizer.is_fast:
        return _align_pieces(encoder, text)
    encoding = encoder.call_tokenizer([text], return_offsets_mapping=True)
    ids, spans, owners = encoding["input_ids"][0], encoding["offset_mapping"][0], encoding.word_ids(0)
    words: list[Word] = []
    for i, (token, (start, end), owner) in enumerate(zip(ids, spans, owners, strict=True)):
        known = token != encoder.tokenizer.unk_token_id
        if owner is None:
            words.append(Word(encoder.tokenizer.convert_ids_to_tokens(token), (i,), special=True))
        elif i and owners[i - 1] == owner:
            last = words[-1]
            words[-1] = Word(last.text + text[start:end].strip(), (*last.tokens, i), known=last.known and known)
        else:
            words.append(Word(text[start:end].strip(), (i,), known=known))
    return tuple(words)
