"""Searching with the page: by words, by a picture, from a result; filters, links and the way back."""

from __future__ import annotations

import base64
import io
import re
import threading
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from PIL import Image

from polysem.search.filters import matches
from server.browser.driving import Page
from server.browser.fake_server import Collection

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def searches(collection: Collection) -> list[dict[str, Any]]:
    return [body for path, body in collection.asked if path == "search" and "offset" in body]


def query_of(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.address).query)


def test_a_calibrated_model_says_how_probable_a_match_is(page: Page, collection: Collection) -> None:
    collection.calibrated = True
    page.open("?q=blue+ring")
    page.until(lambda: page.all(".card .match"), "a probability")
    assert re.fullmatch(r"[1-9]\d? % match", page.text(".card .match"))
    page.click(".card [data-act='why']")
    page.until(lambda: "0.4 % match" in page.text(".why-head"), "that of the explanation")


def test_it_answers_as_one_types(page: Page, collection: Collection) -> None:
    page.open()
    page.type("blue ring")
    page.until(lambda: len(found := page.captions()) >= 24 and all("blue ring" in each for each in found[:8]))
    assert query_of(page) == {"q": ["blue ring"]}
    assert "33 relevant" in page.text("#status")
    assert "exact" in page.text("#status")
    page.keys("\b" * 4 + "square")
    page.until(lambda: page.captions() and all("blue square" in each for each in page.captions()[:5]))
    assert page.driver.title == "blue square · polysem"


def test_letters_in_quick_succession_are_one_search(page: Page, collection: Collection) -> None:
    page.open()
    page.one("#text")
    # Within one task of the page no time goes by for it, however slow the machine.
    page.js(
        """
        const text = document.querySelector("#text");
        for (const letter of "blue ring") {
          text.value += letter;
          text.dispatchEvent(new InputEvent("input", { data: letter, bubbles: true }));
        }
        """
    )
    page.results(24)
    assert [body["text"] for body in searches(collection)] == ["blue ring"]


