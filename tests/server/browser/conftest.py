from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium import webdriver

from server.browser.driving import Page, browser
from server.browser.fake_server import Collection, serve


@pytest.fixture(scope="session")
def chromium() -> Iterator[webdriver.Chrome]:
    with browser() as running:
        yield running


@pytest.fixture(scope="session")
def _served() -> Iterator[tuple[Collection, str]]:
    collection = Collection()
    server = serve(collection)
    yield collection, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def collection(_served: tuple[Collection, str]) -> Collection:
    """What the stand-in serves; tests may make it slow or faulty."""
    _served[0].reset()
    return _served[0]


@pytest.fixture
def page(chromium: webdriver.Chrome, collection: Collection, _served: tuple[Collection, str]) -> Iterator[Page]:
    """The page, which complains of nothing and asks no other host for anything, whatever the test does with it."""
    made = Page(chromium, _served[1])
    made.console()
    made.asked_hosts()
    yield made
    # A fault that the test asked for is logged by the browser itself.
    complaints = [each for each in made.console() if not (collection.expected and "status of" in each)]
    assert complaints == []
    assert made.asked_hosts() <= {made.origin}
    made.leave()
