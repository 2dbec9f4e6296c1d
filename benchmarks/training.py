"""Items per second of a training step, against the same model written the way the released codes write it.

A step is all of it: size augmentation of every item, collation, forward, loss, backward, clipping and AdamW. Ours is
the library as anyone uses it; the other is `released_style.py`. Each is a process of its own, and they take steps in
turns, so that a disturbance hits both; medians of wall time are compared, and the fastest steps and processor time are
in the JSON. First the two are shown to be one function: from the same weights, without dropout and augmentation, they
must give the same loss and gradients.

Memory is read after each epoch of a small training run in a fresh process. Machines are noisy: only the ratios mean
something.

    python benchmarks/training.py              # three models, about five minutes
    python benchmarks/training.py --quick      # tiny models: does it run?
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import released_style
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn

import polysem
import polysem.models
from polysem import objectives
from polysem.data import augmentation
from polysem.encoders import Tokens
from polysem.malloc_tuning import keep_freed_memory

RESULTS = Path(__file__).parent / "results" / "training.json"
LR, EPOCHS, BATCHES = 5e-4, 8, 10
ITEMS = 4
"""Batches' worth of data."""
MOST = 60.0
"""Seconds of steps after which two of each must do: on a busy machine one of DivE can take a minute."""


@dataclass(frozen=True)
class Sizes:
    images: int = 128
    captions: int = 1
    tokens: int = 49
    input_dim: int = 1280
    word_dim: int = 300
    dim: int = 1024
    vocabulary: int = 10_000
    iterations: int = 4
    heads: int = 4
    head_dim: int = 512
    ff_mult: int = 4
    k: int = 4
    dropout: float = 0.1

    @property
    def block(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("k", "iterations", "heads", "head_dim")}


MODELS = {"VSE∞": Sizes(), "VSE+2AD": Sizes(), "DivE": Sizes(images=100, captions=5)}
TARGETS = {"VSE∞": 1.4, "DivE": 2.5}
CLIP = {"VSE∞": 2.0, "VSE+2AD": 2.0, "DivE": 1.0}
CAPTIONS_OF_LENGTH = [
    *(16, 143, 394, 993, 2251, 2926, 3396, 3842, 3924, 3617, 3222, 2706, 2192, 1559, 1154, 806, 613, 434, 250, 168),
    *(122, 91, 62, 47, 21, 15, 10, 11, 6, 3, 2, 3, 0, 0, 0, 1),
]
"""How many of Flickr8k's 35,000 captions for training and validation have 2, 3, … words. The long ones matter: they
decide how far a batch is padded."""


def small(sizes: Sizes) -> Sizes:
    return replace(
        sizes, images=8, tokens=9, input_dim=24, word_dim=12, dim=16, vocabulary=50, heads=2, head_dim=6, ff_mult=2
    )


# ------------------------------------------------------------------------------------------------ data


@dataclass(frozen=True)
class Data:
    """Random features and captions whose lengths are spread as Flickr8k's are, <start> and <end> included."""

    features: np.ndarray
    captions: list[list[list[int]]]

    @classmethod
    def random(cls, sizes: Sizes, items: int, seed: int = 0) -> Data:
        rng = np.random.default_rng(seed)
        features = rng.standard_normal((items, sizes.tokens, sizes.input_dim), dtype=np.float32)
        share = np.array(CAPTIONS_OF_LENGTH) / sum(CAPTIONS_OF_LENGTH)
        lengths = rng.choice(np.arange(2, 2 + len(share)), (items, sizes.captions), p=share)
        words = [[[1, *rng.integers(4, sizes.vocabulary, n).tolist(), 2] for n in row] for row in lengths]
        return cls(features, words)


# ------------------------------------------------------------------------------------------------ ours


@dataclass(frozen=True)
class Batch:
    images: polysem.LocalFeatures
    keep: Tensor | None
    texts: Tokens
    positives: Tensor


def build(name: str, sizes: Sizes) -> polysem.models.Model:
    region = {"name": "region", "input_dim": sizes.input_dim}
    words = {"name": "bigru", "vocab_size": sizes.vocabulary, "word_dim": sizes.word_dim}
    if name == "DivE":
        slots = {"name": "slots", "ff_mult": sizes.ff_mult, "dropout": sizes.dropout, **sizes.block}
        return polysem.models.build(
            sizes.dim,
            image={
                "encoder": {**region, "form": "dive", "dropout": sizes.dropout},
                "pool": {"name": "max"},
                "sets": slots,
            },
            text={
                "encoder": {**words, "dim": sizes.dim, "local": "words", "dropout": sizes.dropout},
                "sets": {**slots, "position": "sine"},
            },
            similarity={"name": "smooth_chamfer", "alpha": 16.0},
        )
    single = {"name": "single", "pooling": "gpo" if name == "VSE∞" else "adpool"}
    return polysem.models.build(
        sizes.dim,
        image={"encoder": region, "sets": single},
        text={"encoder": words, "sets": single},
        similarity={"name": "cosine"},
    )


