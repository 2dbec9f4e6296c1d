"""A model on disk: config.json, model.safetensors, preprocessing/ and a model card, as the hub lays models out."""

from __future__ import annotations

import copy
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import yaml
from jinja2 import Environment, PackageLoader
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from polysem import encoders
from polysem._version import __version__
from polysem.encoders import Encoder, backbones
from polysem.encoders.dual import explain_family, find_dual_encoder
from polysem.encoders.image import ImageEncoder
from polysem.environment.paths import SHIPPED
from polysem.errors import InputError, PolysemError
from polysem.weights import CATALOGUE, probe

if TYPE_CHECKING:
    from polysem.models.model import Model


CONFIG, WEIGHTS, PREPROCESSING, CARD = "config.json", "model.safetensors", "preprocessing", "README.md"
FORMAT = 1


class ModelFolderError(PolysemError):
    """A folder without a model, a damaged one, or one that a newer polysem wrote."""


def save(model: Model, path: Path, card: Mapping[str, Any], small: bool = False) -> Path:
    """Write a model folder: first aside, then moved into place, the config last. small: see `Model.save`."""
    taken = [name for name in (WEIGHTS, PREPROCESSING, CARD) if (path / name).exists()]
    if taken and not _is_ours(path):
        raise ModelFolderError(f"{path} holds files of yours: {', '.join(taken)}. Give the model another folder.")
    lent = _find_catalogue_tensors(model, small)
    left_out = {name for names in lent.values() for name in names}
    model = _round_to_half(model, left_out) if small else model
    entries = {side: _encoder(model, side).find_catalogue_weights() for side in lent}
    answers = {side: entry.probe for side, entry in entries.items() if entry is not None and entry.probe}
    described = {
        "library_name": "polysem",
        "polysem_version": __version__,
        "format": FORMAT,
        "fingerprint": model.fingerprint(),
        "model": model.config,
        "provenance": model.provenance,
        **({"borrowed": sorted(lent)} if lent else {}),
        **({"probe": answers} if answers else {}),
    }
    state = drop_aliases(model.state_dict())
    state = {name: tensor for name, tensor in state.items() if name not in left_out}
    if small:
        state = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=path, ignore_cleanup_errors=True) as name:
            aside = Path(name)
            save_file(state, aside / WEIGHTS, metadata={"format": "pt"})
            for side, tower in (("image", model.image), ("text", model.text)):
                (aside / PREPROCESSING / side).mkdir(parents=True)
                tower.encoder.save_preprocessing(aside / PREPROCESSING / side)
            (aside / CARD).write_text(write_card(model, described, card), encoding="utf-8")
            shutil.copymode(aside / CARD, aside / WEIGHTS)  # safetensors lets nobody else read what it writes
            (aside / CONFIG).write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            # The old config goes first: between here and the last move the folder is visibly unfinished, not a mixture.
            (path / CONFIG).unlink(missing_ok=True)
            shutil.rmtree(path / PREPROCESSING, ignore_errors=True)
            for moved in (PREPROCESSING, CARD, WEIGHTS, CONFIG):
                os.replace(aside / moved, path / moved)
    except OSError as error:
        raise ModelFolderError(f"Cannot write a model to {path}: {error.strerror or error}.") from None
    return path


