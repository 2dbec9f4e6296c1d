"""Whoever is to be named for the pictures is named where they are shown."""

from __future__ import annotations

import pytest

from server.browser.driving import Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_every_view_names_them(page: Page) -> None:
    for address in ("/?q=dog", "/#map", "/#model"):
        page.open(address)
        page.until(lambda: page.text("#credits") == "Pictures by nobody, free for all.")