class Ours:
    def __init__(self, name: str, sizes: Sizes, data: Data) -> None:
        self.name, self.sizes, self.data = name, sizes, data
        self.model = build(name, sizes)
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=LR, fused=True)
        if name == "VSE+2AD":
            self.objective = objectives.build("adopt", variant="official")
        else:
            self.objective = objectives.build("triplet", reduction="mean" if name == "DivE" else "sum")
        self.mmd, self.diversity = objectives.build("mmd"), objectives.build("diversity")

    def batch(self, chosen: Sequence[int], epoch: int, augment: bool = True) -> Batch:
        values = torch.from_numpy(self.data.features[np.asarray(chosen)])
        keep, texts = None, [ids for item in chosen for ids in self.data.captions[item]]
        if augment:
            kept = np.zeros(values.shape[:2], dtype=bool)
            for row, item in zip(kept, chosen, strict=True):
                row[augmentation.drop_regions(len(row), augmentation.item_rng(0, epoch, f"image {item}"))] = True
            keep = torch.from_numpy(kept)
            texts = [
                augmentation.mask_words(
                    [[word] for word in ids],
                    augmentation.item_rng(0, epoch, f"caption {item} {place}"),
                    released_style.MASK_ID,
                    self.sizes.vocabulary,
                )
                for item in chosen
                for place, ids in enumerate(self.data.captions[item])
            ]
        images = polysem.LocalFeatures(values, torch.ones(values.shape[:2], dtype=torch.bool))
        positives = torch.eye(len(chosen), dtype=torch.bool).repeat_interleave(self.sizes.captions, 1)
        return Batch(images, keep, Tokens.from_lists(texts), positives)

    def loss(self, batch: Batch) -> Tensor:
        images, texts = self.model(batch.images, batch.texts, (batch.keep, None))
        scores = self.model.similarity(images.vectors, texts.vectors)
        total: Tensor = self.objective(scores, batch.positives).total
        if self.name == "DivE":
            total = total + 0.01 * self.mmd(images.vectors, texts.vectors).total
            total = total + 0.01 * self.diversity(images.residual, texts.residual).total
        return total

    def step(self, chosen: Sequence[int], epoch: int) -> float:
        loss = self.loss(self.batch(chosen, epoch))
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP[self.name], foreach=True)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return loss.item()


# ------------------------------------------------------------------------------------------------ theirs


class Released:
    def __init__(self, name: str, sizes: Sizes, data: Data) -> None:
        self.name, self.sizes, self.data = name, sizes, data
        widths = (sizes.vocabulary, sizes.input_dim, sizes.word_dim, sizes.dim)
        self.model: released_style.Single | released_style.DivE
        if name == "DivE":
            self.model = released_style.DivE(
                *widths, captions=sizes.captions, dropout=sizes.dropout, mult=sizes.ff_mult, **sizes.block
            )
        else:
            self.model = released_style.Single(*widths, adaptive=name == "VSE+2AD")
        self.optimiser = released_style.optimiser(self.model, LR)

    def batch(self, chosen: Sequence[int], augment: bool = True) -> released_style.Batch:
        captions = [ids for item in chosen for ids in self.data.captions[item]]
        vocabulary = self.sizes.vocabulary if augment else 0
        return released_style.collate([self.data.features[item] for item in chosen], captions, vocabulary)

    def step(self, chosen: Sequence[int]) -> float:
        return released_style.step(self.model, self.batch(chosen), self.optimiser, CLIP[self.name])


# ------------------------------------------------------------------------------------------------ parity


def pairs(ours: Ours, released: Released) -> list[tuple[Any, nn.Module]]:
    """Our parts and their counterparts."""
    model, other = ours.model, released.model
    found = [(model.image.encoder, other.img), (model.text.encoder, other.txt)]
    if isinstance(other, released_style.DivE):
        return [*found, (model.image.sets, other.img_sets), (model.text.sets, other.txt_sets)]
    pools = (model.image.sets.pooling, other.img_pool), (model.text.sets.pooling, other.txt_pool)  # type: ignore[union-attr]
    return [*found, *pools]


