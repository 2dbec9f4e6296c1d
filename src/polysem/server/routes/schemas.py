"""What clients send and what the server answers; the OpenAPI document is made from these."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from polysem.data.collection import Side

MOST = 1000
"""Results that can be paged through."""


def _check_storable(text: str) -> str:
    """Lone surrogates and NUL come through JSON, and no encoder, file or database takes them."""
    if "\0" in text or text.encode(errors="ignore").decode() != text:
        raise ValueError("holds a character that is not text")
    return text


def _check_words(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return _check_storable(text)


def _check_id(key: str) -> str:
    if key in (".", ".."):
        raise ValueError("cannot be part of a URL")
    return key


Text = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_check_words)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=1024), AfterValidator(_check_storable)]
Id = Annotated[Key, AfterValidator(_check_id)]
FilterText = Annotated[
    str,
    StringConstraints(min_length=1, max_length=2000),
    AfterValidator(_check_storable),
    Field(examples=["label = 'dog' and year > 2020"]),
]
Mode = Literal["exact", "fast"]


class RequestBody(BaseModel):
    """What a client sends: unknown names, and "5" for 5, are mistakes."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SearchRequest(RequestBody):
    """One of `text`, `item` and `image`, and how to search."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "a dog on a beach", "k": 5}]})

    text: Text | None = Field(None, description="Search for what these words say.")
    item: Key | None = Field(None, description="Search for what is like this item of the index.")
    side: Side | None = Field(None, description="Of `item`, where an id is on both sides.")
    image: Key | None = Field(None, description="Search for what is like this picture: a token from `uploads`.")
    find: Side = Field("image", description="What to find.")
    k: int = Field(24, ge=1, le=200, description="How many results.")
    offset: int = Field(0, ge=0, lt=MOST, description="Leave out the first so many; offset + k may reach 1,000.")
    filter: FilterText | None = Field(None, description="Only items for which this holds.")
    mode: Mode | None = Field(None, description="By default the index's own: exact.")
    relevant: bool = Field(False, description="Mark what the query's own scores show to be relevant. Drops nothing.")
    dedupe: bool = Field(False, description="Fold near-duplicates into the best of them.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(value is not None for value in (self.text, self.item, self.image)) != 1:
            raise ValueError("search for one thing: text (q in a URL), item or image")
        if self.side is not None and self.item is None:
            raise ValueError("side goes with item")
        if self.offset + self.k > MOST:
            raise ValueError(f"offset + k may be {MOST} at most")
        return self


class SearchQuery(SearchRequest):
    """The same in a URL, whose values are all text. The route itself refuses unknown names."""

    model_config = ConfigDict(extra="ignore", strict=False)

    text: Text | None = Field(None, alias="q", description="Search for what these words say.")


class ExplainRequest(RequestBody):
    """An image of the index, and the words to explain its score with: `text`, or those of a text item."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"item": "beach.jpg", "text": "a dog on a beach"}]})

    item: Key = Field(description="An image.")
    text: Text | None = None
    with_: Key | None = Field(None, alias="with", description="A text of the index, by its id.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.text is None) == (self.with_ is None):
            raise ValueError("give one of text and with")
        return self


class NewItem(RequestBody):
    """What is said of a picture that is added."""

    id: Id | None = Field(None, description="By default made from the picture's content.")
    captions: list[Text] = Field(default_factory=list, max_length=32)
    labels: list[Key] = Field(default_factory=list, max_length=64)
    metadata: dict[Key, str | int | float | bool | None] = Field(default_factory=dict, max_length=64)


class ErrorInfo(BaseModel):
    code: str = Field(description="For programs, e.g. bad_request.")
    message: str = Field(description="For people.")


class ErrorAnswer(BaseModel):
    error: ErrorInfo


class Answer(BaseModel):
    """An answer, made from the library's objects by their attributes."""

    model_config = ConfigDict(from_attributes=True)


class MomentInfo(Answer):
    """The part of a video that matches best. Seconds are null where nobody knows how long the video is."""

    time: float | None = Field(description="Of the best frame: where to look.")
    start: float | None = Field(description="Where to begin to play.")
    end: float | None
    score: float = Field(description="Of the best frame alone.")
    frame: int = Field(description="The best of those looked at, from 0.")
    first: int
    last: int = Field(description="Belongs to it.")
    curve: list[float] = Field(description="The score of each frame that was looked at, at even distances in time.")
    text: str = Field(description="0:04–0:06, for people.")


class ItemInfo(Answer):
    id: str
    side: Side
    caption: str | None
    labels: list[str]
    metadata: dict[str, Any]
    image: str | None = Field(description="Where its picture is; of a video, a frame (`at`).")
    video: str | None = Field(description="Where its video is; null if it has none.")


class SearchHit(ItemInfo):
    rank: int
    score: float
    relevant: bool | None = Field(description="null where nobody asked.")
    duplicates: list[str] = Field(description="Ids of near-duplicates that were folded into this one.")
    moment: MomentInfo | None = Field(description="Of a video: the part that matches best.")
    match: float | None = Field(
        description="The probability, 0 to 1, that text and picture match; null where the model is not calibrated to "
        "tell, and between two of a kind."
    )


class CutInfo(Answer):
    count: int = Field(description="The first so many results are relevant, counted from rank 1.")
    threshold: float | None
    reliable: bool
    complete: bool = Field(description="False: more relevant ones may follow.")
    doubtful: bool = Field(description="Perhaps nothing is relevant, not even the best.")
    explained: str


class Milliseconds(Answer):
    encode: float
    search: float


class SearchAnswer(Answer):
    results: list[SearchHit]
    cut: CutInfo | None
    mode: Mode
    scored: int = Field(description="How many items were compared in full.")
    of: int = Field(description="How many there are that pass the filter.")
    unreadable: int = Field(description="How many could not be searched, because their file is damaged.")
    milliseconds: Milliseconds
    query: SearchRequest


class UploadAnswer(Answer):
    image: str = Field(description="The token to search with.")
    expires: float = Field(description="Seconds until it is forgotten.")


class CaptionInfo(Answer):
    id: str
    caption: str | None


class ItemAnswer(ItemInfo):
    captions: list[CaptionInfo] = Field(description="Of an image: the texts that came with it.")


class AddAnswer(Answer):
    id: str
    new: int
    replaced: int
    unchanged: int
    removed: int = Field(description="Captions that the picture no longer has.")


class RemoveAnswer(Answer):
    removed: int


class HealthAnswer(Answer):
    status: Literal["ready", "starting", "stopping"]


class ModelInfo(Answer):
    name: str
    fingerprint: str
    sets: dict[str, int]
    dim: int
    similarity: dict[str, Any]
    provenance: dict[str, Any]


class FilterValues(Answer):
    labels: list[tuple[str, int]]
    metadata: list[dict[str, Any]]
    of: int = Field(description="Items looked at.")
    sampled: bool = Field(description="Whether these are only some of all.")


class IndexInfo(Answer):
    items: dict[str, int]
    bytes: int | None
    model: ModelInfo
    audit: dict[str, Any] | None = Field(description="Recall of the fast mode, as last measured by `polysem verify`.")
    audit_outdated: bool


class StatsAnswer(IndexInfo):
    modes: list[Mode]
    writable: bool
    token: Literal["none", "writes", "all"] = Field(description="What needs the token.")
    filters: dict[str, FilterValues] = Field(description="Of each side, what one can filter its items by.")
    credits: list[str] = Field(description="Whom to name, and which licence, wherever the items are shown.")
    version: str


class ModelAnswer(IndexInfo):
    sets: dict[str, dict[str, float] | None] = Field(description="How diverse; null for single vectors.")
    slots: dict[str, dict[str, Any] | None]
    sample: dict[str, int] = Field(description="On how many items and pairs this was measured.")
    figures: dict[str, Any] = Field(description="Retrieval figures with the protocol they were measured under.")
    data: dict[str, Any]


class MapPoint(Answer):
    x: float
    y: float
    side: Side
    slot: int
    id: str
    label: str | None
    caption: str


class MapAnswer(Answer):
    ready: bool
    progress: float = Field(description="0 to 1. Ask again until it is ready.")
    points: list[MapPoint] = []
    slots: int = 0
    labels: list[str] = []
    note: str


class TimelineInfo(Answer):
    times: list[float] | None = Field(description="When each frame is, in seconds; null where nobody knows.")
    scores: list[float] = Field(description="What each scores with the text alone.")
    adds: list[float] | None = Field(description="What each adds to the score, where it is such a sum.")
    moment: MomentInfo


class ScoreMapInfo(Answer):
    phrase: str | None = Field(description="The phrase of the text that it is of; null: all of it.")
    score: float = Field(description="Of the phrase with the picture.")
    how: Literal["sum", "omission"] = Field(
        description="sum: what each part of the picture adds to the score, which is a sum over them and what has no "
        "place. omission: how far the score falls without that part."
    )
    attention: dict[str, Any] = Field(description="The values where they lie, as of an element.")
    max: float = Field(description="The largest value; negative ones speak against the text.")
    placeless: float | None = Field(description="Of a sum: what no part of the picture adds.")


class ExplainAnswer(Answer):
    score: float
    match: float | None = Field(description="As in a search: the probability that they match, or null.")
    similarity: str
    caption: str
    how: str = Field(
        description="What the weights are: attention, pooling, omission, or score: how far the score "
        "falls without that part."
    )
    maps: list[ScoreMapInfo] = Field(
        description="Where in the picture this text is: all of it, then each of its phrases that names a thing. Empty "
        "where no map can be made."
    )
    elements: list[dict[str, Any]]
    text: dict[str, Any]
    contributions: list[list[float]]
    closeness: list[list[float]]
    scale: dict[str, float]
    width: int
    height: int
    film: TimelineInfo | None = Field(description="Of a video: its frames, one after the other.")


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": about}
    for status, about in {
        400: "The request cannot be understood or done.",
        401: "The token is missing or wrong.",
        403: "Not allowed: another site, a read-only server, or one without a token.",
        404: "There is nothing here.",
        408: "The body came in too slowly.",
        413: "Too large.",
        415: "Of a kind that is not read here.",
        429: "Too many requests; Retry-After says when to come back.",
        500: "A defect of the server.",
        503: "Busy or still starting; Retry-After says when to come back.",
        504: "It took too long.",
    }.items()
}


def describe_binary(kind: str, about: str) -> dict[int | str, dict[str, Any]]:
    """A 200 that is not JSON, for the OpenAPI document."""
    form = {"type": "string"} if kind.startswith("text/") else {"type": "string", "format": "binary"}
    return {200: {"description": about, "content": {kind: {"schema": form}}}}