def load(path: str | Path) -> Model:
    """Load a model, in evaluation mode on the CPU.

    Args:
        path: a folder that `Model.save` or `polysem train` wrote, a model shipped with polysem, or a name on the hub.

    Raises:
        ModelFolderError: the folder holds no model, is damaged, or was written by a newer polysem.

    Example:
        >>> from polysem.models import build, load
        >>> image = {"encoder": {"name": "region", "input_dim": 16}, "sets": {"name": "single", "pooling": "mean"}}
        >>> text = {"encoder": {"name": "bigru", "vocab_size": 9}, "sets": {"name": "single", "pooling": "mean"}}
        >>> model = build(8, image, text, {"name": "cosine"})
        >>> load(model.save("my-model")).fingerprint() == model.fingerprint()
        True
    """
    from polysem.models.build import build
    from polysem.models.dual import load_dual_encoder

    folder = locate_model(str(path))
    if find_dual_encoder(folder) is not None:
        return load_dual_encoder(str(path))
    described = read_config(folder)
    lent = described.get("borrowed", [])
    config = dict(described["model"])
    for side in lent:  # these encoders begin with the weights of their package
        config[side] = {**config[side], "encoder": {**config[side]["encoder"], "pretrained": True}}
    model = build(**config)
    for side, tower in (("image", model.image), ("text", model.text)):
        if any((folder / PREPROCESSING / side).glob("*")):
            tower.encoder.load_preprocessing(folder / PREPROCESSING / side)
    try:
        weights = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelFolderError(f"{folder / WEIGHTS} cannot be read ({error}). Copy the model folder again.") from None
    if model.text.sets is model.image.sets:
        shared = {name for name in model.state_dict() if name not in weights and name.startswith("text.sets.")}
        weights.update({name: weights[name.replace("text.", "image.", 1)] for name in shared})
    wrong = model.load_state_dict(weights, strict=False)
    missing = [name for name in wrong.missing_keys if not name.startswith(tuple(f"{side}.encoder." for side in lent))]
    if missing or wrong.unexpected_keys:
        example = (missing + wrong.unexpected_keys)[0]
        raise ModelFolderError(
            f"{folder / WEIGHTS} does not fit {CONFIG}: {len(missing)} tensors are missing and "
            f"{len(wrong.unexpected_keys)} unknown, e.g. {example!r}. Copy both files from the same model again."
        )
    model.provenance = described.get("provenance") or {}
    for side, answer in described.get("probe", {}).items():
        _check_probe(_encoder(model, side), answer, folder)
    found = model.fingerprint()
    if described.get("fingerprint") not in (None, found):
        names = ", ".join(name for side in lent for name in _pretrained_models(config[side]["encoder"]))
        raise ModelFolderError(
            f"The files in {folder} are not the ones that were saved together: the fingerprint is {found[:12]}, "
            f"{CONFIG} says {described['fingerprint'][:12]}. Copy the whole folder again."
            + (f" Or other weights of {names} are installed than those it was saved with." if lent else "")
        )
    return model.eval()


def locate_model(name: str) -> Path:
    """The folder of a model by path or name, or an error that says which models there are."""
    choices = (
        f"Give the folder of a trained model or of a dual encoder, or {' or '.join(SHIPPED)}; or, with internet "
        "access, the name of a dual encoder on the Hugging Face hub, such as openai/clip-vit-base-patch32."
    )
    if name in CATALOGUE and not (Path(name) / CONFIG).is_file():
        raise ModelFolderError(
            f"{name!r} names the weights of an encoder, which is not a model by itself. Train one over it (`polysem "
            f"recipes` lists how). {choices}"
        )
    return backbones.locate(name, choices)


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model folder, checked to be one."""
    try:
        described = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFolderError(
            f"{folder} holds no model: there is no {CONFIG}. Give the folder of a trained one."
        ) from None
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"{folder / CONFIG} cannot be read ({error}). Copy the model folder again.") from None
    if isinstance(described, dict) and "model_type" in described:
        raise ModelFolderError(
            f"{folder} holds a Hugging Face model that cannot search by itself. {explain_family(folder)} Give a dual "
            "encoder, such as CLIP or SigLIP, or train a model with it as its encoder."
        )
    if not isinstance(described, dict) or not isinstance(described.get("model"), dict):
        raise ModelFolderError(f"{folder / CONFIG} does not describe a polysem model. Give the folder of one.")
    if described.get("format", 0) > FORMAT:
        newer = described.get("polysem_version")
        raise ModelFolderError(f"{folder} was written by polysem {newer}, this is {__version__}: update polysem.")
    return cast(dict[str, Any], described)


def _is_ours(path: Path) -> bool:
    """Whether the folder holds a model or a run of polysem."""
    try:
        return (path / "run.json").is_file() or bool(read_config(path))
    except ModelFolderError:
        return any(path.glob(".saving-*"))  # a save that was cut short


def drop_aliases(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor once, contiguous: safetensors stores no aliases."""
    first: dict[tuple[int, int], str] = {}
    return {
        name: tensor.detach().contiguous()
        for name, tensor in state.items()
        if not tensor.numel() or first.setdefault((tensor.data_ptr(), tensor.numel()), name) == name
    }


