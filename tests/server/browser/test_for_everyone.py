"""By keyboard alone, on a phone, in the dark, without motion, and by the rules of axe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from server.browser.driving import PHONE, Page
from server.browser.fake_server import Collection

pytestmark = [pytest.mark.browser, pytest.mark.slow]

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
FEW = "year+%3E%3D+2013+and+year+%3C%3D+2014"  # enough for every kind of part, and quick to look through
VIEWS = {
    "start": ("/", "#examples a"),
    "results": (f"/?q=blue+ring&filter={FEW}", ".card"),
    "captions": (f"/?q=blue+ring&filter={FEW}&find=text", ".card"),
    "why": (f"/?q=blue+ring&filter={FEW}&why=scenes/0000.png", "#why .element"),
    "map": ("/#map", ".legend .line"),
    "model": ("/#model", ".panel table"),
}


def show(page: Page, view: str, **how: Any) -> None:
    path, sign = VIEWS[view]
    page.open(path, **how)
    page.one(sign)


def violations(page: Page) -> list[Any]:
    """What axe has against the page as it is now."""
    page.js(AXE)
    found: list[Any] = page.driver.execute_async_script(
        "const done = arguments[0]; axe.run(document, { resultTypes: ['violations'] }).then("
        "({ violations }) => done(violations.map((each) => [each.id, each.help, each.nodes.map((at) => at.html)])),"
        "(error) => done([['axe failed', String(error), []]]))"
    )
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(page: Page, scheme: str) -> None:
    for view in VIEWS:
        show(page, view, prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
        if view == "results":
            assert page.one(".cut")
            assert page.one("[data-act='folded']")
            page.click("[aria-controls='filters']")
            page.one(".filters .chip")
        assert violations(page) == [], (view, scheme)


def test_the_keyboard_alone_is_enough(page: Page, collection: Collection) -> None:
    page.open()
    page.one("#examples a")
    page.js("document.activeElement.blur()")
    page.keys(Keys.TAB)
    assert page.focused() == "Skip to the content"
    page.keys("/")
    assert page.focused() == "Search words"
    page.keys("blue ring")
    first = page.results(24)
    page.keys(Keys.ARROW_DOWN)
    assert page.focused() == f"1. {first[0]}"
    outline = page.js("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keys(Keys.ARROW_RIGHT)
    assert page.focused() == f"2. {first[1]}"
    across = page.js(
        "return getComputedStyle(document.querySelector('#results')).gridTemplateColumns.split(' ').length"
    )
    page.keys(Keys.ARROW_DOWN)
    assert page.focused() == f"{across + 2}. {first[across + 1]}"
    page.keys(Keys.ARROW_UP, Keys.ARROW_LEFT)
    assert page.focused() == f"1. {first[0]}"
    # One card is in the tab order: its buttons, then out of the grid.
    page.keys(Keys.TAB)
    assert page.focused() == "Why this?"
    page.keys(Keys.ENTER)
    page.until(lambda: page.all("#why .element"))
    assert page.focused() == "why-title"
    page.keys(Keys.TAB)
    assert page.focused() == "Close"
    page.keys(Keys.ESCAPE)
    page.until(lambda: page.focused() == f"1. {first[0]}")
    page.keys(Keys.END)
    page.until(lambda: len(page.captions()) > 24)  # walking to the end brings more
    page.keys("m")
    page.until(lambda: "item=" in page.address)


def test_a_phone_shows_everything_without_scrolling_sideways(page: Page) -> None:
    for view in VIEWS:
        show(page, view, size=PHONE)
        wide = page.js("return [document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1] == PHONE[0], view
        small = page.js(
            "return [...document.querySelectorAll('button, select, .top a')].filter((each) => {"
            "const box = each.getBoundingClientRect(); return box.width && (box.width < 24 || box.height < 24) })"
            ".map((each) => each.outerHTML)"
        )
        assert small == [], view
    show(page, "results", size=PHONE)
    lefts = page.js("return [...document.querySelectorAll('.card')].map((each) => each.offsetLeft)")
    assert len(set(lefts)) == 2


def brightness(page: Page) -> int:
    return page.js(
        "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"
    )


def test_dark_as_the_system_has_it_or_as_chosen(page: Page) -> None:
    page.open(prefers_color_scheme="light")
    assert brightness(page) > 700
    page.open(prefers_color_scheme="dark")
    assert brightness(page) < 100
    page.click("#theme-button")
    assert brightness(page) > 700
    page.driver.refresh()
    assert brightness(page) > 700  # kept
    page.click("#theme-button")
    assert brightness(page) < 100


def test_nothing_moves_for_those_who_ask_for_it(page: Page) -> None:
    moving = "return parseFloat(getComputedStyle(document.querySelector('.shot img')).transitionDuration)"
    show(page, "results")
    assert page.js(moving) > 0.1
    show(page, "results", prefers_reduced_motion="reduce")
    assert page.js(moving) < 0.001
