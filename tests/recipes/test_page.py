import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_recipes_is_up_to_date() -> None:
    page = runpy.run_path(str(DOCS / "make_recipes.py"))["page"]()
    assert (DOCS / "recipes.md").read_text(encoding="utf-8") == page, "run: python docs/make_recipes.py"
