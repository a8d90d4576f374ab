"""The page as a window that stays open: connection, keyboard, small screens, saved views, and what it costs."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from playwright.sync_api import Route, expect

from penstock import Client
from penstock.demo.live import Live
from penstock.gateway.access.settings import Access
from penstock.gateway.serving import Server, Serving, address_of, bind, config_for

from .conftest import Looking, wait_until

# The browser writes a line for each request that fails.
LOST = ("ERR_",)


@contextmanager
def served(dsn: str, port: int, access: Access | None = None) -> Iterator[str]:
    """A gateway at a port."""
    serving = Serving(dsn, port=port, access=access or Access())
    bound = bind(serving)
    server = Server(config_for(serving), serving)
    thread = threading.Thread(target=server.run, args=([bound],))
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield address_of(bound)
    finally:
        server.handle_exit(signal.SIGTERM, None)
        thread.join(60)
        bound.close()


def test_a_lost_connection_is_shown_and_recovers_by_itself(
    window: Callable[..., Looking], shop: Client, page_dsn: str
) -> None:
    with served(page_dsn, 0) as address:
        look = window(address)
        look.forgiven = LOST
        page = look.open("/")
        state = page.locator("[data-connection]")
        expect(state).to_have_attribute("data-connection", "live")

    expect(state).to_have_attribute("data-connection", "lost")
    banner = page.get_by_role("alert").filter(has_text="Connection lost")
    expect(banner).to_contain_text("what is so now is unknown")

    with served(page_dsn, int(address.rpartition(":")[2]), Access(read_only=True)):
        expect(state).to_have_attribute("data-connection", "live")
        expect(banner).to_have_count(0)
        # It may have become another gateway meanwhile.
        expect(page.locator(".side .foot")).to_contain_text("read only")


def test_a_chart_is_drawn_although_its_script_did_not_come_at_first(look: Looking) -> None:
    refused: list[str] = []

    def refuse(route: Route) -> None:
        refused.append(route.request.url)
        route.abort()

    look.forgiven = LOST
    look.page.route("**/vendor/uplot.js", refuse)
    page = look.open("/")

    expect(page.locator(".chart canvas").first).to_be_visible()
    assert len(refused) == 1


def test_a_gateway_that_hangs_is_lost_as_well(look: Looking) -> None:
    look.page.route("**/api/v2/events", lambda route: None)
    page = look.open("/queues")
    state = page.locator("[data-connection]")
    expect(state).to_have_attribute("data-connection", "live")
    page.route("**/api/v2/**", lambda route: None)

    expect(state).to_have_attribute("data-connection", "lost", timeout=60_000)
    expect(page.get_by_role("alert").filter(has_text="Connection lost")).to_be_visible()
    page.unroute_all()
    expect(state).to_have_attribute("data-connection", "live", timeout=60_000)


def test_what_can_be_done_stands_below_its_own_heading(window: Callable[..., Looking], live: Live) -> None:
    look = window(live.address, viewport={"width": 900, "height": 800})
    page = look.open("/queue?queue=orders&tab=groups")
    expect(page.get_by_role("button", name="Pause").first).to_be_visible()
    cell, heading = (page.locator(f"{kind}.actions").first.bounding_box() for kind in ("td", "th"))
    assert cell is not None
    assert heading is not None
    assert (heading["x"], heading["width"]) == (cell["x"], cell["width"])
    page.close()


def test_a_hidden_window_asks_for_nothing(look: Looking) -> None:
    page = look.open("/")
    page.evaluate(
        """() => { Object.defineProperty(document, "hidden", { get: () => window.isHidden, configurable: true });
        window.isHidden = true; document.dispatchEvent(new Event("visibilitychange")); }"""
    )
    expect(page.locator("[data-connection]")).to_have_attribute("data-connection", "paused")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(5_500)
    assert asked == []

    with page.expect_request("**/api/**"):
        page.evaluate("() => { window.isHidden = false; document.dispatchEvent(new Event('visibilitychange')); }")

    expect(page.locator("[data-connection]")).to_have_attribute("data-connection", "live")


def test_the_keyboard_alone_is_enough(look: Looking) -> None:
    page = look.open("/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Queue metrics")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)

    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.locator("main h1")).to_have_text("Queues")
    page.keyboard.press("/")
    page.keyboard.type("orders")
    expect(page.locator("main tbody tr")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("main h1")).to_have_text("orders")

    # A dialog keeps the focus, and its first choice is the harmless one.
    page.get_by_role("button", name="Purge").first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize("path", ["/", "/queue-metrics", "/queue?queue=orders", "/messages?queue=orders", "/flows"])
def test_a_page_fits_a_phone(window: Callable[..., Looking], live: Live, path: str) -> None:
    look = window(live.address, viewport={"width": 380, "height": 760}, has_touch=True, is_mobile=True)
    page = look.open(path)
    expect(page.locator("main .skeleton")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Server").click()
    expect(page.locator("main h1")).to_have_text("Server")


def test_a_view_is_saved_under_a_name(look: Looking) -> None:
    page = look.open("/queues?filter=orders")
    page.get_by_role("button", name="Save this view").click()
    page.get_by_role("dialog").get_by_label("Name").fill("my orders")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    look.open("/queues")
    page.get_by_role("button", name="my orders", exact=True).click()
    expect(page.locator("main tbody tr")).to_have_count(1)
    assert page.url.endswith("/queues?filter=orders")


def test_copying_works_over_plain_http(window: Callable[..., Looking], live: Live, shop: Client) -> None:
    pushed = shop.push("copied", {"n": 1})
    look = window(live.address)
    # What a browser offers to a page that did not come over HTTPS.
    look.page.add_init_script("Object.defineProperty(window, 'isSecureContext', { value: false })")
    page = look.open(f"/message?id={pushed.ids[0]}")
    page.get_by_role("button", name="Copy id").click()
    expect(page.get_by_role("status").filter(has_text="Copied.")).to_be_visible()
    page.evaluate("const area = document.createElement('textarea'); area.id = 'paste'; document.body.append(area)")
    page.locator("#paste").focus()
    page.keyboard.press("Control+V")
    assert page.locator("#paste").input_value() == str(pushed.ids[0])


def processor_time(dsn: str) -> float:
    """Return the seconds of processor that the sessions of a database have used."""
    with psycopg.connect(dsn) as connection:
        pids = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchall()
    total = 0
    for (pid,) in pids:
        with open(f"/proc/{pid}/stat") as file:
            total += sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
    return total / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
def test_an_open_page_costs_the_database_less_than_a_hundredth_of_a_core(
    window: Callable[..., Looking], penstock_dsn: str
) -> None:
    with Client(penstock_dsn) as client:
        for n in range(20):
            client.create(f"queue {n}")
            client.create_group(f"queue {n}", "g")
            client.push_many(f"queue {n}", [(f"p{p}", b"1") for p in range(50)])
        client.sample()
    with served(penstock_dsn, 0) as address:
        # A gateway has something to do without a page, too.
        page = window(address).page
        alone = share_of_a_core(penstock_dsn, lambda: page.wait_for_timeout(4_000))
        window(address).open("/")
        expect(page.locator("main .skeleton")).to_have_count(0)
        page.wait_for_timeout(1_000)
        used = share_of_a_core(penstock_dsn, lambda: page.wait_for_timeout(7_000))
    assert used - alone < 0.01


def share_of_a_core(dsn: str, while_doing: Callable[[], None]) -> float:
    before, began = processor_time(dsn), time.monotonic()
    while_doing()
    return (processor_time(dsn) - before) / (time.monotonic() - began)


def test_what_is_asked_again_before_its_answer_came_is_asked_once(look: Looking) -> None:
    page = look.open("/consumers")
    expect(page.locator("main .skeleton")).to_have_count(0)
    begun: list[str] = []
    answered: list[str] = []
    given_up: list[str] = []
    for event, seen in (("request", begun), ("requestfinished", answered), ("requestfailed", given_up)):
        page.on(event, lambda request, seen=seen: seen.append(request.url) if "/breakers" in request.url else None)  # type: ignore[call-overload]

    page.evaluate("for (let n = 0; n < 5; n++) dispatchEvent(new Event('penstock:refresh'))")

    def settled() -> bool:
        page.wait_for_timeout(50)
        return bool(answered) and len(answered) + len(given_up) == len(begun)

    wait_until(settled)
    assert len(answered) == 1


def test_a_browser_whose_clock_is_wrong_asks_by_the_servers(window: Callable[..., Looking], live: Live) -> None:
    look = window(live.address)
    look.page.clock.install(time=time.time() + 5 * 3600)
    with look.page.expect_request("**/queues/orders/series/pushed?*") as asked:
        look.open("/queue?queue=orders&tab=throughput")
    [end] = parse_qs(urlsplit(asked.value.url).query)["end"]
    assert abs(datetime.fromisoformat(end).timestamp() - time.time()) < 300


def test_long_names_do_not_widen_the_page(window: Callable[..., Looking], live: Live, shop: Client) -> None:
    long = "x" * 255
    shop.create_group(long, long, max_attempts=1)
    shop.push(long, {"a": 1}, partition=long)
    batch = shop.pop(long, long)
    assert batch is not None
    batch.nack(reason="broken")
    pushed = shop.push(long, {"a": 2}, partition=long, headers={long: long})
    shop.sample()
    for width in (390, 1280):
        look = window(live.address, viewport={"width": width, "height": 800})
        for path in (
            "/",
            f"/queue?queue={long}",
            f"/queue?queue={long}&tab=groups&group={long}",
            f"/dead-letters?queue={long}",
            f"/messages?queue={long}",
            f"/message?id={pushed.ids[0]}",
            "/server",
        ):
            page = look.go(path)
            expect(page.locator("main .skeleton")).to_have_count(0)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (width, path[:20])
        page.close()
    shop.delete(long)
