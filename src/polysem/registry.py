"""How a part is named, configured and rebuilt.

A part is its constructor's knobs and its forward. Registering it under a name gives `build(name, **knobs)`, typed
validation of the knobs, and `part.config`: a frozen, JSON-able mapping from which `build(**part.config)` makes the
part again.
"""

from __future__ import annotations

import inspect
import keyword
from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    NoReturn,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import torch
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import PydanticSerializationError
from torch import Tensor, nn

from polysem.errors import ConfigError, InputError, unknown

PartT = TypeVar("PartT", bound="Part")
P = TypeVar("P", bound="Part")


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError("A part's config is frozen. Build a new part: build(**{**part.config, 'knob': value}).")


class FrozenList(list[Any]):
    """A list that cannot be changed."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __reduce__(self) -> tuple[type[FrozenList], tuple[list[Any]]]:
        return FrozenList, (list(self),)

    def __deepcopy__(self, _: object) -> FrozenList:
        return self


class Config(dict[str, Any]):
    """A dict that cannot be changed, nor anything in it: what a part was built from, its registry name included."""

    def __init__(self, knobs: Mapping[str, Any]) -> None:
        super().__init__({name: _frozen(value) for name, value in knobs.items()})

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = pop = popitem = clear = setdefault = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(repr(sorted(self.items())))

    def __reduce__(self) -> tuple[type[Config], tuple[dict[str, Any]]]:
        return Config, (dict(self),)

    def __deepcopy__(self, _: object) -> Config:
        return self


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return Config(value)
    return FrozenList(_frozen(entry) for entry in value) if isinstance(value, list) else value


class Part(nn.Module, ABC):
    """A swappable piece of the system: weights, a frozen config and a forward."""

    config: Config

    official_keys: ClassVar[Mapping[str, str]] = {}
    """Released code's tensor name -> ours, for `load_official`; empty where no author released the part."""

    def __init__(self) -> None:
        super().__init__()

    def load_official(self, state: Mapping[str, Tensor]) -> Self:
        """Take the tensors of the authors' released code under its own names; returns the part itself."""
        own = self.translate_official(state)
        expected = self.state_dict()
        for name in sorted(own.keys() - expected.keys()):
            raise InputError(
                f"{type(self).__name__}.load_official() was given a tensor for {name!r}: it was built without it. "
                f"It has: {', '.join(sorted(expected))}. Build it with the checkpoint's settings."
            )
        for name in sorted(expected.keys() - own.keys()):
            raise InputError(
                f"{type(self).__name__}.load_official() found no tensor for {name!r}. "
                f"Given: {', '.join(sorted(state))}. Expected the names of the released code."
            )
        for name, tensor in own.items():
            if tensor.shape != expected[name].shape:
                raise InputError(
                    f"{type(self).__name__}.load_official(): the tensor for {name!r} has shape {tuple(tensor.shape)}, "
                    f"this part was built for {tuple(expected[name].shape)}. Build it with the checkpoint's sizes."
                )
        self.load_state_dict(own)
        return self

    def translate_official(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename the released code's tensors to ours. Tensors that code keeps but never uses are dropped."""
        if not self.official_keys:
            raise ConfigError(f"{type(self).__name__} has no released counterpart to load; use load_state_dict().")
        for name in sorted(state.keys() - self.official_keys.keys()):
            raise unknown(f"tensor of the released {type(self).__name__}", name, self.official_keys)
        return {self.official_keys[name]: torch.as_tensor(tensor) for name, tensor in state.items()}

    def reject_knobs(self, problem: str) -> NoReturn:
        """Refuse a combination of knobs that the types alone cannot rule out."""
        raise ConfigError(f"{type(self).__name__}: {problem}")


@dataclass(frozen=True)
class Knob:
    name: str
    type: str
    default: str


@dataclass(frozen=True)
class PartInfo:
    """What `polysem parts` and the documentation show of a part."""

    name: str
    summary: str
    knobs: tuple[Knob, ...]


class Registry(Generic[PartT]):
    """The parts of one folder by name."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._parts: dict[str, type[PartT]] = {}

    def register(self, name: str) -> Callable[[type[P]], type[P]]:
        """Class decorator: make the part buildable as `name` and validate its knobs however it is constructed."""

        def decorate(cls: type[P]) -> type[P]:
            _validate_knobs_on_construction(cls, name)
            self._parts[name] = cls  # type: ignore[assignment]
            return cls

        return decorate

    def build(self, name: str, **knobs: Any) -> PartT:
        """The part called `name` with these knobs; `build(**part.config)` rebuilds a part."""
        return self.find(name)(**knobs)

    def check(self, name: str, **knobs: Any) -> None:
        """Raise as `build` would for the knobs given, without building: those left out may still come."""
        schema = _schema(self.find(name), partial=True)
        knobs = {_spoken(knob): value for knob, value in knobs.items()}
        for knob in knobs.keys() - schema.model_fields.keys():
            raise unknown(f"knob of {name!r}", knob, schema.model_fields)
        try:
            schema(**knobs)
        except ValidationError as error:
            raise ConfigError(_explain(name, error)) from None

    def names(self) -> tuple[str, ...]:
        """Every name that `build` knows, in alphabetical order."""
        return tuple(sorted(self._parts))

    def describe(self, name: str) -> PartInfo:
        """A part's one-line summary and its knobs."""
        cls = self.find(name)
        summary = (inspect.getdoc(cls) or "").split("\n", 1)[0]
        hints = get_type_hints(cls.__init__, include_extras=True)
        knobs = tuple(
            Knob(
                _spoken(parameter.name),
                type_name(hints[parameter.name]),
                "required" if parameter.default is parameter.empty else repr(parameter.default),
            )
            for parameter in _knobs(cls)
        )
        return PartInfo(name, summary, knobs)

    def find(self, name: str) -> type[PartT]:
        """The class behind a name."""
        if name not in self._parts:
            raise unknown(self.kind, str(name), self._parts)
        return self._parts[name]


def type_name(hint: Any) -> str:
    """A type as a reader wants it: its choices, its bounds, its alternatives."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return type_name(arguments[0]) + "".join(_bounds(arguments[1:]))
    if origin is Literal:
        return " | ".join(repr(choice) for choice in arguments)
    if origin in (Union, UnionType):
        return " | ".join(type_name(argument) for argument in arguments)
    if arguments:
        return f"{origin.__name__}[{', '.join(type_name(argument) for argument in arguments)}]"
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))


def _bounds(constraints: tuple[Any, ...]) -> Iterator[str]:
    for constraint in constraints:
        for nested in getattr(constraint, "metadata", ()):  # pydantic.Field keeps them in a list
            yield from _bounds((nested,))
        for attribute, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"), ("multiple_of", "multiple of")):
            bound = getattr(constraint, attribute, None)
            if bound is not None:
                yield f" {sign} {bound}"


def _knobs(cls: type[Part]) -> list[inspect.Parameter]:
    return list(inspect.signature(cls.__init__).parameters.values())[1:]


def _spoken(parameter: str) -> str:
    """What users and configs call a knob: `lambda`, which Python only allows as `lambda_`."""
    return parameter[:-1] if parameter.endswith("_") and keyword.iskeyword(parameter[:-1]) else parameter


def _written(knob: str) -> str:
    """The parameter behind a knob."""
    return f"{knob}_" if keyword.iskeyword(knob) else knob


@cache
def _schema(cls: type[Part], partial: bool = False) -> type[BaseModel]:
    """A pydantic model of the constructor: its types are the knobs' types. partial: no knob is required."""
    hints = get_type_hints(cls.__init__, include_extras=True)
    required = None if partial else ...
    fields: dict[str, Any] = {
        _spoken(knob.name): (hints[knob.name], required if knob.default is knob.empty else knob.default)
        for knob in _knobs(cls)
    }
    return create_model(cls.__name__, __config__=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False), **fields)


