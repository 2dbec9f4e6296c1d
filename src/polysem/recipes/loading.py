"""From a recipe's YAML, what it extends and dotted overrides, to a checked `Recipe`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from polysem import encoders
from polysem.errors import ConfigError, unknown
from polysem.recipes.checking import check
from polysem.recipes.schema import RENAMED, Recipe

FAMILIES = {
    "small": "Small versions, for a CPU and a few thousand pictures",
    "photo": "Photographs",
    "vse++": "VSE++",
    "vse-infty": "VSE∞",
    "vse-2ad": "VSE+2AD",
    "pvse": "PVSE",
    "pcme": "PCME",
    "dscmr": "DSCMR",
    "semantic-sharing": "Label-wise semantic sharing",
    "dive": "DivE",
    "clip": "Dual encoders as backbones",
    "siglip": "Dual encoders as backbones",
}
"""How a family's names begin, and its title, in the order of a first look: what runs anywhere, then by year."""

BACKBONE_SCALE = 0.1
"""The learning rate of a pretrained body beside that of what stands behind it, where a recipe starts from a model."""

SUFFIX = ".yaml"
HIDDEN = "_"
"""Begins the name of a file that several recipes extend and that is not one by itself."""


def names() -> tuple[str, ...]:
    """The recipes that come with polysem, in alphabetical order."""
    return tuple(name for name in _files() if not name.startswith(HIDDEN))


def catalogue() -> dict[str, list[Recipe]]:
    """Every recipe that comes with polysem, by the title of its family."""
    families: dict[str, list[Recipe]] = {title: [] for title in FAMILIES.values()}
    for name in names():
        families[FAMILIES[family(name)]].append(load(name))
    return families


def family(name: str) -> str:
    """The family that a recipe's name begins with."""
    for start in FAMILIES:
        if name == start or name.startswith(f"{start}-"):
            return start
    raise ConfigError(f"The recipe {name!r} begins with the name of no family: {', '.join(FAMILIES)}. Rename it.")


def _files() -> tuple[str, ...]:
    files = (entry.name for entry in resources.files("polysem.recipes").iterdir())
    return tuple(sorted(name.removesuffix(SUFFIX) for name in files if name.endswith(SUFFIX)))


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
    """A recipe, checked whole before anything is built.

    Args:
        recipe: the name of one that comes with polysem (`polysem recipes`), or the path of a YAML file.
        overrides: `path.to.key=value`, the value written as in YAML.

    Raises:
        ConfigError, UnknownNameError: for the first thing that cannot work, naming its place.

    Example:
        >>> from polysem import recipes
        >>> recipe = recipes.load("small-vse-infty", ["training.epochs=5", "image.sets.pooling=adpool"])
        >>> recipe.training.epochs, recipe.image.sets["pooling"], recipe.similarity["name"]
        (5, 'adpool', 'cosine')
    """
    return parse(read_content(recipe, overrides))


