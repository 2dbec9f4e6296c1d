"""What clients send. The OpenAPI document is made from these and from the answers (`schemas`)."""

from __future__ import annotations

from typing import Annotated, Literal

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
    """What a client sends: unknown names, and "5" for 5, are mistakes."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SearchRequest(Asked):
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

    model_config = ConfigDict(json_schema_extra={"examples": [{"item": "beach.jpg", "text": "a dog on a beach"}]})

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
