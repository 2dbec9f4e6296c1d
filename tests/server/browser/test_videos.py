"""Videos on the page: the moment on the card, playing from it, and why it is that one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from polysem.models import Model
from polysem.search import Index
from search.videos import FRAMES, make_videos, raw_model
from server.browser.driving import Page
from server.browser.test_for_everyone import violations
from server.running import make_index, server

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WORDS = "something red"
VIDEO = "document.querySelector('.card video')"


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model]:
    made = raw_model(tmp_path_factory.mktemp("model"))
    clips = make_videos(tmp_path_factory.mktemp("clips") / "clips")
    return make_index(tmp_path_factory.mktemp("videos") / "index", made, clips), made


@pytest.fixture
def page(chromium: webdriver.Chrome, films: tuple[Path, Model]) -> Iterator[Page]:
    with server(*films) as (_, port):
        made = Page(chromium, f"http://127.0.0.1:{port}")
        made.console()
        made.asked_hosts()
        yield made
        assert made.console() == []
        assert made.asked_hosts() <= {made.origin}
        made.leave()


@pytest.fixture
def best(films: tuple[Path, Model]) -> tuple[str, float, float]:
    """The first result, and when its moment starts and ends."""
    place, model = films
    with Index.open(place, model=model) as index:
        found = index.search(WORDS, k=1)[0]
    assert found.moment is not None
    return found.id, float(found.moment.start or 0), float(found.moment.end or 0)


def searched(page: Page) -> None:
    page.open("/?dedupe=0")
    page.type(WORDS)
    page.results(4)


def at(page: Page) -> float:
    return float(page.js(f"return {VIDEO}.readyState >= 2 && !{VIDEO}.seeking ? {VIDEO}.currentTime : -1"))


def test_a_card_shows_the_frame_at_the_moment_and_plays_from_there(page: Page, best: tuple[str, float, float]) -> None:
    key, start, end = best
    searched(page)
    assert page.js("return document.querySelector('.card').dataset.id") == key
    shown = "return [...document.querySelectorAll('.shot img')].every((each) => each.complete && each.naturalWidth)"
    page.until(lambda: page.js(shown))
    assert page.text(".card .badge").startswith("0:0")
    assert "at=" in page.js("return document.querySelector('.card .shot img').src")
    page.click(".card .shot")
    page.until(lambda: at(page) >= 0, "the video is there")
    page.until(lambda: page.js(f"return {VIDEO}.played.length > 0"), "it plays")
    assert start - 0.05 <= page.js(f"return {VIDEO}.played.start(0)") <= end, "at the moment"
    assert page.js(f"return {VIDEO}.muted && {VIDEO}.controls") is True
    page.until(lambda: page.js(f"return {VIDEO}.ended || {VIDEO}.currentTime > {start} + 0.2"), "it moves on")
    assert len(page.all(".card video")) == 1


def test_a_video_is_played_and_stopped_with_the_keyboard(page: Page, best: tuple[str, float, float]) -> None:
    searched(page)
    page.js("document.querySelector('.card .shot').focus()")
    page.keys(Keys.ENTER)
    page.until(lambda: at(page) >= best[1] - 0.05, "Enter plays")
    assert page.js("return document.activeElement.localName") == "video"
    page.keys(Keys.ESCAPE)
    page.until(lambda: not page.all(".card video"))
    assert page.js("return document.activeElement.className") == "shot"
    page.keys(Keys.ENTER)
    page.until(lambda: page.all(".card video"))
    page.js("document.querySelectorAll('.card .shot')[1].click()")  # another: the first one stops
    page.until(lambda: len(page.all(".card video")) == 1)
    assert page.js("return document.querySelectorAll('.card')[1].querySelector('video') !== null") is True


def test_why_shows_the_frames_in_a_row_and_goes_to_each(page: Page, best: tuple[str, float, float]) -> None:
    searched(page)
    page.click(".card [data-act='why']")
    page.until(lambda: len(page.all("#why .frame")) == FRAMES)
    assert len(page.all("#why .frame.best")) == 1
    inside = page.js(
        "return [...document.querySelectorAll('#why .frame')].map((each) => each.classList.contains('in'))"
    )
    width = 6 / FRAMES
    assert inside == [best[1] - 0.1 <= (n + 0.5) * width <= best[2] + 0.1 for n in range(FRAMES)]
    shown = (
        "return [...document.querySelectorAll('#why .frame img')].every((each) => each.complete && each.naturalWidth)"
    )
    page.until(lambda: page.js(shown), "thumbnails of the frames")
    assert page.all("#why .heat canvas:not(.bars)") == []
    page.js("document.querySelectorAll('#why .frame button')[4].click()")
    now = "const own = document.querySelector('#why video'); return own.seeking ? -1 : own.currentTime"
    page.until(lambda: abs(page.js(now) - 4.5 * width) < 0.2, "the frame that was chosen")
    assert page.js("return document.querySelector('#why video').paused") is True
    page.keys(Keys.ESCAPE)
    page.until(lambda: not page.js("return document.querySelector('#why').open"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_in_videos(page: Page, scheme: str) -> None:
    page.open(f"/?dedupe=0&q={WORDS}", prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    page.results(4)
    page.click(".card .shot")
    page.until(lambda: at(page) >= 0)
    assert violations(page) == []
    page.click(".card [data-act='why']")
    page.until(lambda: len(page.all("#why .frame")) == FRAMES)
    assert violations(page) == []


def test_more_like_a_video_and_the_map_show_frames(page: Page) -> None:
    searched(page)
    page.click(".card [data-act='like']")
    page.until(lambda: "item=video" in page.address)
    page.until(lambda: len(page.all(".card .badge")) == 3)
    page.until(lambda: page.js("return document.querySelector('#asked img').naturalWidth > 0"))
    page.open("/#map")
    page.until(lambda: "captions\n8" in page.text(".legend"))