def read_content(recipe: str | Path, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """What the recipe's files and the overrides say, as plain data: unchecked, and without defaults."""
    content = _expand(str(recipe), ())
    content.setdefault("name", Path(recipe).stem if _is_path(recipe) else str(recipe))
    return override_content(content, overrides)


def override_content(content: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A recipe as plain data, changed by overrides `path.to.key=value`."""
    # Names first, whatever the order they are given in: another part comes without the knobs of the one before.
    for override in sorted(overrides, key=lambda text: not text.partition("=")[0].strip().endswith(".name")):
        content = _merge(content, _parse_override(override, content))
    return content


def parse(content: Mapping[str, Any]) -> Recipe:
    """A checked recipe from plain data, such as the one saved with a run."""
    try:
        recipe = Recipe.model_validate(dict(content))
    except ValidationError as error:
        problems = []
        for detail in error.errors():
            # pydantic names the branch of a union in the path, such as "constrained-int" or "literal['one','all']".
            steps = [str(step) for step in detail["loc"]]
            path = ".".join(step for step in steps if not re.search(r"\[|constrained|^(int|str)$", step))
            if detail["type"] == "extra_forbidden":
                key = str(detail["loc"][-1])
                problems.append(str(unknown(f"key {path!r} in a recipe:", key, _siblings(detail["loc"][:-1]))))
            elif detail["type"] == "missing":
                problems.append(f"{path} is missing.")
            else:
                problems.append(f"{path}: {detail['msg']} (given: {detail['input']!r}).")
        raise ConfigError(" ".join(dict.fromkeys(problems))) from None
    recipe = recipe if recipe.dual is None else _fill_halves(recipe, recipe.dual)
    check(recipe)
    return recipe if recipe.start is None else _slow_backbones(recipe)


def _fill_halves(recipe: Recipe, dual: str) -> Recipe:
    """A recipe whose encoders are the halves of one dual encoder: each that names no `model` of its own is its half."""
    halves = {"image": "dual_image", "text": "dual_text"}
    for name, side in recipe.sides():
        if side.encoder.get("name") != halves[name]:
            wrong = f"{name}.encoder is {side.encoder.get('name')!r}"
            raise ConfigError(f"dual={dual}: {wrong}, not {halves[name]}. Leave dual out, or choose clip-sets.")
    filled = {
        name: side.model_copy(update={"encoder": {"model": dual, **side.encoder}}) for name, side in recipe.sides()
    }
    return recipe.model_copy(update=filled)


def _slow_backbones(recipe: Recipe) -> Recipe:
    """A recipe that starts from a model: its pretrained bodies learn at `BACKBONE_SCALE`, where it says nothing."""
    slowed = {}
    for name, side in recipe.sides():
        known = {knob.name for knob in encoders.describe(side.encoder["name"]).knobs}
        said = "lr_scale" in side.encoder or {f"{name}.encoder", f"{name}.encoder.body"} & {*recipe.optimiser.lr_scales}
        if known & {"pretrained", "encoder"} and not said:  # an encoder of videos has one of pictures
            slowed[name] = side.model_copy(update={"encoder": {**side.encoder, "lr_scale": BACKBONE_SCALE}})
    return recipe.model_copy(update=slowed)


def as_yaml(recipe: Recipe) -> str:
    """The whole recipe as YAML: what it extends, its overrides and every default written out. It loads as it is."""
    content = recipe.model_dump(mode="json")
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120))


def _expand(recipe: str, chain: tuple[str, ...]) -> dict[str, Any]:
    """The recipe's content merged over that of the recipe it extends."""
    if recipe in chain:
        raise ConfigError(f"Recipes extend each other in a circle: {' -> '.join((*chain, recipe))}.")
    try:
        content = yaml.load(source(recipe), Loader=_Loader)  # a SafeLoader: plain data only
    except yaml.YAMLError as error:
        problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
        where = f"{problem} (line {mark.line + 1})" if problem and mark else str(error).splitlines()[0]
        raise ConfigError(f"The recipe {recipe} is not readable YAML: {where}.") from None
    if not isinstance(content, dict):
        raise ConfigError(f"The recipe {recipe} is empty or not a mapping: see `polysem recipes show vse-infty`.")
    parent = content.pop("extends", None)
    if parent is None:
        return content
    if not isinstance(parent, str):
        raise ConfigError(f"{recipe}: `extends` takes the name or path of one recipe, got {parent!r}.")
    if _is_path(recipe) and _is_path(parent):
        # Relative to the file that names it, wherever that is read from.
        parent = str(Path(recipe).expanduser().parent / Path(parent).expanduser())
    base = _expand(parent, (*chain, recipe))
    base.pop("name", None)
    return _merge(base, content)


def _merge(base: dict[str, Any], over: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """`over` merged over `base`, key by key. A part of another name replaces the part: its knobs were another's."""
    # Neither the recipe itself nor its optimiser is a part: a name there is one key among others.
    if path not in ("", "optimiser") and "name" in over and _part_name(over, path) != _part_name(base, path):
        # A regulariser keeps its weight and place, a schedule its warm-up.
        kept_keys = ("warmup_steps", "ramp_epoch", "ramp") if path == "schedule" else ("weight", "on")
        return {**{key: value for key, value in base.items() if key in kept_keys}, **over}
    result = dict(base)
    if over.get("pooling", base.get("pooling")) != base.get("pooling"):
        result.pop("knobs", None)  # of the pooling in `single`
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), dict)
        result[key] = _merge(result[key], value, f"{path}.{key}".lstrip(".")) if both else value
    return result


def _part_name(config: Mapping[str, Any], path: str) -> Any:
    """The name in a part's config; a former name of the part counts as its present one."""
    name, registry = config.get("name"), RENAMED.get(path.rpartition(".")[2])
    return registry.current_name(name) if registry is not None and isinstance(name, str) else name


def _parse_override(override: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """`a.b.c=value` as nested mappings; a number steps into a list of the recipe."""
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set takes path.to.key=value, got {override!r}. Example: --set training.epochs=5")
    value = read_value(text, override)

    def nest(node: Any, keys: list[str]) -> Any:
        if not keys:
            return value
        key, *rest = keys
        if isinstance(node, str) or not isinstance(node, Sequence):
            return {key: nest(node.get(key, {}) if isinstance(node, Mapping) else {}, rest)}
        if not key.isdecimal() or int(key) >= len(node):
            raise ConfigError(f"--set {override}: {key!r} is not a position in a list of {len(node)}, counted from 0.")
        old, new = node[int(key)], nest(node[int(key)], rest)
        both = isinstance(old, dict) and isinstance(new, Mapping)
        return [*node[: int(key)], _merge(old, new, f"entry {key}") if both else new, *node[int(key) + 1 :]]

    return dict(nest(content, keys))


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml is ten times faster
    """YAML as people write it: 5e-4 is a number, `on` is a word and not a truth, and a key stands once."""


_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_FLOAT = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", node.start_mark)
    return dict(loader.construct_mapping(node, deep=True))


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)


def read_value(text: str, override: str) -> Any:
    """The value of an override, written as in YAML."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        raise ConfigError(f"--set {override}: the value is not readable YAML. Quote it.") from None


def _siblings(path: tuple[int | str, ...]) -> list[str]:
    """The keys that exist beside the one that does not."""
    model: Any = Recipe
    for step in path:
        if isinstance(step, str) and isinstance(model, type) and issubclass(model, BaseModel):
            hint = model.model_fields[step].annotation
            arguments = [hint, *getattr(hint, "__args__", ())]
            model = next((a for a in arguments if isinstance(a, type) and issubclass(a, BaseModel)), None)
    return list(model.model_fields) if model is not None else []