def parity(ours: Ours, released: Released, chosen: Sequence[int]) -> dict[str, float]:
    """How far the two are apart from the same weights on the same items, without dropout and augmentation.

    gradient: the largest difference of any tensor's gradient, relative to the norm of the whole gradient.
    """
    for part, other in pairs(ours, released):
        part.load_official(other.state_dict())
    layers = [m for side in (ours, released) for m in side.model.modules() if isinstance(m, nn.Dropout)]
    rates = [layer.p for layer in layers]
    for layer in layers:
        layer.p = 0.0
    mine, theirs = ours.loss(ours.batch(chosen, 0, augment=False)), released.model.loss(released.batch(chosen, False))
    mine.backward()
    theirs.backward()
    for layer, rate in zip(layers, rates, strict=True):
        layer.p = rate
    losses = mine.item(), theirs.item()
    gaps, squares, worst = [], [], 0.0
    for part, other in pairs(ours, released):
        expected = part.translate_official({n: p.grad for n, p in other.named_parameters() if p.grad is not None})
        own = {n: p.grad for n, p in part.named_parameters() if p.grad is not None}
        if own.keys() != expected.keys():
            raise SystemExit(f"gradients of {own.keys() ^ expected.keys()} are on one side only")
        for key in own:
            gap, size = float((own[key] - expected[key]).norm()), float(expected[key].norm())
            gaps.append(gap)
            squares.append(size**2)
            worst = max(worst, gap / max(size, 1e-12)) if size**2 > 1e-6 * max(squares) else worst
    whole = sum(squares) ** 0.5
    for side in (ours, released):
        side.model.zero_grad(set_to_none=True)
    return {
        "loss": losses[0],
        "released_loss": losses[1],
        "loss_difference": abs(losses[0] - losses[1]) / abs(losses[1]),
        "gradient_difference": max(gaps) / whole,
        "worst_tensor_difference": worst,
    }


TOLERANCE = {"loss_difference": 1e-4, "gradient_difference": 1e-3}


def check(found: dict[str, float], name: str) -> None:
    for key, most in TOLERANCE.items():
        if not found[key] <= most:
            raise SystemExit(f"{name}: the two sides differ, {key} = {found[key]:.2e}; nothing to compare")


