"""A browser for all tests of this folder: Debian's Chromium, driven by Playwright, and pages that tell what goes wrong
in them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from console_stack import ConsoleStack

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


# While Playwright runs, its event loop runs in this thread, and whoever calls `asyncio.run` here is refused. So it ends
# with each file, and not with the session, which goes on to other tests; it starts in a second.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a file; skipped where there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("no Playwright: pip install -e '.[dev]'")
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("no Chromium: tools/ensure-chromium installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page of a visitor who was never here. The test fails on every error in its console, what the page's
    policy stopped included, and on every request that leaves this machine."""
    context = browser.new_context()
    faults = watched(context)
    yield context.new_page()
    context.close()
    assert faults == []


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleStack]:
    """An instance to look at through its console."""
    with ConsoleStack(tmp_path_factory.mktemp("console")) as world:
        yield world


def watched(context: BrowserContext) -> list[str]:
    """What goes wrong in the context's pages, as it does."""
    faults: list[str] = []
    context.on(
        "console",
        lambda said: faults.append(f"{said.type}: {said.text}") if said.type in ("error", "warning") else None,
    )
    context.on("weberror", lambda error: faults.append(f"uncaught: {error.error}"))
    context.on("request", lambda asked: None if is_near(asked.url) else faults.append(f"request: {asked.url}"))
    return faults


def is_near(url: str) -> bool:
    """Whether a request stays on this machine."""
    place = urlsplit(url)
    if place.scheme == "file":
        return True
    try:
        return place.scheme in ("http", "ws") and ip_address(place.hostname or "").is_loopback
    except ValueError:  # a name, maybe a stranger's
        return place.hostname == "localhost"
