"""A stand-in for the API: the same answers in shape, at once, the same every time, and with faults on request.

`python tests/server/browser/fake_server.py` serves it on port 8123 for looking at the page by hand.
"""

from __future__ import annotations

import io
import json
import math
import random
import threading
from dataclasses import dataclass, field
from email.parser import BytesParser
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from PIL import Image, ImageDraw

import polysem

PAGE = Path(polysem.__file__).parent / "server" / "page"
TOKEN = "a token of the tests"
# The policy of the real server, so that what it forbids fails here too.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "font-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
KINDS = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
COLOURS = {
    "red": "#c8452f",
    "blue": "#2f6fb0",
    "green": "#3f8f5f",
    "yellow": "#d9a521",
    "violet": "#7a56b5",
    "black": "#2b2b33",
}
SHAPES = ("circle", "square", "triangle", "ring")
GROUNDS = {"sand": "#efe3cb", "sea": "#cfe3ea", "dusk": "#d9cfe6", "meadow": "#d6e6cc"}
CAMERAS = ("Fuji X100", "Pixel 9", "Kodak's Brownie")


@dataclass(frozen=True)
class Thing:
    colour: str
    shape: str
    x: float
    y: float
    size: float

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True)
class Item:
    id: str
    things: tuple[Thing, ...]
    ground: str
    year: int
    camera: str
    copy_of: str | None = None

    @property
    def caption(self) -> str:
        return f"a {' and a '.join(thing.name for thing in self.things)} on {self.ground}"

    @property
    def labels(self) -> list[str]:
        return sorted({thing.shape for thing in self.things})


def make_items(count: int) -> list[Item]:
    rng = random.Random(7)
    items: list[Item] = []
    for number in range(count):
        copied = items[-1] if number % 10 == 9 else None
        places = rng.sample([(0.27, 0.3), (0.72, 0.28), (0.3, 0.72), (0.7, 0.7)], rng.choice((2, 2, 3)))
        things = tuple(
            Thing(rng.choice(list(COLOURS)), rng.choice(SHAPES), x, y, rng.uniform(0.13, 0.2)) for x, y in places
        )
        items.append(
            Item(
                f"scenes/{number:04d}.png",
                copied.things if copied else things,
                copied.ground if copied else rng.choice(list(GROUNDS)),
                rng.randint(2009, 2026),
                rng.choice(CAMERAS),
                copied.id if copied else None,
            )
        )
    return items


