"""Writes the tables in docs/recipes.md: `python docs/make_recipes.py`. A test keeps them in step with the recipes."""

from pathlib import Path

from polysem.recipes import Recipe
from polysem.recipes.loading import catalogue

PAGE = Path(__file__).with_name("recipes.md")
BEGIN, END = "<!-- made by docs/make_recipes.py -->", "<!-- end -->"


def row(recipe: Recipe) -> str:
    training = recipe.training
    captions = "" if training.captions == "one" else f" × {training.captions}"
    cells = (f"`{recipe.name}`", recipe.summary, recipe.paper, str(training.epochs), f"{training.batch}{captions}")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def tables() -> str:
    lines = []
    for title, recipes in catalogue().items():
        lines += [f"### {title}", "", "| name | what it is | row | epochs | batch |", "|---|---|---|---|---|"]
        lines += [*map(row, recipes), ""]
    return "\n".join(lines)


def page() -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
