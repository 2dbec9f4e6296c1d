"""Every example in a docstring of the package runs, and says what it prints."""

import ast
import doctest
import importlib
from functools import cache
from pathlib import Path

import pytest

import polysem

pytestmark = pytest.mark.docs

ROOT = Path(polysem.__file__).parent
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _documented(path: Path) -> list[str]:
    """The dotted names of the docstrings of a file that hold an example, read without importing it."""
    source = path.read_text(encoding="utf-8")
    if ">>>" not in source:
        return []
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    names = []

    def visit(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> None:
        if ">>>" in (ast.get_docstring(node) or ""):
            names.append(f"{module}:{name}")
        for child in node.body:
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                visit(child, f"{name}.{child.name}".lstrip("."))

    visit(ast.parse(source), "")
    return names


DOCUMENTED = [name for path in sorted(ROOT.rglob("*.py")) for name in _documented(path)]


@cache
def _examples(module: str) -> dict[str, doctest.DocTest]:
    """The examples that doctest finds in a module, by their dotted name in it."""
    found = doctest.DocTestFinder().find(importlib.import_module(module), module)
    return {test.name.removeprefix(module).lstrip("."): test for test in found if test.examples}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_examples_of_a_docstring_print_what_they_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example that doctest does not find (a bound method, an inner function) fails here: it would never run."""
    monkeypatch.chdir(tmp_path)
    module, _, inner = name.partition(":")
    example = _examples(module)[inner]
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=report.append, clear_globs=False)
    assert result.attempted > 0
    assert result.failed == 0, "".join(report)


def test_the_examples_are_there() -> None:
    assert {name.partition(":")[0] for name in DOCUMENTED} >= {"polysem.features", "polysem.pooling"}
