"""The documentation says what is true: its commands parse, its code compiles, its examples run, nothing is missing."""

import re
import runpy
import shlex
from collections.abc import Iterator
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from typer.main import get_command

from polysem.cli import app
from polysem.pooling.base import registry

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
REFERENCED = (
    "data",
    "encoders",
    "evaluation",
    "export",
    "inspection",
    "models",
    "objectives",
    "pooling",
    "recipes",
    "search",
    "server",
    "sets",
    "similarity",
    "training",
    "weights",
)


FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
JOINTS = {"&&", "|", ";", ">"}
COMMAND = get_command(app)


def blocks(page: Path, *languages: str) -> Iterator[str]:
    fences = FENCE.findall(page.read_text(encoding="utf-8"))
    return (code for _, language, code in fences if language in languages)


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Every call of polysem in the blocks of a page: the line, and its arguments."""
    for code in blocks(page, "", "bash", "console"):
        for line in code.replace("\\\n", " ").replace("$(which polysem)", "polysem").splitlines():
            lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="&|;>")
            lexer.whitespace_split = True
            for joint, call in groupby(lexer, JOINTS.__contains__):
                words = list(call)
                if not joint and "polysem" in words:
                    yield line, words[words.index("polysem") + 1 :]


def parse(arguments: list[str]) -> None:
    """As the command line does, and no further: raises for a command, option or argument that is not there."""
    command, context = COMMAND, None
    rest, name = arguments, "polysem"
    while True:
        context = command.make_context(name, list(rest), parent=context)
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        if not hasattr(command, "resolve_command") or not rest:
            return
        name, command, rest = command.resolve_command(context, rest)


def shown() -> Iterator[Any]:
    for page in PAGES:
        for line, arguments in commands(page):
            yield pytest.param(arguments, id=f"{page.stem}: {line.strip()}")


@pytest.mark.parametrize("arguments", list(shown()))
def test_a_command_that_is_shown_can_be_typed(arguments):
    parse(arguments)


def test_a_command_that_does_not_exist_is_noticed():
    for wrong in (["serch", "my-index"], ["search", "my-index", "--best", "3"], ["train", "dive"]):
        with pytest.raises(Exception, match=r"serch|best|data"):
            parse(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_that_is_shown_compiles(page):
    for code in blocks(page, "python"):
        compile(code, str(page), "exec")


def test_the_method_pages_run(capsys):
    ran = 0
    for page in sorted((DOCS / "methods").glob("*.md")):
        for code in blocks(page, "python"):
            exec(compile(code, str(page), "exec"), {})
            ran += 1
    assert ran >= 8


@pytest.mark.slow
def test_the_new_pooling_is_found_trained_and_loaded(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(registry, "_parts", dict(registry._parts))  # other tests go through all that is registered
    runpy.run_path(str(ROOT / "examples" / "new_pooling.py"))["main"](tmp_path)
    page = (DOCS / "new-pooling.md").read_text(encoding="utf-8")
    assert re.findall(r'^--8<-- "examples/new_pooling.py:(\w+)"$', page, re.MULTILINE) == ["pooling", "alone", "train"]
    told = capsys.readouterr().out
    assert "built from {'name': 'logmeanexp', 'dim': 8, 'start': 2.0}" in told
    assert "val, 16×80, hit rate" in told
    assert "a set of shape (1, 32)" in told


def reference() -> dict[str, str]:
    """What a reader finds -> where it is read from."""
    pages = (DOCS / "api.md").read_text(encoding="utf-8")
    entries = re.findall(r"^::: (\S+)$(?:\n    options:\n      heading: (\S+)$)?", pages, re.MULTILINE)
    return {heading or path: path for path, heading in entries}


@pytest.mark.parametrize("folder", REFERENCED)
def test_every_public_name_is_in_the_reference(folder):
    module = import_module(f"polysem.{folder}")
    # Functions but not methods: each folder of parts has its registry's `build`, `names` and so on.
    public = [name for name in module.__all__ if isinstance(getattr(module, name), (type, FunctionType))]
    listed = {name.rpartition(".")[2] for name in reference()}
    assert [name for name in public if name not in listed] == []


def test_the_reference_shows_what_a_module_of_the_same_name_would_hide():
    for name, path in reference().items():
        folder, _, last = path.rpartition(".")
        found = getattr(import_module(folder), last, None) or import_module(path)  # a module that nobody imported yet
        place = ROOT / "src" / Path(*path.split("."))
        hidden = not isinstance(found, ModuleType) and (place.is_dir() or place.with_suffix(".py").exists())
        assert not hidden, f"{name}: the site would show the module {path}; name the function's own place"


def test_the_readme_leads_to_pages_that_are_there():
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_page_of_parts_is_up_to_date():
    page = runpy.run_path(str(DOCS / "make_parts.py"))["page"]()
    assert (DOCS / "parts.md").read_text(encoding="utf-8") == page, "run: python docs/make_parts.py"


def test_the_example_of_the_parts_runs(capsys):
    (example,) = blocks(DOCS / "methods" / "index.md", "python")
    names: dict = {}
    exec(example, names)
    assert names["scores"].shape == (32, 32)
    assert "tensor" in capsys.readouterr().out


def test_ci_runs_the_very_test_command_of_the_readme():
    command = "pip install -e '.[test]' -c constraints.txt && pytest"
    assert command in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
