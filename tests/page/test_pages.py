"""Each page, in a real browser over a running system: it shows its data, says no error, and is accessible."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from penstock import Client
from penstock.broker.operations.warm import HoldWarmLease
from penstock.demo.live import Live

from .conftest import PATIENCE, Looking, wait_until

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text("utf-8")
PAGES = {
    "/": "Overview",
    "/queue-metrics?running=open": "Queue metrics",
    "/queues": "Queues",
    "/queue?queue=orders": "orders",
    "/queue?queue=orders&tab=groups&group=audit": "orders",
    "/queue?queue=orders&tab=settings": "orders",
    "/queue?queue=orders&tab=throughput": "orders",
    "/messages?queue=orders": "Messages",
    "/dead-letters": "Dead letters",
    "/consumers": "Consumers",
    "/schedules": "Schedules",
    "/flows": "Flows",
    "/server": "Server",
}

# Those that have all colours between them; the check is slow.
DARK = ("/", "/queue-metrics?running=open", "/messages?queue=orders", "/dead-letters")


def serious_faults(page: Page, **options: object) -> list[str]:
    # The page's own policy allows no script of ours; the browser's protocol does.
    found: dict[str, Any] = page.evaluate(
        f"async (options) => {{ window.axe ?? (() => {{ {AXE} }})(); return await axe.run(document, options); }}",
        {"resultTypes": ["violations"], **options},
    )
    return [
        f"{fault['id']}: {node['html'][:200]} {node.get('failureSummary', '')[:200]}"
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]


@pytest.fixture(scope="module")
def settled(live: Live, shop: Client) -> None:
    """Wait until the shop has sampled what waits, and has a dead letter."""
    wait_until(lambda: shop.dead_reasons("orders") and shop.sample() is not None and shop.facts().work and shop.tasks())


@pytest.mark.parametrize("path", PAGES)
def test_a_page_shows_its_data_in_light_and_dark_and_has_no_serious_fault(
    settled: None, look: Looking, path: str
) -> None:
    page = look.open(path)
    expect(page.locator("main h1")).to_have_text(PAGES[path])
    expect(page.locator("main .skeleton")).to_have_count(0, timeout=PATIENCE)
    expect(page.locator("main .notice.bad")).to_have_count(0)
    expect(page.locator("[data-connection]")).to_have_attribute("data-connection", "live")

    assert serious_faults(page) == []
    if path in DARK:
        page.keyboard.press("t")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        assert serious_faults(page, runOnly=["color-contrast"]) == []


def test_the_theme_follows_the_browser_and_a_choice_stays(window: Any, live: Live) -> None:
    dark = window(live.address, color_scheme="dark")
    page = dark.open("/queues")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 23)"

    page.get_by_label("Use the light theme").click()
    page.reload()

    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(246, 247, 249)"


def test_queue_metrics_has_the_columns_that_operators_know(settled: None, look: Looking) -> None:
    page = look.open("/queue-metrics")
    expect(page.get_by_role("row").filter(has_text="shop.ship").first).to_be_visible()
    headings = page.locator("section:has(#queues) th").all_inner_texts()
    wanted = ["Flow", "Type", "Action", "Action Class", "Warm", "Cold", "Total", "Oldest", "Trend", "Rate"]
    assert [re.sub(r"\s*[↑↓]", "", text).strip() for text in headings] == [*wanted, "Time to drain"]
    shipping = page.get_by_role("row").filter(has_text="shop.ship").first
    expect(shipping).to_contain_text("TRANSFORM")
    expect(shipping.locator(".mono")).to_have_attribute("title", re.compile("^Plugin: "))

    page.get_by_label("Group by Action Class").check()

    expect(page.locator("section:has(#queues) th").first).to_have_text("Action Class")
    assert "group=class" in page.url


def test_running_tasks_are_folded_away_and_show_what_a_worker_reports(settled: None, look: Looking) -> None:
    page = look.open("/queue-metrics")
    panel = page.locator("details:has(summary:text('Running Tasks'))")
    assert panel.get_attribute("open") is None
    expect(panel.locator("summary")).to_have_text(re.compile(r"Running Tasks \([1-9]"), timeout=PATIENCE)

    panel.locator("summary").click()

    row = panel.get_by_role("row").filter(has_text="shop.render")
    expect(row).to_contain_text("page")
    row.get_by_role("link").click()
    expect(page.locator("main h1")).to_have_text("Message")
    expect(page.locator(".json")).to_contain_text('"pages"')


def test_a_cold_count_leads_to_where_its_messages_wait(settled: None, look: Looking) -> None:
    page = look.open("/queue-metrics")
    page.locator("a.pill.cold").first.click()
    expect(page.get_by_role("heading", name=re.compile("Where the lag of"))).to_be_visible()
    expect(page.locator(".heat button").first).to_be_visible()


def test_the_graph_links_queues_with_the_actions_that_read_them(settled: None, look: Looking) -> None:
    page = look.open("/flows")
    graph = page.locator(".graph svg")
    for name in ("orders", "payment", "paid", "shipping", "shipped", "mail"):
        expect(graph.locator("a", has=graph.page.get_by_text(name, exact=True))).to_have_count(1)
    expect(graph).to_contain_text("waiting")
    graph.locator("a", has_text="payment").click()
    expect(page.locator("tr.marked")).to_contain_text("shop.payment")


def test_the_server_page_verifies_on_request(look: Looking) -> None:
    page = look.open("/server")
    expect(page.locator("main")).to_contain_text("PostgreSQL")
    page.get_by_role("button", name="Compare state and log").click()
    expect(page.locator("section:has(#verify) .pill.ok").first).to_be_visible()
    expect(page.locator("section:has(#verify) .pill.bad")).to_have_count(0)


def test_dead_letters_that_wait_need_attention_and_the_link_leads_to_them(settled: None, look: Looking) -> None:
    page = look.open("/")
    problem = page.locator("section:has(#attention) li").filter(has_text="shop.payment").filter(has_text="dead letter")
    expect(problem).to_contain_text("redrive or discard them")
    problem.get_by_role("link", name="Dead letters").click()
    expect(page.locator("main h1")).to_have_text("Dead letters")
    assert "group=shop.payment" in page.url
    expect(page.locator("section:has(#letters) tbody tr").first).to_be_visible()


def test_all_links_of_the_navigation_have_one_line(settled: None, look: Looking) -> None:
    page = look.open("/")
    expect(page.locator(".side nav .badge").first).to_be_visible()
    heights = page.locator(".side nav a").evaluate_all("(links) => links.map((each) => each.offsetHeight)")
    assert len(set(heights)) == 1


def test_windows_are_shown_with_their_state_how_full_they_are_and_their_transitions(
    look: Looking, shop: Client
) -> None:
    shop.create("windowed")
    for group in ("full", "orphaned"):
        shop.create_group("windowed", group, warm=True, in_memory_queue_size=200)
    ids = {each.name: each.group_id for each in shop.windows() if each.queue == "windowed"}
    held = shop.run(HoldWarmLease(ids["full"], "dispatcher-1", hold_for=600))
    assert held is not None
    shop.run(HoldWarmLease(ids["full"], "dispatcher-1", held.epoch, 600, "cold", 150, 64_000, transitions=3))
    for path in ("/queue-metrics", "/queue?queue=windowed&tab=groups"):
        page = look.open(path)
        panel = page.locator("section:has(#windows)")
        full = panel.get_by_role("row").filter(has_text="dispatcher-1")
        expect(full.locator(".pill")).to_have_text("cold")
        expect(full).to_contain_text("150 of 200")
        expect(full.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "75")
        expect(full.get_by_role("cell", name="3", exact=True)).to_be_visible()
        expect(panel.get_by_role("row").filter(has_text="orphaned").locator(".pill")).to_have_text("no dispatcher")
