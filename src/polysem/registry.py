"""The registry of parts: how a part is named, configured, rebuilt and found in other packages.

A part is its constructor's knobs and its forward. Registering it under a name gives `build(name, **knobs)`, typed
validation of the knobs, and `part.config`: a frozen, JSON-able mapping from which `build(**part.config)` makes the
part again. Other packages register parts through entry points of the group `polysem.parts`.
"""

from __future__ import annotations

import inspect
import keyword
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from pkgutil import iter_modules
from types import UnionType
from typing import Annotated, Any, ClassVar, Generic, Literal, NoReturn, Self, TypeVar, Union, get_args, get_origin

import torch
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import PydanticSerializationError
from torch import Tensor, nn

from polysem.errors import ConfigError, InputError, unknown
from polysem.plugins import load_plugins, require_free_name, unknown_part

PartT = TypeVar("PartT", bound="Part")
P = TypeVar("P", bound="Part")


def _raise_frozen(*_: object, **__: object) -> NoReturn:
    raise TypeError("A part's config is frozen. Build a new part: build(**{**part.config, 'knob': value}).")


class FrozenList(list[Any]):
    """A list that cannot be changed."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _raise_frozen
    append = extend = insert = pop = remove = clear = sort = reverse = _raise_frozen

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


class Config(dict[str, Any]):
    """A dict that cannot be changed, nor anything in it: what a part was built from, its registry name included."""

    def __init__(self, knobs: Mapping[str, Any]) -> None:
        super().__init__({name: _freeze(value) for name, value in knobs.items()})

    __setitem__ = __delitem__ = __ior__ = _raise_frozen
    update = pop = popitem = clear = setdefault = _raise_frozen

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(repr(sorted(self.items())))

    def __reduce__(self) -> tuple[type[Config], tuple[dict[str, Any]]]:
        return Config, (dict(self),)


def _freeze(value: Any) -> Any:
    if isinstance(value, dict):
        return Config(value)
    return FrozenList(_freeze(entry) for entry in value) if isinstance(value, list) else value


class Part(nn.Module, ABC):
    """A swappable piece of the system: weights, a frozen config and a forward.

    What others have to know of a part before it is built (how many vectors it makes, what it needs) is declared by its
    class, in attributes and class methods of the folder's base class: no other module lists parts by name.
    """

    official_keys: ClassVar[Mapping[str, str]] = {}
    """Released code's tensor name -> ours, for `load_official`; empty where no author released the part."""

    added_knobs: ClassVar[frozenset[str]] = frozenset()
    """Knobs of later versions: where they are None, the fingerprint is that of before."""

    registered_name: ClassVar[str]
    """What `build` and the documentation call it, in messages too; `config` keeps a former name."""

    config: Config
    """Its registry name and knobs; `build(**part.config)` makes the part again, without its weights."""

    def __init__(self) -> None:
        super().__init__()

    def resolved_knobs(self) -> Mapping[str, Any]:
        """Knobs whose value was found while building: `build(**part.config)` must not need the files they came from."""
        return {}

    def original_knobs(self) -> dict[str, Any]:
        """The config without `added_knobs` that are None: what a fingerprint hashes."""
        return {k: value for k, value in self.config.items() if value is not None or k not in self.added_knobs}

    @property
    def reads_padding(self) -> bool:
        """Whether padding changes what it computes, as in the released code that variant "official" follows."""
        return self.config.get("variant") == "official"

    @classmethod
    def knob(cls, knobs: Mapping[str, Any], name: str, otherwise: Any = None) -> Any:
        """The value of a knob among those given, else its default; `otherwise` where the part has no such knob."""
        field = _schema(cls, partial=True).model_fields.get(name)
        return otherwise if field is None else knobs.get(name, field.default)

    @classmethod
    def check_knobs(cls, knobs: Mapping[str, Any]) -> None:
        """Raise for given knobs that name other parts wrongly; nothing is built. For parts made of parts."""

    def load_official(self, state: Mapping[str, Tensor]) -> Self:
        """Take the tensors of the authors' released code under its own names; returns the part itself."""
        own, expected = self.translate_official(state), self.state_dict()
        call, remedy = f"{type(self).__name__}.load_official()", "Build the part with the checkpoint's settings."
        for name in sorted(own.keys() | expected.keys()):
            if name not in expected:
                raise InputError(f"{call} was given {name!r}; the part was built without it. {remedy}")
            if name not in own:
                raise InputError(f"{call} found no tensor for {name!r} among {', '.join(sorted(state))}. {remedy}")
            given, wanted = tuple(own[name].shape), tuple(expected[name].shape)
            if given != wanted:
                raise InputError(f"{call}: {name!r} has shape {given}, this part was built for {wanted}. {remedy}")
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
    """The parts of one folder by name, those of installed packages included."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._parts: dict[str, type[PartT]] = {}
        self._aliases: dict[str, str] = {}

    def register(self, name: str, stored_as: str | None = None) -> Callable[[type[P]], type[P]]:
        """Class decorator: make the part buildable as `name` and validate its knobs however it is constructed.

        stored_as: its former name, which `build` goes on taking. Configs keep it: a model's fingerprint hashes them and
        must not change because a part was renamed.
        """

        def decorate(cls: type[P]) -> type[P]:
            require_free_name(self.kind, name, cls, self._parts.get(name, cls))
            _validate_knobs_on_construction(cls, name, stored_as or name)
            cls.registered_name = name
            self._parts[name] = cls  # type: ignore[assignment]
            if stored_as is not None:
                self._aliases[stored_as] = name
            return cls

        return decorate

    def import_folder(self, package: str, paths: Iterable[str]) -> None:
        """Import every module of a package, so that a new part is one new file: no list has to name it."""
        for module in iter_modules(paths):
            import_module(f"{package}.{module.name}")

    def build(self, name: str, **knobs: Any) -> PartT:
        """The part called `name` with these knobs; `build(**part.config)` rebuilds a part."""
        return self.find(name)(**knobs)

    def check(self, name: str, **knobs: Any) -> None:
        """Raise as `build` would for the knobs given, without building: those left out may still come."""
        cls = self.find(name)
        knobs = {_knob_name(parameter): value for parameter, value in knobs.items()}
        _validate(name, _schema(cls, partial=True), knobs)
        cls.check_knobs(knobs)

    def names(self) -> tuple[str, ...]:
        """Every name that `build` knows, in alphabetical order, without former names."""
        load_plugins()
        return tuple(sorted(self._parts))

    def describe(self, name: str) -> PartInfo:
        """A part's one-line summary and its knobs."""
        cls = self.find(name)
        knobs = tuple(
            Knob(knob, type_name(hint), "required" if default is ... else repr(default))
            for knob, (hint, default) in _fields(cls).items()
        )
        return PartInfo(self.current_name(name), (inspect.getdoc(cls) or "").split("\n", 1)[0], knobs)

    def find(self, name: str) -> type[PartT]:
        """The class behind a name, be it a former one."""
        current = self.current_name(name)
        if current not in self._parts:
            load_plugins()
        if current not in self._parts:
            raise unknown_part(self.kind, str(name), self._parts)
        return self._parts[current]

    def current_name(self, name: str) -> str:
        """The present name of a part, given a former one; any other name unchanged."""
        return self._aliases.get(name, name)


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