@lru_cache(maxsize=4096)
def draw(item: Item, size: int) -> bytes:
    """A picture of the item, 4 : 3, drawn twice as large and made smaller for soft edges."""
    wide, high = 2 * size, 3 * size // 2
    paper = Image.new("RGB", (wide, high), GROUNDS[item.ground])
    pen = ImageDraw.Draw(paper)
    pen.rectangle((0, int(high * 0.82), wide, high), fill=tuple(int(0.9 * each) for each in paper.getpixel((0, 0))))
    for thing in item.things:
        r, x, y = thing.size * high, thing.x * wide, thing.y * high
        box, fill = (x - r, y - r, x + r, y + r), COLOURS[thing.colour]
        if thing.shape == "circle":
            pen.ellipse(box, fill=fill)
        elif thing.shape == "ring":
            pen.ellipse(box, outline=fill, width=max(1, int(r * 0.35)))
        elif thing.shape == "square":
            pen.rounded_rectangle(box, radius=r * 0.15, fill=fill)
        else:
            pen.polygon([(x, y - r), (x + r, y + r), (x - r, y + r)], fill=fill)
    out = io.BytesIO()
    paper.resize((size, 3 * size // 4), Image.Resampling.LANCZOS).save(out, "PNG")
    return out.getvalue()


@dataclass
class Collection:
    """What is served, what was asked (`asked`), and what goes wrong (`faults`: path → (status, code, message)).

    held: the answer to a query of these words waits for the event.
    calibrated: whether the model tells how probable a match is.
    mapped: whether explanations have a map of the words' score: bright on the thing that they name.
    """

    items: list[Item] = field(default_factory=lambda: make_items(240))
    points: int = 5000
    faults: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    held: dict[str, threading.Event] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    uploads: dict[str, bytes] = field(default_factory=dict)
    reads_need_token: bool = False
    calibrated: bool = False
    mapped: bool = False
    map_asked: int = 0
    expected: bool = False
    detail: int = 120  # pixels across: tests need not wait for fine pictures

    def reset(self) -> None:
        self.faults, self.held, self.asked = {}, {}, []
        self.reads_need_token, self.map_asked, self.expected = False, 0, False
        self.calibrated = self.mapped = False

    @property
    def by_id(self) -> dict[str, Item]:
        return {item.id: item for item in self.items}

    # ------------------------------------------------------------------------------------------- answers
    def stats(self) -> dict[str, Any]:
        def counted(values: Any) -> list[list[Any]]:
            values = list(values)
            return sorted(([each, values.count(each)] for each in dict.fromkeys(values)), key=lambda pair: -pair[1])

        years = [item.year for item in self.items]
        return {
            "items": {"image": len(self.items), "text": 2 * len(self.items)},
            "model": {
                "name": "small-dive",
                "fingerprint": "9f2c1c7e55aa0b1d",
                "sets": {"image": 4, "text": 4},
                "dim": 256,
                "similarity": {"name": "smooth_chamfer", "alpha": 16.0},
                "provenance": {"recipe": {"name": "small-dive"}, "data": {"name": "shapes"}},
            },
            "audit": {
                "recall": {
                    way: {"recall10": 0.981, "worst": 0.8, "queries": 100, "exact_ms": 2.31, "fast_ms": 0.72}
                    for way in ("image to image", "image to text", "text to image", "text to text")
                },
                "candidates": 400,
                "items": {"image": len(self.items), "text": 2 * len(self.items)},
                "measured": 1_790_000_000.0,
            },
            "modes": ["exact", "fast"],
            "writable": True,
            "token": "writes",
            "audit_outdated": False,
            "filters": {
                side: {
                    "labels": counted(label for item in self.items for label in times * item.labels),
                    "metadata": [
                        {"name": "year", "kind": "number", "min": min(years), "max": max(years)},
                        {"name": "camera", "kind": "choice", "values": counted(times * [i.camera for i in self.items])},
                    ],
                    "of": times * len(self.items),
                    "sampled": False,
                }
                for side, times in (("image", 1), ("text", 2))  # each picture has two captions
            },
            "bytes": 18_734_080,
            "credits": ["Pictures by nobody, free for all."],
            "version": "0.0.0",
        }

    def search(self, body: dict[str, Any]) -> dict[str, Any]:
        start, k = body.get("offset", 0), body.get("k", 24)
        found = [item for item in self.items if passes(item, body.get("filter", ""))]
        words = self._words(body)
        ranked = sorted(((_score(item, words), item) for item in found), key=lambda pair: (-pair[0], pair[1].id))
        if body.get("item"):
            ranked = [pair for pair in ranked if pair[1].id != body["item"]]
        folded: dict[str, list[str]] = {}
        if body.get("dedupe"):
            there = {item.id for _, item in ranked}
            for _, item in ranked:
                if item.copy_of in there:
                    folded.setdefault(item.copy_of or "", []).append(item.id)
            gone = {each for ids in folded.values() for each in ids}
            ranked = [pair for pair in ranked if pair[1].id not in gone]
        relevant = sum(score > 0.7 for score, _ in ranked)
        side = body.get("find", "image")
        results = [
            {
                "rank": start + place + 1,
                "id": item.id if side == "image" else f"{item.id}#0",
                "side": side,
                "score": score,
                "caption": item.caption,
                "labels": item.labels,
                "metadata": {"year": item.year, "camera": item.camera},
                "relevant": score > 0.7 if body.get("relevant") else None,
                "duplicates": folded.get(item.id, []),
                "match": score / 2 if self.calibrated else None,
                "image": f"/api/v1/items/{item.id.replace('/', '%2F')}/image" if side == "image" else None,
            }
            for place, (score, item) in enumerate(ranked[start : start + k])
        ]
        cut = {
            "count": relevant,
            "threshold": 0.7 if relevant else None,
            "reliable": True,
            "explained": f"{relevant} relevant, from a score of 0.700 on",
        }
        return {
            "results": results,
            "cut": cut if body.get("relevant") else None,
            "mode": body.get("mode", "exact"),
            "scored": len(found) if body.get("mode") != "fast" else 60,
            "of": len(found),
            "milliseconds": {"encode": 1.8, "search": 0.9},
            "query": body,
        }

    def _words(self, body: dict[str, Any]) -> list[str]:
        if body.get("item"):
            return self.by_id[body["item"].partition("#")[0]].caption.split()
        return body["text"].lower().split() if body.get("text") else ["blue", "ring"]

    def explain(self, body: dict[str, Any]) -> dict[str, Any]:
        item = self.by_id[body["item"]]
        text = body.get("text") or self.by_id[body["with"].partition("#")[0]].caption
        words = text.split()
        elements, rows = [], []
        for number in range(4):
            thing = item.things[number % len(item.things)]
            steps = [_grid(thing, sharpness) for sharpness in (0.35, 0.25, 0.16)]
            hits = [0.6 if word.lower() in thing.name.split() else 0.05 for word in words]
            elements.append(
                {
                    "number": number,
                    "attention": {"kind": "grid", "rows": 7, "cols": 7, "values": steps[-1]},
                    "iterations": [{"kind": "grid", "rows": 7, "cols": 7, "values": step} for step in steps],
                    "nearest_caption": {"id": f"{item.id}#1", "text": f"one {thing.name}", "score": 0.71},
                    "words": [{"word": word, "weight": hit / sum(hits)} for word, hit in zip(words, hits, strict=True)],
                }
            )
            rows.append([round(0.012 + 0.05 * max(hits) + 0.004 * other, 6) for other in range(4)])
        rows[3][0] = -0.011
        cells = [cell for element in elements for row in element["attention"]["values"] for cell in row]
        return {
            "score": sum(map(sum, rows)),
            "match": 0.004 if self.calibrated else None,
            "how": "attention",
            "maps": [self._map_score(item, words, phrase) for phrase in (None, *words)] if self.mapped else [],
            "text": {"elements": [{"number": place, "words": elements[place]["words"]} for place in range(4)]},
            "elements": elements,
            "contributions": rows,
            "scale": {"min": 0.0, "max": max(cells)},
            "width": 480,
            "height": 360,
        }

    def _map_score(self, item: Item, words: list[str], phrase: str | None) -> dict[str, Any]:
        asked = words if phrase is None else [phrase]
        thing = max(item.things, key=lambda each: sum(word.lower() in each.name.split() for word in asked))
        values = [[0.1 * value - 0.01 for value in row] for row in _grid(thing, 0.16)]
        located = {"kind": "grid", "rows": 7, "cols": 7, "values": values}
        found = {"how": "sum", "attention": located, "max": max(map(max, values)), "placeless": 0.2}
        return {"phrase": phrase, "score": 0.5, **found}

    def map(self, colour: str) -> dict[str, Any]:
        self.map_asked += 1
        if self.map_asked == 1:
            return {"ready": False, "progress": 0.4, "points": [], "note": ""}
        rng = random.Random(3)
        points = []
        while len(points) < self.points:
            item = self.items[len(points) // 8 % len(self.items)]
            for element in range(8):
                thing = item.things[element % len(item.things)]
                angle = 2 * math.pi * (SHAPES.index(thing.shape) * 6 + list(COLOURS).index(thing.colour)) / 24
                points.append(
                    {
                        "x": 3 * math.cos(angle) + rng.gauss(0, 0.33),
                        "y": 2 * math.sin(angle) + rng.gauss(0, 0.33),
                        "side": "image" if element < 4 else "text",
                        "slot": element % 4,
                        "id": item.id if element < 4 else f"{item.id}#0",
                        "label": thing.shape,
                        "caption": item.caption,
                    }
                )
        return {"points": points[: self.points], "ready": True, "progress": 1.0, "note": ""}

    def model(self) -> dict[str, Any]:
        spread = {"elements": 4, "variance": 0.214, "log_variance": -1.54, "within": 0.37}
        usage = {"supervision": [0.4, 0.3, 0.2, 0.1], "wins": [0.38, 0.29, 0.22, 0.11], "effective": 3.6}
        figures = {
            "rsum": 412.3,
            **{f"i2t_{name}": value for name, value in (("r1", 51.2), ("r5", 79.0), ("r10", 88.4))},
            **{f"t2i_{name}": value for name, value in (("r1", 42.6), ("r5", 70.9), ("r10", 80.2))},
        }
        return {
            "sets": {"image": spread, "text": {**spread, "variance": 0.102, "log_variance": -2.28, "within": 0.21}},
            "slots": {"image": usage, "text": {**usage, "wins": [0.3, 0.28, 0.22, 0.2], "effective": 3.9}},
            "sample": {"image": 240, "text": 480, "pairs": 480},
            "figures": {"protocol": "pairs, shapes, val, 24 images, 48 texts, inductive", **figures},
            "data": {"name": "shapes"},
            "model": self.stats()["model"],
            "audit": self.stats()["audit"],
            "audit_outdated": False,
        }


def passes(item: Item, filter_text: str) -> bool:
    """The few kinds of clauses that the page's controls write."""
    for clause in filter_text.split(" and ") if filter_text else []:
        name, _, rest = clause.partition(" ")
        sign, _, value = rest.partition(" ")
        own: Any = {"label": item.labels, "year": item.year, "camera": item.camera}.get(name)
        if own is None:
            raise ValueError(f"There is no field {name!r}.")
        if sign == "in":
            values = [each.strip()[1:-1].replace("''", "'") for each in value.strip("()").split(", ")]
            good = any(each in values for each in (own if isinstance(own, list) else [own]))
        elif sign == "=":
            good = value.strip("'") in own
        else:
            good = own >= float(value) if sign == ">=" else own <= float(value)
        if not good:
            return False
    return True


def _score(item: Item, words: list[str]) -> float:
    """One for the whole query found in one thing of the picture; less if it is scattered."""
    names = [set(thing.name.split()) for thing in item.things]
    wanted = [word for word in words if word in COLOURS or word in SHAPES]
    best = max(sum(word in name for word in wanted) for name in names) / max(1, len(wanted))
    anywhere = sum(any(word in name for name in names) for word in wanted) / max(1, len(wanted))
    return round(0.2 + 0.5 * best + 0.3 * anywhere - int(item.id[7:11]) * 1e-5, 6)


def _grid(thing: Thing, width: float) -> list[list[float]]:
    cells = [
        [
            math.exp(-(((c + 0.5) / 7 - thing.x) ** 2 + ((r + 0.5) / 7 - thing.y) ** 2) / (2 * width**2))
            for c in range(7)
        ]
        for r in range(7)
    ]
    total = sum(map(sum, cells))
    return [[cell / total for cell in row] for row in cells]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    collection: Collection

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        address = urlsplit(self.path)
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if address.path == "/" or address.path.startswith("/static/"):
            self._file("index.html" if address.path == "/" else address.path.removeprefix("/static/"))
            return
        if not address.path.startswith("/api/v1/"):
            self._error(404, "not_found", "There is nothing here.")
            return
        path = address.path.removeprefix("/api/v1/")
        first = path.partition("/")[0]
        is_json = self.headers.get("Content-Type") == "application/json"
        body = json.loads(sent) if is_json else None
        self.collection.asked.append((path, body))
        if isinstance(body, dict) and body.get("text") in self.collection.held:  # the answer to one query alone
            self.collection.held[body["text"]].wait()
        fault = self.collection.faults.get(first)
        if fault:
            self._error(*fault)
            return
        is_picture = path.endswith(("/image", "/thumbnail"))  # the real server takes a cookie for these
        needs_token = (self.collection.reads_need_token and not is_picture) or method == "DELETE" or first == "session"
        if needs_token and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._error(401, "unauthorised", "This needs the server's token.")
            return
        self._api(method, path, parse_qs(address.query), body, sent)

    def _api(self, method: str, path: str, query: dict[str, list[str]], body: Any, sent: bytes) -> None:
        had = self.collection
        if path == "session":
            self._send(204, "text/plain", b"")
        elif path == "stats":
            self._json(had.stats())
        elif path == "model":
            self._json(had.model())
        elif path == "map":
            self._json(had.map(query["colour"][0]))
        elif path == "explain":
            self._json(had.explain(body))
        elif path == "search":
            try:
                self._json(had.search(body))
            except ValueError as error:
                self._error(400, "bad_request", str(error))
        elif path == "uploads":
            self._upload(sent)
        elif path.startswith("uploads/"):
            self._send(200, "image/png", had.uploads[path.split("/")[1]])
        elif path.startswith("items/"):
            self._item(method, unquote(path.removeprefix("items/")))
        else:
            self._error(404, "not_found", "There is nothing here.")

    def _item(self, method: str, path: str) -> None:
        item = self.collection.by_id.get(path.removesuffix("/image").partition("#")[0])
        if item is None:
            self._error(404, "not_found", "The index has no such item.")
        elif method == "DELETE":
            self.collection.items = [each for each in self.collection.items if each.id != item.id]
            self._json({"removed": 1})
        elif path.endswith("/image"):
            self._send(200, "image/png", draw(item, self.collection.detail))
        else:
            self._json(
                {
                    "id": item.id,
                    "side": "image",
                    "caption": item.caption,
                    "labels": item.labels,
                    "metadata": {"year": item.year, "camera": item.camera},
                }
            )

    def _upload(self, sent: bytes) -> None:
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        part = BytesParser().parsebytes(head + sent).get_payload(0)
        data = part.get_payload(decode=True)  # type: ignore[union-attr]
        try:
            picture = Image.open(io.BytesIO(data))
            picture.thumbnail((96, 96))
        except OSError:
            self._error(415, "bad_request", "This is no picture that can be read.")
            return
        out = io.BytesIO()
        picture.convert("RGB").save(out, "PNG")
        token = f"upload{len(self.collection.uploads)}"
        self.collection.uploads[token] = out.getvalue()
        self._json({"image": token, "expires": 3600})

    def _file(self, name: str) -> None:
        path = PAGE / name
        if not path.is_file():
            self._error(404, "not_found", "There is no such file.")
            return
        self._send(200, KINDS[path.suffix], path.read_bytes())

    def _json(self, answer: Any) -> None:
        self._send(200, "application/json", json.dumps(answer).encode())

    def _error(self, status: int, code: str, message: str) -> None:
        self._send(status, "application/json", json.dumps({"error": {"code": code, "message": message}}).encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Security-Policy", POLICY)
            self.send_header("Cache-Control", "no-store" if kind == "application/json" else "max-age=60")
            if status == 503:
                self.send_header("Retry-After", "1")
            self.end_headers()
            self.wfile.write(content)
        except ConnectionError:
            pass  # the page has given up on an answer that came too late


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def serve(collection: Collection, port: int = 0) -> Server:
    """A server that runs on a thread of its own; `server_address` is where."""
    server = Server(("127.0.0.1", port), type("Bound", (Handler,), {"collection": collection}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    serve(Collection(detail=720), 8123)
    threading.Event().wait()