def _round_to_half(model: Model, left_out: Set[str]) -> Model:
    """A copy whose weights, but for those of these names, are numbers that float16 can hold."""
    copied = copy.deepcopy(model)
    for name, tensor in copied.state_dict().items():
        if name not in left_out and tensor.is_floating_point():
            half = tensor.half()
            if not torch.isfinite(half).all():
                largest = float(tensor.abs().max())
                raise InputError(f"{name} holds {largest:.3g}, beyond float16's 65504. Save the model without small.")
            tensor.copy_(half)
    return copied


def _encoder(model: Model, side: str) -> Encoder:
    return model.image.encoder if side == "image" else model.text.encoder


def _check_probe(encoder: Encoder, remembered: Sequence[float], folder: Path) -> None:
    """Raise unless the backbone that was found here is the network that a model was saved with."""
    answer = encoder.answer_probe() if isinstance(encoder, ImageEncoder) else []
    if not probe.agree(answer, remembered):
        name = encoder.config.get("model")
        raise ModelFolderError(
            f"The model in {folder} was saved with other weights than those that are here as {name}: to the probe "
            f"picture they answer {probe.describe(answer)}, the model remembers {probe.describe(remembered)}. Run: "
            f"polysem weights verify {name}; if they are whole, give the model's own: "
            f"polysem weights get {name} --from FOLDER"
        )


def _find_catalogue_tensors(model: Model, small: bool) -> dict[str, set[str]]:
    """The names of the tensors of each side's encoder that are still those of the catalogue's weights on this machine.

    Unless the folder is to be small, only of a model that rests on weights known by their probe: it needs the
    catalogue's weights in any case.
    """
    known = [_encoder(model, side).find_catalogue_weights() for side in ("image", "text")]
    if not small and not any(known):
        return {}
    found = {}
    for side in ("image", "text"):
        encoder = _encoder(model, side)
        frozen = encoder.config.get("trainable") == "none"
        if not all(name in CATALOGUE for name in _pretrained_models(encoder.config)) or not (small or frozen):
            continue
        own = encoder.state_dict()
        try:
            source = encoders.build(**{**encoder.config, "pretrained": True}).state_dict()
        except PolysemError:
            if small:
                raise
            continue  # they are no longer here: the folder keeps its own
        same = {name for name in own if name in source and torch.equal(own[name], source[name])}
        if same:
            found[side] = {f"{side}.encoder.{name}" for name in same}
    return found


def _pretrained_models(encoder: Mapping[str, Any]) -> list[str]:
    """The models that an encoder begins with; "" for one that begins with none."""
    return encoder.get("models") or [encoder.get("model", "")]


def write_card(model: Model, described: Mapping[str, Any], header: Mapping[str, Any]) -> str:
    """The model card: Markdown with the YAML header that the hub reads.

    What the authors of imported weights recorded is shown as theirs: nothing was measured here.
    """
    provenance = described["provenance"]
    recipe, origin = provenance.get("recipe", {}), provenance.get("imported", {})
    front = {
        "library_name": "polysem",
        "tags": ["image-text-retrieval", "visual-semantic-embedding", "polysem"],
        "pipeline_tag": "feature-extraction",
        **header,
    }
    noted = {"data": origin["data"], "epoch": origin["epoch"], **origin["recorded"]} if origin else {}
    environment = Environment(loader=PackageLoader("polysem.models"), autoescape=False, keep_trailing_newline=True)
    return environment.get_template("model_card.md").render(
        model=model,
        described=described,
        header=yaml.safe_dump(front, sort_keys=False, allow_unicode=True).strip(),
        name=recipe.get("name") or (f"{origin['from']}, imported" if origin else "model"),
        recipe=recipe,
        origin=origin,
        recorded=", ".join(f"{name} {value}" for name, value in noted.items() if value not in (None, "")),
        unit_length=model.image.sets.config.get("normalise", True),
        validation=provenance.get("validation"),
        parts=[(place, part, sum(p.numel() for p in part.parameters())) for place, part in model.parts().items()],
    )
