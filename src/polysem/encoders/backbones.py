"""Pretrained networks: where their files are, opened from there, or rebuilt from the config that an encoder keeps.

A model is a folder of the user's, polysem's own, in an installed weights package, or on the model hub. Weights are
safetensors, or pickles read as plain tensors; no code of a model is run.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from polysem.environment.packages import install_command, offline_packages
from polysem.environment.paths import SHIPPED, cache_folder
from polysem.errors import ConfigError, PolysemError
from polysem.weights import CATALOGUE, WeightsError, find_weights, get_weights
from polysem.weights.hub import HubError, download_snapshot

# Says where a config comes from or what the checkpoint's head was for, not what the backbone is.
_INCIDENTAL = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "id2label", "label2id"}
_STAGE_NAMES = ("stages", "layers", "layer", "blocks")


@dataclass(frozen=True)
class Backbone:
    """A network, the JSON-able config it can be rebuilt from, and the folder its files were read from."""

    module: nn.Module
    config: dict[str, Any]
    folder: Path | None = None


def transformers() -> Any:
    """The package, imported on first use: it takes seconds, and not every encoder needs it."""
    try:
        return import_module("transformers")
    except ImportError as error:
        raise ConfigError(f"This encoder needs transformers ({error}). Run: {install_command()}") from None


def load(
    model: str,
    pretrained: bool,
    stored: Mapping[str, Any] | None,
    choose: Callable[[Any], tuple[Any, Any]],
    keep_labels: bool = False,
) -> Backbone:
    """The network of `model`, with its weights if `pretrained`.

    stored: the config of an encoder that is being rebuilt; with it and without `pretrained` nothing is looked up.
    choose: from the checkpoint's config, the class to build and the (part of the) config to build it from.
    """
    folder = locate(model) if pretrained or stored is None else None
    with _quiet():
        cls, config = choose(_read_stored(stored or {}) if folder is None else _read_config(model, folder))
        # A pooling layer on top is not ours to use, and often lacks weights.
        bare = {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(cls.__init__).parameters else {}
        if folder is not None and pretrained:
            module = _read_weights(cls, config, model, folder, bare)
        else:
            module = cls._from_config(config, dtype=torch.float32, **bare)
    # The config as JSON that does not say where it was found.
    leave_out = _INCIDENTAL - ({"id2label", "label2id"} if keep_labels else set())
    portable = json.loads(
        config.to_json_string(use_diff=False),
        object_hook=lambda entries: {key: value for key, value in entries.items() if key not in leave_out},
    )
    return Backbone(module.eval(), portable, folder)


def _read_config(model: str, folder: Path) -> Any:
    if not (folder / "config.json").is_file():
        raise SourceError(f"Model {model!r}: {folder} holds no config.json. Give a folder made by save_pretrained().")
    with report_damage(f"Model {model!r}: {folder}/config.json"):
        return transformers().AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _read_stored(stored: Mapping[str, Any]) -> Any:
    known, family = transformers().CONFIG_MAPPING, stored.get("model_type")
    if family not in known:
        raise ConfigError(
            f"backbone_config names the model_type {family!r}, which transformers {transformers().__version__} does "
            "not know. Take backbone_config from the config of a built encoder, or upgrade transformers."
        )
    return known[family].from_dict(json.loads(json.dumps(stored)))  # thawed: a part's config is frozen


def _read_weights(cls: Any, config: Any, model: str, folder: Path, bare: dict[str, Any]) -> Any:
    remedy = (
        f"see polysem weights verify {model}"
        if model in CATALOGUE
        else f"copy the files of the model to {folder} again"
    )
    with report_damage(f"Model {model!r}: the weights in {folder}", f"; {remedy}"):
        module, report = cls.from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
            **bare,
        )
    absent = sorted(report["missing_keys"])
    if absent:
        # transformers would start these at random and only warn.
        raise SourceError(
            f"Model {model!r}: the weights in {folder} lack {len(absent)} tensor(s) of {cls.__name__}, such as "
            f"{absent[0]!r}. The file is incomplete, or belongs to another model than config.json says."
        )
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            # Tensors of a safetensors file begin anywhere in memory, and kernels round differently where they are not
            # aligned: without a copy of its own, a model would not equal itself, saved and loaded, to the last bit.
            tensor.data = tensor.data.clone()
    return module


@contextmanager
def report_damage(what: str, remedy: str = "") -> Iterator[None]:
    """Raise whatever a reader of damaged files raises, which is almost anything, as a `SourceError`."""
    try:
        yield
    except Exception as error:  # a missing optional package is an ImportError
        reason = next((line for line in str(error).strip().splitlines() if line.strip()), type(error).__name__)
        raise SourceError(f"{what} cannot be read ({reason}){remedy}.") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' progress bars and load reports: a library does not print, and what matters is raised."""
    logging = transformers().utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def find_stages(module: nn.Module) -> list[nn.Module]:
    """The blocks of a network from input to output: its outermost lists of stages or layers."""
    lists = [
        (name, child)
        for name, child in module.named_modules()
        if isinstance(child, nn.ModuleList) and name.rpartition(".")[2] in _STAGE_NAMES and len(child)
    ]
    depth = min((name.count(".") for name, _ in lists), default=0)
    return [stage for name, child in lists if name.count(".") == depth for stage in child]


