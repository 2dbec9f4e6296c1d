"""Why an image and a caption have the score they have: the data of it, to draw or to keep as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from PIL import Image
from torch import Tensor

from polysem.inspection.attention import Attention
from polysem.inspection.contributions import Contributions
from polysem.inspection.token_boxes import Places
from polysem.inspection.words import Word, word_weights
from polysem.models.video import Moment


@dataclass(frozen=True)
class Near:
    """A caption near an element. closeness: of the caption's nearest element, the cosine as a rule.

    matches: whether it is one of this very image's captions; None where nobody knows.
    """

    caption: str
    closeness: float
    matches: bool | None


@dataclass(frozen=True)
class Searched:
    """Which captions the nearest ones were chosen from."""

    name: str
    count: int


@dataclass(frozen=True, eq=False)
class Winning:
    """The dimensions that made two single vectors close, and the tokens that supplied them.

    dimensions: (J,) the fewest that hold half of all that speaks for the match, the strongest first.
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


@dataclass(frozen=True)
class Said:
    """A label and how probable the model holds it to be."""

    label: str
    probability: float


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why an image (a set of K vectors) and a caption (a set of L) have their score.

    image, places: which local features each vector took in, and where they lie. picture: to draw on, if there is one.
    text, words: the same for the caption.
    contributions: the score taken apart into element pairs.
    nearest: for each element of the image the captions nearest to it, the nearest first; of those in `searched`.
    winning: for models of one vector that is a weighted sum.
    moment: of a video, the part that the caption matches best; the picture is the frame there.
    labels: of a model that predicts labels, the likeliest of the "image" and of the "text", the first first.
    """

    model: str
    image_name: str
    caption: str
    similarity: str
    picture: Image.Image | None
    image: Attention
    places: Places
    text: Attention
    words: tuple[Word, ...]
    contributions: Contributions
    nearest: tuple[tuple[Near, ...], ...] = ()
    searched: Searched | None = None
    winning: Winning | None = None
    moment: Moment | None = None
    labels: Mapping[str, tuple[Said, ...]] = field(default_factory=dict)

    @property
    def score(self) -> float:
        return self.contributions.score

    @property
    def word_weights(self) -> Tensor:
        """(T, L, words): the share of each word in what an element of the caption takes in."""
        return word_weights(self.text.weights, self.words)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able. The vectors themselves are left out: `encode_images` gives them."""
        return {
            "model": self.model,
            "image": self.image_name,
            "caption": self.caption,
            "score": self.score,
            "similarity": self.similarity,
            "contributions": _numbers(self.contributions.matrix),
            "closeness": _numbers(self.contributions.closeness),
            "image_weights": {**_weights(self.image), "places": _places(self.places)},
            "text_weights": {
                **_weights(self.text),
                "words": [{**asdict(word), "tokens": list(word.tokens)} for word in self.words],
                "by_word": _numbers(self.word_weights),
            },
            "nearest": [[asdict(near) for near in element] for element in self.nearest],
            "searched": None if self.searched is None else asdict(self.searched),
            "winning": None
            if self.winning is None
            else {
                **{name: _numbers(value) for name, value in vars(self.winning).items() if name != "names"},
                "names": list(self.winning.names) or None,
            },
            "labels": {side: [asdict(each) for each in said] for side, said in self.labels.items()} or None,
            "moment": None if self.moment is None else asdict(self.moment),
        }


def _weights(found: Attention) -> dict[str, Any]:
    """Shapes: weights and won (iterations, elements, tokens), the others (tokens,)."""
    return {
        "how": found.how,
        "weights": _numbers(found.weights),
        "won": None if found.won is None else _numbers(found.won),
        "wins": None if found.wins is None else _numbers(found.wins),
        "global_feature": None if found.common is None else _numbers(found.common),
    }


def _places(places: Places) -> dict[str, Any]:
    boxes = [None if not there else box.tolist() for box, there in zip(places.boxes, places.located, strict=True)]
    found = {"kind": places.kind, "size": list(places.size), "grid": list(places.grid), "boxes": boxes}
    return found if places.kind != "frames" else {**found, "times": list(places.times) or None}


def _numbers(x: Tensor) -> Any:
    return x.tolist()
