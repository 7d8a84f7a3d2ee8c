"""A browser for the tests of the pages."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

_REFUSED = re.compile(r"Failed to load resource: .*(\b4(00|01|03|22)\b|net::)")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium. Of a module: Playwright keeps an event loop in this thread, which tests
    that run one of their own must not meet."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    with (
        sync_playwright() as driver,
        driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as found,
    ):
        yield found


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """`opened(url, **context)`: a page of its own. Whatever its console has is a failure, but for
    the browser's hints to authors, which people do not see."""
    said: list[str] = []
    with ExitStack() as pages:

        def opened(url: str, **context: Any) -> Any:
            page = pages.enter_context(browser.new_context(**context)).new_page()
            page.on("console", lambda each: each.type == "verbose" or said.append(each.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.goto(url)
            return page

        yield opened
    # The browser says itself that a response is an error, or that there is none.
    assert [each for each in said if not _REFUSED.match(each)] == []