def test_an_answer_that_comes_too_late_is_dropped(page: Page, collection: Collection) -> None:
    collection.held["red"] = release = threading.Event()
    page.open()
    page.type("red")
    page.until(lambda: any(body["text"] == "red" for body in searches(collection)))
    page.js("document.querySelector('#text').value = ''")
    page.type("green circle")
    assert "green circle" in page.results(24)[0]
    release.set()
    # The page has had its last word on the first search when the browser has done with that request: its answer came
    # in, or it was given up.
    done = "return performance.getEntriesByType('resource').filter((each) => each.name.endsWith('/search')).length"
    page.until(lambda: page.js(done) >= len(searches(collection)), "an end of every request")
    page.js("return new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    assert "green circle" in page.captions()[0]
    assert query_of(page) == {"q": ["green circle"]}


def test_the_relevance_cut_is_a_line_and_duplicates_are_folded(page: Page, collection: Collection) -> None:
    page.open("/?q=blue+ring")
    page.results(24)
    page.until(lambda: page.js("scrollTo(0, document.body.scrollHeight)") or page.all(".cut"), "the cut")
    assert page.text(".cut").startswith("33 relevant above")
    above = page.js(
        "return [...document.querySelector('.cut').parentNode.children].indexOf(document.querySelector('.cut'))"
    )
    assert above == 33
    assert page.all(".card.below")
    assert page.one("[data-act='folded']").get_attribute("aria-expanded") == "false"
    page.click("[data-act='folded']")
    page.one(".folded img")
    page.click("label:has([name='dedupe'])")
    page.until(lambda: not page.all("[data-act='folded']"))
    page.click("label:has([name='relevant'])")
    page.until(lambda: searches(collection)[-1]["relevant"] is False and not page.all(".cut"))
    assert query_of(page) == {"q": ["blue ring"], "relevant": ["0"], "dedupe": ["0"]}


def test_more_results_come_with_scrolling_until_there_are_no_more(page: Page) -> None:
    page.open("/?q=blue+ring&dedupe=0")
    page.results(24)
    end = "scrollTo(0, document.body.scrollHeight); return document.querySelector('#more').textContent"
    page.until(lambda: page.js(end) == "That is all.")
    ids = page.js("return [...document.querySelectorAll('.card')].map((each) => each.dataset.id)")
    assert len(ids) == len(set(ids)) == 240


def test_filters_come_from_the_metadata_and_go_into_the_link(page: Page, collection: Collection) -> None:
    page.open("/?q=blue+ring")
    page.results(24)
    page.click("[aria-controls='filters']")
    page.click(".chip[data-key='circle']")
    page.until(lambda: searches(collection)[-1].get("filter") == "label = 'circle'")
    page.click('.chip[data-key="Kodak\'s Brownie"]')
    low = page.one("[aria-label='year, at least']")
    low.send_keys("2015\n")
    wanted = "label = 'circle' and year >= 2015 and camera in ('Kodak''s Brownie')"
    page.until(lambda: searches(collection)[-1].get("filter") == wanted)
    page.results()
    assert query_of(page)["filter"] == [wanted]
    number = page.text("#status").split()[0]
    assert 0 < int(number) < 40

    page.driver.refresh()
    page.results()
    assert page.text("#status").split()[0] == number
    page.click("[aria-controls='filters']")
    pressed = [chip.get_attribute("data-key") for chip in page.all(".chip[aria-pressed='true']")]
    assert pressed == ["circle", "Kodak's Brownie"]
    assert page.one("[aria-label='year, at least']").get_attribute("value") == "2015"
    collection.expected = True
    own = page.one("#filter-text")
    own.clear()
    own.send_keys("nonsense = 3\n")
    assert "There is no field 'nonsense'" in page.text(".notice")


def test_filters_are_written_as_the_server_reads_them(page: Page) -> None:
    page.open()
    metadata = [
        {"name": "year", "kind": "number"},
        {"name": "taken at", "kind": "choice"},
        {"name": "camera.model", "kind": "choice"},
        {"name": "label", "kind": "choice"},
        {"name": "flash", "kind": "choice"},
    ]
    chosen = {
        "labels": ["dog", "cat's paw"],
        "every": True,
        "numbers": {"year": [2020, 2021.5]},
        "values": {"taken at": ["a 'quay' and more"], "camera.model": ["X"], "label": ["L"], "flash": [True, 1.5, "1"]},
    }
    told = page.driver.execute_async_script(
        "const [choices, known, done] = arguments;"
        "import('/static/scripts/filter_text.js').then(({ compose, parse }) => {"
        "  const text = compose(choices); done([text, parse(text, known), parse('year > 3', known)]) })",
        chosen,
        {"metadata": metadata},
    )
    text, again, other = told
    assert again == chosen
    assert other is None  # more than the controls can say
    item = {
        "label": ["dog", "cat's paw"],
        "metadata": {"year": 2021, "taken at": "a 'quay' and more", "camera.model": "X", "label": "L", "flash": True},
    }
    assert matches(text, item)
    assert not matches(text, {**item, "metadata": {**item["metadata"], "flash": "true"}})
    assert not matches(text, {**item, "metadata": {**item["metadata"], "year": 2022}})


def test_exact_and_fast_pictures_and_captions(page: Page, collection: Collection) -> None:
    page.open("/?q=blue+ring")
    page.results(24)
    page.click(".choice label:has([value='fast'])")
    page.until(lambda: "fast: 60 compared in full" in page.text("#status"))
    page.click(".choice label:has([name='find'][value='text'])")
    page.one(".grid.texts .saying")
    assert searches(collection)[-1]["mode"] == "fast"
    assert searches(collection)[-1]["find"] == "text"
    assert query_of(page) == {"q": ["blue ring"], "mode": ["fast"], "find": ["text"]}


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.new("RGB", (60, 40), "teal").save(tmp_path / "own.png")
    return tmp_path / "own.png"


def test_a_picture_is_chosen(page: Page, collection: Collection, picture: Path) -> None:
    page.open()
    page.give(picture)
    page.results(24)
    token = query_of(page)["image"][0]
    assert searches(collection)[-1]["image"] == token
    assert page.text("#asked") == "your picture"
    # Uploaded as it is: what the server keeps of it is the thumbnail of this very picture.
    assert Image.open(io.BytesIO(collection.uploads[token])).getpixel((5, 5)) == (0, 128, 128)
    page.click("#clear")
    page.until(lambda: page.address == "/")


@pytest.mark.parametrize("how", ["drop", "paste"])
def test_a_picture_is_dropped_or_pasted(page: Page, collection: Collection, picture: Path, how: str) -> None:
    page.open()
    page.one("#examples a")
    page.js(
        """
        const data = new DataTransfer(), bytes = Uint8Array.from(atob(arguments[0]), (each) => each.charCodeAt(0));
        data.items.add(new File([bytes], "own.png", { type: "image/png" }));
        if (arguments[1] === "paste") document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data }));
        else for (const name of ["dragenter", "dragover", "drop"])
          document.body.dispatchEvent(new DragEvent(name, { dataTransfer: data, bubbles: true, cancelable: true }));
        """,
        base64.b64encode(picture.read_bytes()).decode(),
        how,
    )
    page.results(24)
    assert "image" in query_of(page)
    assert page.js("return document.querySelector('#drop').hidden")


def test_more_like_this_and_the_back_button(page: Page, collection: Collection) -> None:
    page.open()
    page.type("blue ring\n")
    first = page.results(24)
    page.click(".card [data-act='like']")
    page.until(lambda: "item" in searches(collection)[-1])
    page.until(lambda: page.results(24) != first)
    assert page.text("#asked").startswith("like scenes/")
    like = page.address
    page.driver.back()
    page.until(lambda: page.captions()[:24] == first[:24])
    assert page.one("#text").get_attribute("value") == "blue ring"
    page.driver.forward()
    page.until(lambda: page.address == like and page.all("#asked span"))
    page.driver.back()
    page.driver.back()
    page.until(lambda: page.address == "/" and not page.captions())
    assert page.one("h1").text == "Every meaning of an image"


def test_pictures_have_words_for_those_who_do_not_see_them(page: Page) -> None:
    page.open("/?q=blue+ring")
    page.results(24)
    assert all("blue ring" in each.get_attribute("alt") for each in page.all(".card .shot img")[:5])
    assert page.js("return document.querySelector('.card .shot').getAttribute('aria-label')").startswith("1. ")
