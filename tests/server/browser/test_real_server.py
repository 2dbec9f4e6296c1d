"""The page against the real application: what one asks for is what the other gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from polysem.models import Model
from server.browser.driving import Page
from server.running import server


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
    assert "4 pictures and 8 captions" in real.text("#welcome-text")
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