# ------------------------------------------------------------------------------------------------ measuring


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def serve(side: str, name: str, sizes: Sizes, threads: int, orders: Connection) -> None:
    """One side in a process of its own: take a step for every order, answer with what it took."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    data = Data.random(sizes, ITEMS * sizes.images)
    ours, released = (Ours(name, sizes, data), None) if side == "ours" else (None, Released(name, sizes, data))
    with keep_freed_memory() if ours else nullcontext():  # as `polysem train` has it
        while (order := orders.recv()) is not None:
            chosen, epoch = order
            orders.send(timed(lambda: ours.step(chosen, epoch) if ours else released.step(chosen)))  # noqa: B023


@contextmanager
def sides(name: str, sizes: Sizes) -> Iterator[dict[str, Connection]]:
    context = multiprocessing.get_context("spawn")
    pipes = {side: context.Pipe() for side in ("released", "ours")}
    workers = [
        context.Process(target=serve, args=(side, name, sizes, torch.get_num_threads(), theirs), daemon=True)
        for side, (_, theirs) in pipes.items()
    ]
    for worker in workers:
        worker.start()
    for _, theirs in pipes.values():
        theirs.close()  # so that a side that dies is noticed
    try:
        yield {side: mine for side, (mine, _) in pipes.items()}
    finally:
        for mine, _ in pipes.values():
            with suppress(OSError):
                mine.send(None)
        for worker in workers:
            worker.join()


def measure(name: str, sizes: Sizes, at_least: float, advance: Callable[[str], None]) -> dict[str, Any]:
    torch.manual_seed(0)
    advance(f"{name}: parity")
    data = Data.random(sizes, sizes.images)
    agreement = parity(Ours(name, sizes, data), Released(name, sizes, data), range(sizes.images))
    check(agreement, name)
    rng = np.random.default_rng(1)
    taken: dict[str, list[tuple[float, float]]] = {"released": [], "ours": []}
    spent, epoch = 0.0, 0
    with sides(name, sizes) as workers:
        while epoch < 3 or (epoch < 5 and spent < MOST) or spent < at_least:
            chosen = rng.permutation(ITEMS * sizes.images)[: sizes.images].tolist()
            advance(f"{name}: step {epoch} of both")
            for side, worker in workers.items():
                worker.send((chosen, epoch))
                taken[side].append(worker.recv())
                spent += taken[side][-1][0]
            epoch += 1
    taken = {side: times[1:] for side, times in taken.items()}  # the first warms up
    wall = {side: statistics.median(w for w, _ in times) for side, times in taken.items()}
    cpu = {side: statistics.median(c for _, c in times) for side, times in taken.items()}
    items = sizes.images * (1 + sizes.captions)
    return {
        "images": sizes.images,
        "captions_per_image": sizes.captions,
        "steps_of_each": epoch - 1,
        "ours_seconds": wall["ours"],
        "released_seconds": wall["released"],
        "ours_items_per_second": items / wall["ours"],
        "released_items_per_second": items / wall["released"],
        "speedup": wall["released"] / wall["ours"],
        "speedup_of_fastest": min(taken["released"])[0] / min(taken["ours"])[0],
        "speedup_in_processor_time": cpu["released"] / cpu["ours"],
        "wanted": TARGETS.get(name),
        "parity": agreement,
    }


def resident_mb() -> float:
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmRSS:")[1].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def report_memory() -> None:
    """Train small models for some epochs and print what the process holds after each."""
    torch.set_num_threads(1)  # on a busy machine, threads that share small operations wait for one another
    found = {}
    for name in MODELS:
        sizes = replace(MODELS[name], images=16, tokens=25, input_dim=128, dim=128, head_dim=64, vocabulary=2000)
        torch.manual_seed(0)
        ours = Ours(name, sizes, Data.random(sizes, BATCHES * sizes.images))
        held = []
        for epoch in range(EPOCHS):
            order = np.random.default_rng(epoch).permutation(BATCHES * sizes.images)
            for chosen in np.split(order, BATCHES):
                ours.step(chosen.tolist(), epoch)
            gc.collect()
            held.append(round(resident_mb(), 1))
        found[name] = held
    print(json.dumps(found))


def measure_memory() -> dict[str, Any]:
    script = [sys.executable, __file__, "--memory"]
    held = json.loads(subprocess.run(script, capture_output=True, text=True, check=True).stdout)
    half = EPOCHS // 2
    growth = {name: statistics.mean(mb[half:]) - statistics.mean(mb[:half]) for name, mb in held.items()}
    return {"resident_mb_after_each_epoch": held, "growth_mb_in_the_second_half": growth, "steps_per_epoch": BATCHES}


def show(found: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="items per second of training: augmentation, collation, forward, backward, clipping, AdamW")
    for column in ("model", "batch", "released", "ours", "speed-up", "wanted", "Δ loss", "Δ grad"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, row in found.items():
        table.add_row(
            name,
            f"{row['images']} × {row['captions_per_image']}",
            f"{row['released_items_per_second']:.0f}/s",
            f"{row['ours_items_per_second']:.0f}/s",
            f"{row['speedup']:.2f}×",
            f"{row['wanted']}×" if row["wanted"] else "",
            f"{row['parity']['loss_difference']:.0e}",
            f"{row['parity']['gradient_difference']:.0e}",
        )
    return table


def show_memory(found: dict[str, Any]) -> Table:
    table = Table(title=f"resident memory (MB) after each epoch of {BATCHES} steps, small models")
    for column in ("model", *(str(epoch + 1) for epoch in range(EPOCHS)), "growth"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, held in found["resident_mb_after_each_epoch"].items():
        table.add_row(name, *(f"{mb:.0f}" for mb in held), f"{found['growth_mb_in_the_second_half'][name]:.1f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(MODELS), help="one model; the others keep their last result")
    parser.add_argument("--seconds", type=float, default=20.0, help="least time to spend on each model's steps")
    parser.add_argument("--quick", action="store_true", help="tiny models and few steps: a test, not a measurement")
    parser.add_argument("--threads", type=int, help="of torch, for both sides; as many as there are cores if not given")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        report_memory()
        return
    results: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.only and arguments.out.exists() else {}
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    results["environment"] = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "load_before": round(os.getloadavg()[0], 1),
    }
    console = Console()
    steps = results.setdefault("steps", {})
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=None)
        for name, sizes in MODELS.items():
            if arguments.only in (None, name):
                steps[name] = measure(
                    name,
                    small(sizes) if arguments.quick else sizes,
                    0.0 if arguments.quick else arguments.seconds,
                    lambda what: progress.update(task, description=what),
                )
        if not (arguments.only or arguments.quick):
            progress.update(task, description="memory")
            results["memory"] = measure_memory()
    console.print(show(steps))
    if "memory" in results:
        console.print(show_memory(results["memory"]))
    if not arguments.quick:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