def _validate_knobs_on_construction(cls: type[Part], name: str) -> None:
    construct, schema = cls.__init__, _schema(cls)

    signature = inspect.signature(construct)

    @wraps(construct)
    def validated(self: Part, *args: Any, **given: Any) -> None:
        for knob in {_spoken(knob) for knob in given} - schema.model_fields.keys():
            raise unknown(f"knob of {name!r}", knob, schema.model_fields)
        try:
            written = {_written(knob): value for knob, value in given.items()}
            knobs = dict(signature.bind_partial(self, *args, **written).arguments)
            values = schema(**{_spoken(knob): value for knob, value in knobs.items() if value is not self}).model_dump(
                mode="json"
            )
        except ValidationError as error:
            raise ConfigError(_explain(name, error)) from None
        except (TypeError, PydanticSerializationError) as error:
            raise ConfigError(f"Cannot build {name!r}: {error}.") from None
        construct(self, **{_written(knob): value for knob, value in values.items()})
        self.config = Config({"name": name, **values})

    cls.__init__ = validated  # type: ignore[method-assign]


def _explain(name: str, error: ValidationError) -> str:
    """pydantic's findings in one line each: the knob, what was given, what was expected."""
    problems = []
    for found in error.errors():
        knob = ".".join(str(step) for step in found["loc"]) or "knobs"
        given = "" if found["type"] == "missing" else f" (given: {found['input']!r})"
        problems.append(f"{knob}: {found['msg']}{given}")
    return f"Cannot build {name!r}: " + "; ".join(problems) + "."
