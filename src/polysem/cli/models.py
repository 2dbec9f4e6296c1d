"""`polysem import`, `join` and `export`: models from checkpoints, from several models, and for other runtimes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from polysem.cli.options import AsJson, option
from polysem.cli.output import ProgressBar, new_console, new_table, print_facts, print_json
from polysem.errors import unknown

FORMATS = ("onnx",)


def import_command(
    checkpoint: Annotated[
        str, Argument(help="The checkpoint file, as its authors released it; of transformers a folder or hub name.")
    ],
    source: Annotated[str, Option("--from", help="Whose it is: vse-infty, vse-2ad, dive, labelwise or transformers.")],
    out: Annotated[Path, Option(help="Folder of the model. One that is there is replaced.")],
    vocabulary: Annotated[Path | None, option("JSON vocabulary of a BiGRU, for a model that takes sentences.")] = None,
    tokenizer: Annotated[Path | None, option("Folder of BERT's tokenizer, for the same.")] = None,
    variant: Annotated[str, Option(help="paper masks padding; official does as the released code.")] = "paper",
    bert_heads: Annotated[int | None, option("Attention heads of BERT.", default="its width / 64")] = None,
    as_json: AsJson = False,
) -> None:
    """Turn the authors' checkpoint into a model that `polysem.load` reads, with embeddings equal to theirs.

    `--from transformers` takes a Hugging Face dual encoder: CLIP, SigLIP and their relatives. No code from the file is
    run: it is read as tensors and plain values, or refused.
    """
    from polysem.models import import_checkpoint

    model = import_checkpoint(
        checkpoint, source, vocabulary, variant=variant, tokenizer=tokenizer, bert_heads=bert_heads
    )
    model.save(out)
    image, text, origin = model.image.encoder.config, model.text.encoder, model.provenance["imported"]
    boxes = " with their boxes" if model.image.sets.classifies else ""
    takes = f"region features{boxes}, (regions, {image['input_dim']})" if "input_dim" in image else "pictures"
    # What turns sentences into token ids: the attribute of the encoder is named as the option.
    needed = "vocabulary" if hasattr(text, "vocabulary") else "tokenizer"
    summary: dict[str, Any] = {
        "out": str(out),
        "imported": origin,  # among others what the file says of itself; nothing of it was measured
        "dim": model.dim,
        "image_vectors": model.set_sizes[0],
        "text_vectors": model.set_sizes[1],
        "images": takes,
        "texts": "sentences" if getattr(text, needed, None) else "token ids",
        "parts": [
            {"place": place, "part": part.registered_name, "parameters": sum(p.numel() for p in part.parameters())}
            for place, part in model.parts().items()
        ],
        "fingerprint": model.fingerprint(),
    }
    if as_json:
        print_json(summary)
        return
    facts = {"data": origin["data"], "epoch": origin["epoch"], **origin["recorded"]}
    recorded = ", ".join(f"{name} {value}" for name, value in facts.items() if value not in (None, "")) or "nothing"
    kinds = (origin["from"], origin["family"] if "family" in origin else f"variant {origin['variant']}")
    rows = [
        ("Model", summary["out"]),
        ("From", f"{origin['file']} ({', '.join(kinds)})"),
        *([] if "family" in origin else [("The file says", f"{recorded} (as recorded there, not measured)")]),
        ("Vectors", f"{model.set_sizes[0]} per image, {model.set_sizes[1]} per text, width {model.dim}"),
        ("Takes", f"{summary['images']}; {summary['texts']}"),
        *((part["place"], f"{part['part']}, {part['parameters']:,} parameters") for part in summary["parts"]),
        *(("Left out", dropped) for dropped in origin["dropped"]),
    ]
    print_facts("Imported", rows)
    if summary["texts"] == "token ids":
        again = "--vocabulary FILE" if needed == "vocabulary" else "--tokenizer FOLDER"
        typer.echo(f"Texts are given as token ids. For sentences, import again with {again}.")


def join_command(
    models: Annotated[list[str], Argument(help="Model folders, two or more, over the same frozen encoders.")],
    out: Annotated[Path, Option(help="Folder of the joined model.")],
    alpha: Annotated[
        float | None,
        Option(help="Of the similarity that compares the joined sets: smooth-Chamfer, or the members' soft maximum."),
    ] = None,
    small: Annotated[bool, Option("--small", help="Write float16, without weights that packages hold.")] = False,
    as_json: AsJson = False,
) -> None:
    """Join models to one: an ensemble in one folder, whose encoders run once.

    Each was trained by itself, from another seed say. The joined model's sets hold the vectors of all, and are better
    than each member's as far as the members make different mistakes. Measure it: `polysem eval`.
    """
    from polysem.models import join, load
    from polysem.models.build import joined_similarity

    with ProgressBar(quiet=as_json) as progress:
        loaded = []
        for number, model in enumerate(models):
            progress("load", number, len(models))
            loaded.append(load(model))
        joined = join(loaded, None if alpha is None else {**joined_similarity(loaded), "alpha": alpha})
        progress("write", 0, 1)
        joined.save(out, small=small)
    images, texts = joined.set_sizes
    if as_json:
        print_json({"out": str(out), "set_sizes": [images, texts], "dim": joined.dim})
    else:
        typer.echo(f"{out}: {images} vectors per image, {texts} per text, of width {joined.dim}.")


def export_command(
    model: Annotated[str, Argument(help="A model folder, or its name.")],
    out: Annotated[Path, Option(help="Folder to write. An earlier export there is replaced.")],
    format_: Annotated[str, Option("--format", help=f"What to write: {', '.join(FORMATS)}.")] = "onnx",
    tolerance: Annotated[float, Option(help="Largest difference of a number from the model's.")] = 1e-4,
    as_json: AsJson = False,
) -> None:
    """Write both towers and the similarity as ONNX, with a description of what goes in and comes out.

    onnxruntime runs what was written, and its numbers are compared with the model's: on batches of several sizes, items
    of several lengths, together and alone. Where they differ, nothing is left behind.
    """
    if format_ not in FORMATS:
        raise unknown("export format", format_, FORMATS)
    from polysem.export import export_onnx
    from polysem.models import load

    with ProgressBar(quiet=as_json) as progress:
        exported = export_onnx(load(model), out, tolerance, progress)
    if as_json:
        agreements = {name: asdict(agreement) for name, agreement in exported.agreements.items()}
        summary = {"out": str(exported.out), "files": exported.files, "checked": agreements}
        print_json({**summary, "max_difference": exported.difference})
        return
    table = new_table(str(exported.out), "File", "MB", "Differs from the model by", "Alone from its batch by")
    for name, size in exported.files.items():
        agreement = exported.agreements.get(name.removesuffix(".onnx")) if name.endswith(".onnx") else None
        difference = "" if agreement is None else f"{agreement.difference:.1e} ({agreement.batches} batches)"
        alone = "" if agreement is None or name == "similarity.onnx" else f"{agreement.alone:.1e}"
        table.add_row(name, f"{size / 1e6:.1f}", difference, alone)
    new_console().print(table)
    typer.echo(f"Largest difference: {exported.difference:.1e}.")
