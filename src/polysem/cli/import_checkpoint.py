"""`polysem import`: a checkpoint that authors released, as a model folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from polysem.models import Model


@dataclass(frozen=True)
class Summary:
    """What was imported. recorded: what the file says of itself; nothing of it was measured."""

    out: str
    imported: dict[str, Any]
    dim: int
    image_vectors: int
    text_vectors: int
    images: str
    texts: str
    parts: list[dict[str, Any]]
    fingerprint: str


def import_command(
    checkpoint: Annotated[Path, typer.Argument(help="The checkpoint file, as its authors released it.")],
    source: Annotated[str, typer.Option("--from", help="Whose it is: vse-infty, vse-2ad, dive or labelwise.")],
    out: Annotated[Path, typer.Option(help="Folder of the model. One that is there is replaced.")],
    vocabulary: Annotated[
        Path | None,
        typer.Option(help="JSON vocabulary of a BiGRU, for a model that takes sentences.", show_default="none"),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder of BERT's tokenizer, for the same.", show_default="none")
    ] = None,
    variant: Annotated[
        str, typer.Option(help="paper leaves padding out; official lets it in where the released code does.")
    ] = "paper",
    bert_heads: Annotated[
        int | None, typer.Option(help="Attention heads of BERT.", show_default="its width / 64")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Turn the authors' checkpoint into a model that `polysem.load` reads, with embeddings equal to theirs.

    No code from the file is run: it is read as tensors and plain values, or refused.
    """
    from polysem.models import import_checkpoint

    model = import_checkpoint(
        checkpoint, source, vocabulary, variant=variant, tokenizer=tokenizer, bert_heads=bert_heads
    )
    model.save(out)
    summary = _summarise(model, out)
    if as_json:
        typer.echo(json.dumps(asdict(summary), indent=2))
    else:
        _show(summary)


def _summarise(model: Model, out: Path) -> Summary:
    image, text = model.image.encoder.config, model.text.encoder
    boxes = " with their boxes" if model.image.sets.classifies else ""
    can_read = getattr(text, "vocabulary", None) or getattr(text, "tokenizer", None)
    return Summary(
        out=str(out),
        imported=model.provenance["imported"],
        dim=model.dim,
        image_vectors=model.set_sizes[0],
        text_vectors=model.set_sizes[1],
        images=f"region features{boxes}, (regions, {image['input_dim']})",
        texts="sentences" if can_read else "token ids",
        parts=[
            {"place": place, "part": part.config["name"], "parameters": sum(p.numel() for p in part.parameters())}
            for place, part in model.parts().items()
        ],
        fingerprint=model.fingerprint(),
    )


def _show(summary: Summary) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    origin = summary.imported
    noted = {"data": origin["data"], "epoch": origin["epoch"], **origin["recorded"]}
    said = ", ".join(f"{name} {value}" for name, value in noted.items() if value not in (None, "")) or "nothing"
    table = Table("", "", title="Imported", title_justify="left", show_header=False)
    table.add_row("Model", escape(summary.out))
    table.add_row("From", escape(f"{origin['file']} ({origin['from']}, variant {origin['variant']})"))
    table.add_row("The file says", escape(f"{said} (as recorded there, not measured)"))
    table.add_row("Vectors", f"{summary.image_vectors} per image, {summary.text_vectors} per text, width {summary.dim}")
    table.add_row("Takes", f"{summary.images}; {summary.texts}")
    for part in summary.parts:
        table.add_row(part["place"], f"{part['part']}, {part['parameters']:,} parameters")
    for dropped in origin["dropped"]:
        table.add_row("Left out", escape(dropped))
    console = Console(highlight=False)
    console.print(table)
    if summary.texts == "token ids":
        words = any(part["part"] == "bigru" for part in summary.parts)
        wanted = "--vocabulary FILE" if words else "--tokenizer FOLDER"
        console.print(f"Texts are given as token ids. For sentences, import again with {wanted}.")
