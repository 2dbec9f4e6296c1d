"""The page against the real application: what one asks for is what the other gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from polysem.models import Model
from polysem.search import Index
from server.browser.driving import DESKTOP, PHONE, Page
from server.browser.test_for_everyone import violations
from server.running import server

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def real(chromium: webdriver.Chrome, place: Path, model: Model) -> Iterator[Page]:
    with server(place, model) as (_, port):
        made = Page(chromium, f"http://127.0.0.1:{port}")
        made.console()
        made.asked_hosts()
        yield made
        assert made.console() == []
        assert made.asked_hosts() <= {made.origin}
        made.leave()


def test_search_why_like_upload_map_and_model(real: Page, photos: Path) -> None:
    real.open("/?dedupe=0")  # to an untrained model its pictures are all alike
    real.until(lambda: "4 pictures and 8 captions" in real.text("#welcome-text"))
    real.type("a red picture")
    assert len(real.results(4)) == 4
    pictures = "return [...document.querySelectorAll('.shot img')].every((each) => each.complete && each.naturalWidth)"
    real.until(lambda: real.js(pictures))

    real.click(".card [data-act='why']")
    real.until(lambda: len(real.all("#why .element")) == 2)
    cells = [float(each.text.replace("−", "-")) for each in real.all("#why td.part")]
    assert len(cells) == 4
    assert abs(sum(cells) - float(real.text("#why td.whole").replace("−", "-"))) < 0.003
    assert real.text("#why .element .near").startswith("nearest caption")
    real.keys(Keys.ESCAPE)
    real.until(lambda: not real.js("return document.querySelector('#why').open"))

    real.click("[aria-controls='filters']")
    real.click(".chip[data-key='red']")
    real.until(lambda: real.js("return document.querySelectorAll('.card').length") == 1)
    real.click(".card [data-act='like']")
    real.until(lambda: "item=red.png" in real.address)

    real.open("/?dedupe=0")
    real.give(photos / "blue.png")
    real.results(4)
    assert real.js("return document.querySelector('.card').dataset.id") == "blue.png"

    real.open("/#map")
    real.until(lambda: "captions\n16" in real.text(".legend"))
    real.open("/#model")
    real.until(lambda: "Slot usage" in real.text("#view-model"))


def test_an_empty_index_is_called_empty_everywhere(chromium: webdriver.Chrome, model: Model, tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", model):
        pass
    with server(tmp_path / "index", model) as (_, port):
        page = Page(chromium, f"http://127.0.0.1:{port}")
        page.open()
        page.until(lambda: "This index is empty" in page.text("#welcome-text"))
        page.open("/?q=a+dog")
        assert "nothing to search" in page.text(".nothing")
        page.open("/#map")
        page.until(lambda: "nothing in the index yet" in page.text(".busy"))
        page.open("/#model")
        page.until(lambda: "nothing in the index yet" in page.text("#view-model"))
        assert page.console() == []
        page.leave()


def test_the_reference_is_for_everyone_too(real: Page) -> None:
    for size in (DESKTOP, PHONE):
        real.open("/docs", size=size)
        real.one("details")
        real.js("[...document.querySelectorAll('details')].slice(2, 5).forEach((each) => { each.open = true })")
        assert "Search for what these words say." in real.text("main")
        wide = real.js("return [document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1]
        assert violations(real) == []
