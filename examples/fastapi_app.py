"""Search inside a FastAPI application of your own.

    polysem index ~/Pictures --model runs/mine --out my-index
    python examples/fastapi_app.py my-index            # then http://127.0.0.1:8000/find?q=a+dog+on+a+beach
    python examples/fastapi_app.py --tiny

`polysem serve` is a finished server with a page, tokens and limits. This is for an application that has those already
and only wants to ask.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import tiny
from fastapi import FastAPI, HTTPException, Query
from starlette.requests import Request

from polysem import PolysemError
from polysem.search import Index


def build_app(place: Path) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # One index for the whole application: any number of threads may search it, and other processes may add to it.
        app.state.index = Index.open(place)
        yield

    app = FastAPI(lifespan=lifespan)

    # A plain `def`: FastAPI runs it on a thread, so that encoding a query does not keep other requests waiting.
    @app.get("/find")
    def find(request: Request, q: Annotated[str, Query(max_length=300)], k: Annotated[int, Query(ge=1, le=100)] = 10):  # type: ignore[no-untyped-def]
        index: Index = request.app.state.index
        try:
            found = index.search(q, k=k)
        except PolysemError as error:  # an empty text, say: the message is meant for the asker
            raise HTTPException(422, str(error)) from None
        return {"results": [{"id": result.id, "score": result.score} for result in found]}

    return app


def make_index(folder: Path) -> Path:
    """An index of the stand-ins."""
    model = tiny.model(folder)
    model.save(folder / "model")
    with Index.create(folder / "index", folder / "model") as index:
        print(index.add(tiny.pictures(folder / "pictures")))
    return folder / "index"


def main(arguments: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path, nargs="?")
    parser.add_argument("--tiny", action="store_true", help="an index of stand-ins")
    given = parser.parse_args(arguments)
    if not given.tiny and given.index is None:
        parser.error("give an index, or --tiny")
    import uvicorn

    if not given.tiny:
        return uvicorn.run(build_app(given.index))
    with tempfile.TemporaryDirectory() as folder:
        return uvicorn.run(build_app(make_index(Path(folder))))


if __name__ == "__main__":
    main()