def _fields(cls: type[Part]) -> dict[str, tuple[Any, Any]]:
    """Type and default of each knob, from the constructor's signature; ... for no default."""
    parameters = list(inspect.signature(cls.__init__, eval_str=True).parameters.values())[1:]
    return {
        _knob_name(each.name): (each.annotation, ... if each.default is each.empty else each.default)
        for each in parameters
    }


def _knob_name(parameter: str) -> str:
    """What users and configs call a constructor's parameter: `lambda`, which Python only allows as `lambda_`."""
    return parameter[:-1] if parameter.endswith("_") and keyword.iskeyword(parameter[:-1]) else parameter


def _parameter_name(knob: str) -> str:
    return f"{knob}_" if keyword.iskeyword(knob) else knob


@cache
def _schema(cls: type[Part], partial: bool = False) -> type[BaseModel]:
    """A pydantic model of the constructor: its types are the knobs' types. partial: no knob is required."""
    fields: dict[str, Any] = {
        name: (hint, None if partial and default is ... else default) for name, (hint, default) in _fields(cls).items()
    }
    return create_model(cls.__name__, __config__=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False), **fields)


def _validate(name: str, schema: type[BaseModel], knobs: Mapping[str, Any]) -> BaseModel:
    """The knobs of the part `name`, checked; each error in one line: the knob, what was given, what was expected."""
    for knob in knobs.keys() - schema.model_fields.keys():
        raise unknown(f"knob of {name!r}", knob, schema.model_fields)
    try:
        return schema(**knobs)
    except ValidationError as error:
        problems = []
        for detail in error.errors():
            knob = ".".join(str(step) for step in detail["loc"]) or "knobs"
            value = "" if detail["type"] == "missing" else f" (given: {detail['input']!r})"
            problems.append(f"{knob}: {detail['msg']}{value}")
    raise ConfigError(f"Cannot build {name!r}: {'; '.join(problems)}.")


def _validate_knobs_on_construction(cls: type[Part], name: str, stored_name: str) -> None:
    construct, schema = cls.__init__, _schema(cls)
    signature = inspect.signature(construct)

    @wraps(construct)
    def construct_validated(self: Part, *args: Any, **knobs: Any) -> None:
        given = {_parameter_name(knob): value for knob, value in knobs.items()}
        try:
            bound = signature.bind_partial(self, *args, **{k: v for k, v in given.items() if k in signature.parameters})
            inputs = {**dict(list(bound.arguments.items())[1:]), **given}
            checked = _validate(name, schema, {_knob_name(parameter): value for parameter, value in inputs.items()})
            values = checked.model_dump(mode="json")
        except (TypeError, PydanticSerializationError) as error:
            raise ConfigError(f"Cannot build {name!r}: {error}.") from None
        construct(self, **{_parameter_name(knob): value for knob, value in values.items()})
        self.config = Config({"name": stored_name, **values, **self.resolved_knobs()})

    cls.__init__ = construct_validated  # type: ignore[method-assign]