class SourceError(PolysemError):
    """A model that is not a folder, not in an installed package and not to be had from the hub; or a damaged one."""


def locate(model: str, choices: str = "") -> Path:
    """The folder of a model (the weights file, for a package that is just that), or an error that says what to do.

    choices: what to give where there is none; by default what an encoder takes.
    """
    given = Path(model).expanduser()
    # What happens to be called so here, such as the features made with minilm, does not hide a model that we know.
    shipped = SHIPPED.get(model) or SHIPPED.get(f"polysem/{model}")
    if (shipped is not None or model in CATALOGUE) and not (given / "config.json").is_file():
        return shipped or _locate_weights(model)
    if given.is_dir():
        return given
    if given.exists():
        raise SourceError(f"Model {model!r} is a file. Give the folder that holds it, as save_pretrained() writes it.")
    # A name on the hub is `model` or `owner/model`.
    if model.startswith((".", "~", os.sep)) or model.count("/") > 1 or "\\" in model or model.endswith("/"):
        raise SourceError(f"Model {model!r} looks like a path, but there is no such folder. {choices or _choices()}")
    return _download(model, choices)


def _locate_weights(model: str) -> Path:
    """Weights of the catalogue: what is here, or else the hub's copy."""
    place, entry = find_weights(model), CATALOGUE[model]
    if place is None or not place.is_relative_to(cache_folder()):
        package = next((each for each in offline_packages() if each.name == entry.package.name), None)
        if package is not None and package.status == "broken":
            fault = next(asset.problem for asset in package.assets if asset.problem)
            raise SourceError(
                f"The package {package.name} of model {model!r} is damaged: {fault}. Run: {package.remedy}"
            )
    if place is not None:
        return place
    try:
        return get_weights(model, index=False)
    except WeightsError as error:
        own = "  or give the encoder a folder with config.json and model.safetensors: model='./my-model'"
        raise SourceError(f"Model {model!r}: {error}\n{own}") from None


def _download(model: str, choices: str) -> Path:
    """The hub's copy, from its cache if it is there. `name@revision` asks for a branch, tag or commit."""
    try:
        return download_snapshot(model)
    except HubError as error:
        raise SourceError(f"Model {model!r} could not be had from the hub ({error}). {choices or _choices()}") from None


def _choices() -> str:
    return (
        "Do one of three things: give the path of a folder with config.json and model.safetensors "
        f"(model='./my-model'); or use weights that polysem knows ({', '.join(CATALOGUE)}: polysem weights get NAME, "
        f"or {install_command('offline')}); or, with internet access, a name on the Hugging Face hub "
        "(model='owner/model')."
    )
