"""What the page says when the server does not give what was asked, and how it goes on."""

from __future__ import annotations

import pytest

from server.browser.driving import Page
from server.browser.fake_server import TOKEN, Collection

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_busy_server_is_explained_and_asked_again(page: Page, collection: Collection) -> None:
    collection.expected = True
    page.open("/?q=blue+ring")
    page.results(24)
    collection.faults["search"] = (503, "overloaded", "The server is busy. Try again in a moment.")
    page.one("#text").clear()
    page.type("red ring")
    assert "The server is busy" in page.text(".notice")
    assert "Trying again in 1 s" in page.text(".notice")
    assert page.captions() == []
    del collection.faults["search"]
    page.until(lambda: not page.all(".notice"))
    assert "red ring" in page.results(24)[0]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ((429, "rate_limited", ""), "Too many requests"),
        ((504, "timeout", ""), "took too long"),
        ((500, "internal", "Something went wrong. The server's log says what."), "wrong in the server"),
        ((404, "not_found", "The index has no such item."), "no such item"),
    ],
)
def test_every_fault_has_its_words(page: Page, collection: Collection, fault: tuple[int, str, str], said: str) -> None:
    collection.expected = True
    collection.faults["search"] = fault
    page.open("/?q=blue+ring")
    assert said in page.text(".notice")


def test_a_server_that_asks_for_a_token_is_given_one(page: Page, collection: Collection) -> None:
    collection.expected = collection.reads_need_token = True
    page.open("/?q=blue+ring")
    assert "asks for a token" in page.text(".notice")
    page.click(".notice .button")
    page.one("#token-field").send_keys("a wrong one\n")
    page.until(lambda: "does not know this token" in page.text("#token"))
    page.one("#token-field").clear()
    page.one("#token-field").send_keys(f"{TOKEN}\n")
    page.results(24)
    assert page.one("#token-button")


def test_the_token_may_come_with_the_address_and_does_not_stay_there(page: Page, collection: Collection) -> None:
    collection.reads_need_token = True
    page.open(f"/?q=blue+ring#token={TOKEN.replace(' ', '%20')}")
    page.results(24)
    assert page.address == "/?q=blue+ring"


def test_removing_asks_twice_and_for_the_token(page: Page, collection: Collection) -> None:
    collection.expected = True
    kept, gone = list(collection.items), collection.items[0].id
    try:
        page.open(f"/?q=blue+ring&why={gone}")
        page.until(lambda: page.all("#why .element"))
        remove = page.one(".why-left .chips .button:last-child")
        remove.click()
        assert gone in collection.by_id
        remove.click()
        page.one("#token-field").send_keys(f"{TOKEN}\n")
        page.until(lambda: gone not in collection.by_id)
        assert "Removed" in page.text(".why-left .chips")
    finally:
        collection.items = kept


def test_an_empty_answer_is_told_apart_from_a_fault(page: Page) -> None:
    page.open("/?q=blue+ring&filter=year+%3E%3D+3000")
    assert "Nothing found" in page.text(".nothing")
    assert "filter" in page.text(".nothing")


def test_a_link_to_an_explanation_of_what_is_gone(page: Page, collection: Collection) -> None:
    collection.expected = True
    page.open("/?q=blue+ring&why=scenes/9999.png")
    assert "no such item" in page.text("#why .notice")


@pytest.mark.parametrize("view", ["search", "map", "model"])
def test_a_server_that_is_starting_is_waited_for_in_every_view(page: Page, collection: Collection, view: str) -> None:
    collection.expected = True
    collection.faults["stats"] = (503, "starting", "The model is still loading. Try again in a moment.")
    page.open(f"/#{view}")
    assert "is starting" in page.text(".notice")
    del collection.faults["stats"]
    page.until(lambda: not page.all(".notice"))
    page.one({"search": "#examples a", "map": ".legend .line", "model": ".panel table"}[view])


def test_a_file_that_is_no_picture_is_not_passed_over_in_silence(page: Page, collection: Collection) -> None:
    collection.expected = True
    collection.faults["uploads"] = (400, "bad_request", "This is no picture that can be read.")
    page.open()
    page.one("#examples a")
    page.js(
        """
        const data = new DataTransfer();
        data.items.add(new File(["text"], "letter.pdf", { type: "application/pdf" }));
        for (const name of ["dragenter", "dragover", "drop"])
          document.body.dispatchEvent(new DragEvent(name, { dataTransfer: data, bubbles: true, cancelable: true }));
        """
    )
    assert "This is no picture that can be read" in page.text(".notice")
