"""`polysem serve`: an index over HTTP, with a page to search it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def serve_command(
    place: Annotated[str, typer.Argument(metavar="INDEX", help="The index.")],
    host: Annotated[
        str, typer.Option("--host", help="Where to listen. Anything but this machine's own loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0 takes any free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            help="A file with the token that changes need, and off loopback everything. chmod 600.",
            show_default="none: no changes",
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse changes, token or not.")] = False,
    model: Annotated[
        str | None, typer.Option("--model", help="Where the index's model is now.", show_default="where it was")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="A name the server goes by in URLs; may be repeated.", show_default="none"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON when it listens.")] = False,
) -> None:
    """Serve an index: a page to search it and an API for programs (/docs). Ctrl-C finishes what is running and ends."""
    import logging

    from polysem.server import Settings, serve
    from polysem.server.settings import read_token

    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    token = None if token_file is None else read_token(token_file)
    settings = Settings(host, port, token, read_only, tuple(allow_host or ()))

    def announce(url: str) -> None:
        if as_json:
            typer.echo(json.dumps({"url": url}))
            return
        typer.echo(f"{url}  (the API: {url}/docs)  Ctrl-C ends.")
        if settings.reads_need_token:
            typer.echo("Open it with the token: add #token=… to the address once.", err=True)

    serve(place, settings, model=model, announce=announce)
