"""From a recipe's YAML, what it extends and dotted overrides, to a checked `Recipe`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from polysem.errors import ConfigError, unknown
from polysem.recipes.checking import check
from polysem.recipes.schema import Recipe

SUFFIX = ".yaml"
HIDDEN = "_"
"""Begins the name of a file that is no recipe by itself: what several recipes extend."""


def names() -> tuple[str, ...]:
    """The recipes that come with polysem, in alphabetical order."""
    return tuple(name for name in _files() if not name.startswith(HIDDEN))


def _files() -> tuple[str, ...]:
    found = (entry.name for entry in resources.files("polysem.recipes").iterdir())
    return tuple(sorted(name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX)))


def source(recipe: str | Path) -> str:
    """The YAML text of a recipe, by name or by path."""
    if _is_path(recipe):
        try:
            return Path(recipe).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"The recipe {recipe} cannot be read ({error}).") from None
    if str(recipe) not in _files():
        raise unknown("recipe", str(recipe), names())
    return resources.files("polysem.recipes").joinpath(f"{recipe}{SUFFIX}").read_text(encoding="utf-8")


def _is_path(recipe: str | Path) -> bool:
    """Whether this is a file of the user's rather than the name of a recipe."""
    path = Path(recipe)
    return path.suffix in (".yaml", ".yml") or len(path.parts) > 1


def load(recipe: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe of this name or path, with `path.to.key=value` overrides, checked whole before anything is built."""
    return parse(written(recipe, overrides))


def written(recipe: str | Path, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """What the recipe's files and the overrides say, as plain data: unchecked, and without defaults."""
    content = _expanded(str(recipe), ())
    content.setdefault("name", Path(recipe).stem if _is_path(recipe) else str(recipe))
    # Names first, whatever the order they are given in: another part comes without the knobs of the one before.
    for override in sorted(overrides, key=lambda given: not given.partition("=")[0].strip().endswith(".name")):
        content = _merged(content, _nested(override, content))
    return content


def parse(content: Mapping[str, Any]) -> Recipe:
    """A checked recipe from plain data, such as the one saved with a run."""
    try:
        recipe = Recipe.model_validate(dict(content))
    except ValidationError as error:
        raise _explained(error) from None
    check(recipe)
    return recipe


def as_yaml(recipe: Recipe) -> str:
    """The whole recipe as YAML: what it extends, its overrides and every default written out. It loads as it is."""
    content = recipe.model_dump(mode="json")
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120))


# ------------------------------------------------------------------------------------------------------- inheritance


def _expanded(recipe: str, chain: tuple[str, ...]) -> dict[str, Any]:
    """The recipe's content laid over that of the recipe it extends."""
    if recipe in chain:
        raise ConfigError(f"Recipes extend each other in a circle: {' -> '.join((*chain, recipe))}.")
    content = read_yaml(source(recipe), recipe)
    parent = content.pop("extends", None)
    if parent is None:
        return content
    if not isinstance(parent, str):
        raise ConfigError(f"{recipe}: `extends` takes the name or path of one recipe, got {parent!r}.")
    if _is_path(recipe) and _is_path(parent):
        # Beside the file that names it, wherever that is read from.
        parent = str(Path(recipe).expanduser().parent / Path(parent).expanduser())
    base = _expanded(parent, (*chain, recipe))
    base.pop("name", None)
    return _merged(base, content)


def _merged(base: dict[str, Any], over: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """`over` laid over `base`, key by key. A part of another name replaces the part: its knobs were another's."""
    # Neither the recipe itself nor its optimiser is a part: a name there is one key among others.
    if place not in ("", "optimiser") and over.get("name", base.get("name")) != base.get("name"):
        # A regulariser keeps its weight and place, a schedule its warm-up.
        stays = ("warmup_steps", "ramp_epoch", "ramp") if place == "schedule" else ("weight", "on")
        kept = {key: value for key, value in base.items() if key in stays}
        return {**kept, **over}
    result = dict(base)
    if over.get("pooling", base.get("pooling")) != base.get("pooling"):
        result.pop("knobs", None)  # of the pooling in `single`
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), dict)
        result[key] = _merged(result[key], value, f"{place}.{key}".lstrip(".")) if both else value
    return result


