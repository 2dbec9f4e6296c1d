"""What goes over the wire, in both directions. The OpenAPI document is made from these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

MOST = 1000
"""Results that can be paged through."""
LONGEST_TEXT = 1000


def _storable(text: str) -> str:
    """Lone surrogates and NUL come through JSON, and no encoder, file or database takes them."""
    if "\0" in text or not _encodes(text):
        raise ValueError("holds a character that is no text")
    return text


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _addressable(key: str) -> str:
    if key in (".", ".."):
        raise ValueError("cannot be part of an address")
    return key


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return _storable(text)


Text = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_TEXT), AfterValidator(_said)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=1024), AfterValidator(_storable)]
Id = Annotated[Key, AfterValidator(_addressable)]
FilterText = Annotated[
    str,
    StringConstraints(min_length=1, max_length=2000),
    AfterValidator(_storable),
    Field(examples=["label = 'dog' and year > 2020"]),
]
Side = Literal["image", "text"]
Mode = Literal["exact", "fast"]


class Asked(BaseModel):
    """What a client sends: unknown names are mistakes."""

    model_config = ConfigDict(extra="forbid")


class SearchRequest(Asked):
    """One of `text`, `item` and `image`, and how to search."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"text": "a dog on a beach", "k": 5}]})

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
    def _one_thing(self) -> SearchRequest:
        if sum(value is not None for value in (self.text, self.item, self.image)) != 1:
            raise ValueError("search for one thing: text, item or image")
        if self.side is not None and self.item is None:
            raise ValueError("side goes with item")
        if self.offset + self.k > MOST:
            raise ValueError(f"offset + k may be {MOST} at most")
        return self


class ExplainRequest(Asked):
    """An image of the index, and the words to explain its score with: `text`, or those of a text item."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"item": "beach.jpg", "text": "a dog on a beach"}]}
    )

    item: Key = Field(description="An image.")
    text: Text | None = None
    with_: Key | None = Field(None, alias="with", description="A text of the index, by its id.")

    @model_validator(mode="after")
    def _one_text(self) -> ExplainRequest:
        if (self.text is None) == (self.with_ is None):
            raise ValueError("give one of text and with")
        return self


class NewItem(Asked):
    """What is said of a picture that is added."""

    id: Id | None = Field(None, description="By default made from the picture's content.")
    captions: list[Text] = Field(default_factory=list, max_length=32)
    labels: list[Key] = Field(default_factory=list, max_length=64)
    metadata: dict[Key, str | int | float | bool | None] = Field(default_factory=dict, max_length=64)


# --------------------------------------------------------------------------------------------------------- answers


class ErrorInfo(BaseModel):
    code: str = Field(description="For programs, e.g. bad_request.")
    message: str = Field(description="For people.")


class Error(BaseModel):
    error: ErrorInfo


class Found(BaseModel):
    rank: int
    id: str
    side: Side
    score: float
    caption: str | None
    labels: list[str]
    metadata: dict[str, Any]
    relevant: bool | None = Field(description="null where nobody asked.")
    duplicates: list[str] = Field(description="Ids of near-duplicates that were folded into this one.")
    image: str | None = Field(description="Where its picture is.")


class CutInfo(BaseModel):
    count: int = Field(description="The first so many results are relevant, counted from rank 1.")
    threshold: float | None
    reliable: bool
    complete: bool = Field(description="False: more relevant ones may follow.")
    doubtful: bool = Field(description="Perhaps nothing is relevant, not even the best.")
    explained: str


class Milliseconds(BaseModel):
    encode: float
    search: float


class SearchAnswer(BaseModel):
    results: list[Found]
    cut: CutInfo | None
    mode: Mode
    scored: int = Field(description="How many items were compared in full.")
    of: int = Field(description="How many there are that pass the filter.")
    unreadable: int = Field(description="How many could not be searched, because their file is damaged.")
    milliseconds: Milliseconds
    query: SearchRequest


class UploadAnswer(BaseModel):
    image: str = Field(description="The token to search with.")
    expires: float = Field(description="Seconds until it is forgotten.")


class Caption(BaseModel):
    id: str
    caption: str | None


class ItemAnswer(BaseModel):
    id: str
    side: Side
    caption: str | None
    labels: list[str]
    metadata: dict[str, Any]
    image: str | None
    captions: list[Caption] = Field(description="Of an image: the texts that came with it.")


class Added(BaseModel):
    id: str
    new: int
    replaced: int
    unchanged: int
    removed: int = Field(description="Captions that the picture no longer has.")


class Removed(BaseModel):
    removed: int


class Health(BaseModel):
    status: Literal["ready", "starting", "stopping"]


class ModelInfo(BaseModel):
    name: str
    fingerprint: str
    sets: dict[str, int]
    dim: int
    similarity: dict[str, Any]
    provenance: dict[str, Any]


class Filters(BaseModel):
    labels: list[tuple[str, int]]
    metadata: list[dict[str, Any]]
    of: int = Field(description="Items looked at.")
    sampled: bool = Field(description="Whether these are only some of all.")


class Stats(BaseModel):
    items: dict[str, int]
    model: ModelInfo
    audit: dict[str, Any] | None = Field(description="Recall of the fast mode, as last measured by `polysem verify`.")
    audit_outdated: bool
    modes: list[Mode]
    writable: bool
    token: Literal["none", "writes", "all"] = Field(description="What needs the token.")
    filters: Filters
    bytes: int | None
    version: str


class Point(BaseModel):
    x: float
    y: float
    side: Side
    slot: int
    id: str
    label: str | None
    caption: str


class MapAnswer(BaseModel):
    ready: bool
    progress: float = Field(description="0 to 1. Ask again until it is ready.")
    points: list[Point]
    slots: int
    labels: list[str]
    note: str


class ExplainAnswer(BaseModel):
    score: float
    similarity: str
    caption: str
    how: str = Field(description="What the weights are: attention, pooling or omission.")
    elements: list[dict[str, Any]]
    text: dict[str, Any]
    contributions: list[list[float]]
    closeness: list[list[float]]
    scale: dict[str, float]
    width: int
    height: int


class ModelAnswer(BaseModel):
    sets: dict[str, dict[str, float] | None] = Field(description="How diverse; null for single vectors.")
    slots: dict[str, dict[str, Any] | None]
    sample: dict[str, int] = Field(description="On how many items and pairs this was measured.")
    figures: dict[str, Any] = Field(description="Retrieval figures with the protocol they were measured under.")
    data: dict[str, Any]
    model: ModelInfo
    items: dict[str, int]
    bytes: int | None
    audit: dict[str, Any] | None
    audit_outdated: bool


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error, "description": about}
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


def of_kind(kind: str, about: str) -> dict[int | str, dict[str, Any]]:
    """A 200 that is no JSON."""
    form = {"type": "string"} if kind.startswith("text/") else {"type": "string", "format": "binary"}
    return {200: {"description": about, "content": {kind: {"schema": form}}}}
