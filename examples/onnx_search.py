"""Search with an exported model, without polysem or torch: onnxruntime, tokenizers, Pillow and numpy are enough.

    polysem export runs/mine --format onnx --out mine-onnx
    python examples/onnx_search.py mine-onnx "a dog on a beach" photo.jpg beach.jpg
    python examples/onnx_search.py --tiny

For a model whose image tower reads pixels and whose text tower is a transformer. polysem_export.json says all that this
script relies on; `max_difference` in it is how far the graphs were from the model when they were written.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps
from tokenizers import Tokenizer


class Exported:
    def __init__(self, folder: Path) -> None:
        self.about = json.loads((folder / "polysem_export.json").read_text(encoding="utf-8"))
        self.sessions = {
            name: onnxruntime.InferenceSession(folder / self.about[name]["file"])
            for name in ("image", "text", "similarity")
        }
        self.tokenizer = Tokenizer.from_file(str(folder / self.about["text"]["tokenizer"]["file"]))
        self.tokenizer.enable_padding()

    def images(self, paths: list[Path]) -> np.ndarray[Any, Any]:
        return self._run("image", np.stack([self._pixels(path) for path in paths]))

    def texts(self, texts: list[str]) -> np.ndarray[Any, Any]:
        found = self.tokenizer.encode_batch(texts)
        return self._run("text", np.array([t.ids for t in found]), np.array([t.attention_mask for t in found]))

    def similarity(self, images: np.ndarray[Any, Any], texts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return self._run("similarity", images, texts)

    def _pixels(self, path: Path) -> np.ndarray[Any, Any]:
        how = self.about["image"]["preprocessing"]
        picture = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
        box, side = (0, 0, *picture.size), min(picture.size)
        if how["resize"] == "crop":
            left, top = ((length - side) / 2 for length in picture.size)
            box = (left, top, left + side, top + side)
        filter_ = Image.Resampling[how["interpolation"].upper()]
        square = picture.resize((how["size"],) * 2, filter_, box=box, reducing_gap=how["reducing_gap"])
        values = (np.asarray(square, np.float32) / 255 - np.float32(how["mean"])) / np.float32(how["std"])
        return values.transpose(2, 0, 1)

    def _run(self, name: str, *inputs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        names = [port["name"] for port in self.about[name]["inputs"]]
        found: np.ndarray[Any, Any] = self.sessions[name].run(None, dict(zip(names, inputs, strict=True)))[0]
        return found


def search(exported: Exported, query: str, paths: list[Path]) -> list[tuple[str, float]]:
    scores = exported.similarity(exported.images(paths), exported.texts([query]))[:, 0]
    best = [(paths[place].name, float(scores[place])) for place in np.argsort(-scores, kind="stable")]
    for name, score in best:
        print(f"{score:6.3f}  {name}")
    return best


def main(arguments: list[str] | None = None) -> list[tuple[str, float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path, nargs="?", help="what `polysem export` wrote")
    parser.add_argument("query", nargs="?")
    parser.add_argument("pictures", type=Path, nargs="*")
    parser.add_argument("--tiny", action="store_true", help="export a stand-in first (this needs polysem)")
    given = parser.parse_args(arguments)
    if not given.tiny and not given.pictures:
        parser.error("give an export, a query and pictures, or --tiny")
    if not given.tiny:
        return search(Exported(given.export), given.query, given.pictures)
    import tiny

    from polysem.export import export_onnx

    with tempfile.TemporaryDirectory() as folder:
        export_onnx(tiny.model(Path(folder)), Path(folder) / "onnx")
        pictures = sorted(tiny.pictures(Path(folder) / "pictures").glob("*-left.png"))[:4]
        return search(Exported(Path(folder) / "onnx"), "a red circle", pictures)


if __name__ == "__main__":
    main()
