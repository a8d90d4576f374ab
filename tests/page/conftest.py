"""A real browser over a running gateway, with a shop behind it whose orders keep coming.

One browser, one gateway, one database and one worker serve all tests of this folder. Where there is no Chromium the
tests do not run, and the end of the run says so; with PENSTOCK_REQUIRE_CHROMIUM=1 they fail.
"""

import os
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from penstock import Client
from penstock.demo.live import Live

NEEDS = "needs Chromium: apt-get install chromium, or set PENSTOCK_CHROMIUM to its path"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
PATIENCE = 30_000
# For a page to load: some fifty files, a process of its own, and whatever else the machine does.
LOAD = 90_000
expect.set_options(timeout=PATIENCE)


def wait_until(reached: Callable[[], object], seconds: float = 60) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def chromium() -> str | None:
    """Return where Chromium is."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return os.environ.get("PENSTOCK_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        if os.environ.get("PENSTOCK_REQUIRE_CHROMIUM"):
            pytest.fail(NEEDS)
        pytest.skip(NEEDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def page_dsn(browser: Browser, penstock_server: str, penstock_template: str) -> Iterator[str]:
    """A database for all tests of the page."""
    name = f"penstock_page_{uuid4().hex[:12]}"
    with psycopg.connect(penstock_server, autocommit=True) as server:
        server.execute(SQL("CREATE DATABASE {} TEMPLATE {}").format(Identifier(name), Identifier(penstock_template)))
        yield make_conninfo(penstock_server, dbname=name)
        server.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


@pytest.fixture(scope="package")
def shop(page_dsn: str) -> Iterator[Client]:
    """The client of the shop's database."""
    with Client(page_dsn) as client:
        yield client


@pytest.fixture(scope="package")
def live(shop: Client) -> Iterator[Live]:
    """The shop, its worker, and the gateway, which answers already."""
    with Live(shop) as live:
        with urllib.request.urlopen(f"{live.address}/healthz", timeout=120):
            pass
        yield live


class Looking:
    """A window of the browser, and what its console said."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.base = base
        self.faults: list[str] = []
        # What errors of the console may say, because a test provokes them.
        self.forgiven: tuple[str, ...] = ()
        page.on("console", lambda said: self._note(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.faults.append(str(error)))

    def open(self, path: str) -> Page:
        """Open a page and wait for its heading."""
        # That all of its files are there is no use to a test, and takes many turns of a browser that shares two cores
        # with everything else.
        self.page.goto(self.base + path, wait_until="commit", timeout=LOAD)
        self.page.locator("main h1, main .empty").first.wait_for(timeout=LOAD)
        return self.page

    def go(self, path: str) -> Page:
        """Go to a page as a link within the page does, which loads no file again."""
        if not self.page.url.startswith(self.base):
            return self.open(path)
        self.page.evaluate(
            """(path) => { history.pushState(null, "", path); dispatchEvent(new PopStateEvent("popstate")); }""", path
        )
        self.page.locator("main h1, main .empty").first.wait_for(timeout=LOAD)
        return self.page

    def _note(self, text: str) -> None:
        if not any(part in text for part in self.forgiven):
            self.faults.append(text)


def options(**given: Any) -> dict[str, Any]:
    """Return how a window is."""
    return {"viewport": {"width": 1360, "height": 860}, "locale": "en-GB", **given}


@pytest.fixture(scope="package")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """What windows of one browser share: above all the files of the page, which are loaded once."""
    context = browser.new_context(**options())
    context.set_default_timeout(PATIENCE)
    yield context
    context.close()


@pytest.fixture
def window(browser: Browser) -> Iterator[Callable[..., Looking]]:
    """Opens windows that share nothing; at the end none of their consoles may have said an error."""
    opened: list[tuple[BrowserContext, Looking]] = []

    def make(base: str, **given: Any) -> Looking:
        context = browser.new_context(**options(**given))
        context.set_default_timeout(PATIENCE)
        looking = Looking(context.new_page(), base)
        opened.append((context, looking))
        return looking

    yield make
    for context, _ in opened:
        context.close()
    assert [fault for _, looking in opened for fault in looking.faults] == []


@pytest.fixture
def look(context: BrowserContext, live: Live) -> Iterator[Looking]:
    """A window of the shop's gateway, with nothing saved in it."""
    looking = Looking(context.new_page(), live.address)
    yield looking
    if looking.page.url.startswith(live.address):
        looking.page.evaluate("localStorage.clear()")
    looking.page.close()
    assert looking.faults == []