def _nested(override: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """`a.b.c=value` as nested mappings; a number steps into a list of the recipe."""
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set takes path.to.key=value, got {override!r}. Example: --set training.epochs=5")
    value: Any = read_value(text, override)
    place: Any = content
    trail: list[Any] = []
    for key in keys:
        trail.append(place)
        if isinstance(place, Sequence) and not isinstance(place, str):
            if not key.isdecimal() or int(key) >= len(place):
                raise ConfigError(f"--set {override}: {key!r} is no place in a list of {len(place)}.")
            place = place[int(key)]
        else:
            place = place.get(key, {}) if isinstance(place, Mapping) else {}
    for key, container in zip(reversed(keys), reversed(trail), strict=True):
        if isinstance(container, Sequence) and not isinstance(container, str):
            entries = list(container)
            old = entries[int(key)]
            both = isinstance(old, dict) and isinstance(value, Mapping)
            entries[int(key)] = _merged(old, value, f"entry {key}") if both else value
            value = entries
        else:
            value = {key: value}
    return dict(value)


# -------------------------------------------------------------------------------------------------------------- YAML


class _Loader(yaml.SafeLoader):
    """YAML as people write it: 5e-4 is a number, `on` is a word and not a truth, and a key stands once."""


_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    for place, key in enumerate(keys):
        if key in keys[:place]:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", node.start_mark)
    return dict(loader.construct_mapping(node, deep=True))


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(text: str, origin: str) -> dict[str, Any]:
    """The mapping in a YAML text; origin names it in errors."""
    try:
        content = yaml.load(text, Loader=_Loader)  # a SafeLoader: plain data only
    except yaml.YAMLError as error:
        raise ConfigError(f"The recipe {origin} is not readable YAML: {_located(error)}.") from None
    if not isinstance(content, dict):
        raise ConfigError(
            f"The recipe {origin} is empty or no mapping of keys. `polysem recipes show vse-infty` is one."
        )
    return content


def _located(error: yaml.YAMLError) -> str:
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if problem is None or mark is None:
        return str(error).splitlines()[0]
    return f"{problem} (line {mark.line + 1})"


def read_value(text: str, override: str) -> Any:
    """The value of an override, written as in YAML."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        raise ConfigError(f"--set {override}: the value is not readable YAML. Quote it.") from None


# ------------------------------------------------------------------------------------------------------------ errors


def _explained(error: ValidationError) -> ConfigError:
    problems = []
    for found in error.errors():
        place = ".".join(str(step) for step in found["loc"] if not _is_tag(step))
        if found["type"] == "extra_forbidden":
            key = str(found["loc"][-1])
            problems.append(str(unknown(f"key {place!r} in a recipe:", key, _siblings(found["loc"][:-1]))))
        elif found["type"] == "missing":
            problems.append(f"{place} is missing.")
        else:
            problems.append(f"{place}: {found['msg']} (given: {found['input']!r}).")
    return ConfigError(" ".join(dict.fromkeys(problems)))


def _is_tag(step: int | str) -> bool:
    """pydantic names the branch of a union in the path, such as "constrained-int" or "literal['one','all']"."""
    return isinstance(step, str) and ("[" in step or "constrained" in step or step in ("int", "str"))


def _siblings(path: tuple[int | str, ...]) -> list[str]:
    """The keys that exist beside the one that does not."""
    model: Any = Recipe
    for step in path:
        if isinstance(step, str) and isinstance(model, type) and issubclass(model, BaseModel):
            hint = model.model_fields[step].annotation
            arguments = [hint, *getattr(hint, "__args__", ())]
            model = next((a for a in arguments if isinstance(a, type) and issubclass(a, BaseModel)), None)
    return list(model.model_fields) if model is not None else []
