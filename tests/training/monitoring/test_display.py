import io
import time

import pytest
from rich.console import Console

from polysem.training.monitoring import display as module
from polysem.training.monitoring.diagnosis import TrainingFinding
from polysem.training.monitoring.display import TerminalDisplay


def step(i, **more):
    return {
        "kind": "step", "step": i, "epoch": 0, "loss": 12.5, "parts": {"i2t": 6.0, "t2i": 6.5},
        "lr": {"image.project": 5e-4, "text.project": 5e-4, "image.encoder": 5e-5}, "grad_norm": 1.25,
        "info": {"active": 0.83}, "variance": {"image": 0.11, "text": 0.22}, "items_per_second": 640.0, "seconds": 1.0,
        **more,
    }  # fmt: skip


def validation(i, rsum, best):
    recalls = {"r1": 41.5, "r5": 60.0, "r10": 70.0}
    return {"kind": "validation", "step": i, "epoch": 0, "rsum": rsum, "i2t": recalls, "t2i": recalls, "best": best}


FINDING = TrainingFinding("set collapse", "The elements are [alike].", "Try --set image.sets.name=slots.", 150)


def terminal(width=110):
    return Console(file=io.StringIO(), force_terminal=True, force_interactive=True, width=width, highlight=False)


def log():
    return Console(file=io.StringIO(), force_terminal=False, highlight=False)


def test_a_terminal_shows_the_bar_and_the_facts_of_the_moment():
    console = terminal()
    with TerminalDisplay("dive on flickr8k", 1000, console=console) as live:
        live.step(step(20))
        live.validation(validation(20, 321.5, best=True))
        live.validation(validation(40, 300.0, best=False))
        live.step(step(50))
    shown = console.file.getvalue()
    last = shown[shown.rindex("dive on flickr8k") :]
    for expected in (
        "50/1000",
        "12.5 (i2t 6, t2i 6.5)",
        "0.0005 (image.project text.project), 5e-05 (image.encoder)",
        "83%",
        "image 0.11, text 0.22",
        "1.25",
        "640",
        "RSUM 300.0, i2t 41.5 / 60.0 / 70.0",
        "RSUM 321.5 at step 20",
    ):
        assert expected in last


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_narrow_terminal_still_shows_how_far_it_is(width):
    console = terminal(width)
    with TerminalDisplay("small-vse-infty-bigru on flickr8k", 10_000, console=console) as live:
        live.step(step(1234))
    assert "1234/10000" in console.file.getvalue()


def test_a_finding_stands_above_the_bar_in_yellow_and_wraps():
    console = terminal(width=60)
    with TerminalDisplay("run", 1000, console=console) as live:
        live.step(step(1))
        live.finding(FINDING)
    shown = console.file.getvalue()
    assert "\x1b[33mset collapse (step 150)" in shown
    assert "[alike]" in shown
    assert shown.index("set collapse") < shown.rindex("1/1000")


def test_adopts_k_is_shown():
    console = log()
    with TerminalDisplay("run", 1000, console=console) as live:
        live.step(step(1, info={"k": 57.0, "k_i2t": 57.0}, lr={"a": 1e-3, "b": 1e-3}, variance=None))
    assert "negatives (K) 57" in console.file.getvalue()
    assert "lr 0.001;" in console.file.getvalue()


def test_a_log_gets_plain_lines_now_and_then(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    console = log()
    with TerminalDisplay("dive on flickr8k", 200, console=console) as live:
        for i in range(1, 101):
            now[0] += 1.0
            live.step(step(i))
        live.validation(validation(100, 321.5, best=True))
        live.finding(FINDING)
    lines = console.file.getvalue().splitlines()
    assert [line.split(";")[0] for line in lines] == [
        "dive on flickr8k: 200 steps to go.",
        "Step 30 of 200",
        "Step 60 of 200",
        "Step 90 of 200",
        "Step 100: RSUM 321.5, i2t 41.5 / 60.0 / 70.0, t2i 41.5 / 60.0 / 70.0, the best so far.",
        "set collapse (step 150): The elements are [alike]. What to do: Try --set image.sets.name=slots.",
        "Step 100 of 200",
    ]
    assert "left 2 min 50 s." in lines[1]
    assert all(character.isprintable() or character == "\n" for character in console.file.getvalue())


@pytest.mark.parametrize("entered", [True, False])
def test_a_resumed_run_counts_from_where_it_stands(entered, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    console = log()
    live = TerminalDisplay("run", 1000, console=console)
    if entered:
        live.__enter__()
    live.resume(900, best={"step": 300, "rsum": 400.0})
    if not entered:
        live.__enter__()
    now[0] = 50.0
    live.step(step(950))
    live.__exit__(None, None, None)
    shown = console.file.getvalue()
    assert "Resumed at step 900 of 1,000." in shown
    assert "left 50 s" in shown
    assert "best RSUM 400.0 at step 300" in shown


def test_a_resumed_bar_does_not_take_the_past_for_speed():
    console, now = terminal(), [10.0]
    console.get_time = lambda: now[0]
    with TerminalDisplay("run", 1_000_000, console=console) as live:
        live.resume(999_000)
        now[0] += 0.5
        live.step(step(999_001))
        task = live._bar.tasks[0]
        assert task.completed == 999_001
        assert task.speed is None or task.speed <= 2


def test_a_silent_one_says_nothing():
    console = terminal()
    with TerminalDisplay("run", 1000, enabled=False, console=console) as live:
        live.resume(5)
        live.step(step(6))
        live.validation(validation(6, 1.0, best=True))
        live.finding(FINDING)
    assert console.file.getvalue() == ""


def test_records_with_gaps_are_shown_as_far_as_they_go():
    console = log()
    with TerminalDisplay("run", 1000, console=console) as live:
        live.step({"kind": "step", "step": 1, "loss": None, "parts": {"i2t": None}, "grad_norm": None})
        live.step({"kind": "step", "step": 2, "loss": 1.0, "parts": {"i2t": None}})
        live.validation({"kind": "validation", "step": 2})
    assert "loss 1 (i2t not finite)" in console.file.getvalue()


@pytest.mark.parametrize("console", [terminal, log])
def test_a_step_costs_less_than_a_millisecond(console):
    records = [step(i) for i in range(1, 1001)]

    def once() -> float:
        with TerminalDisplay("run", 1000, console=console()) as live:
            began = time.thread_time()
            for record in records:
                live.step(record)
            return time.thread_time() - began

    assert min(once() for _ in range(3)) / len(records) < 1e-3
