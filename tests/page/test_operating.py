"""What operators do on the page: redrive, seek, pause, purge, push, configure; it asks first and names what it hits."""

import re
from collections.abc import Callable
from fnmatch import fnmatchcase

import pytest
from playwright.sync_api import expect

from gateways import gateway
from penstock import Client
from penstock.demo.live import Live
from penstock.gateway.access.settings import Access

from .conftest import Looking, wait_until


@pytest.fixture(scope="module")
def make_letters(shop: Client) -> None:
    """Forty messages that died of one reason, and five of another."""
    shop.create("letters")
    shop.create_group("letters", "work", max_attempts=1)
    for count, reason in ((40, "broken"), (5, "other")):
        shop.push_many("letters", [(f"{reason} {n}", {"n": n}) for n in range(count)])
        for _ in range(count):
            batch = shop.pop("letters", "work")
            assert batch is not None
            batch.nack(reason=reason, error=f"ValueError: {reason}")


def test_everything_that_matches_is_redriven_by_the_server(look: Looking, shop: Client, make_letters: None) -> None:
    page = look.open("/dead-letters?queue=letters&reason=broken")
    before = shop.lag("letters", "work")
    expect(page.locator("section:has(#reasons) tr.marked")).to_contain_text("40")

    page.get_by_role("button", name="Redrive all that match").click()
    asked = page.get_by_role("dialog")
    expect(asked).to_contain_text("40 dead letters")
    expect(asked).to_contain_text("queue letters")
    expect(asked).to_contain_text("reason broken")
    asked.get_by_role("button", name="Redrive all").click()

    expect(page.locator("[data-job='done']").first).to_contain_text("40 of 40")
    assert shop.lag("letters", "work") == before + 40
    assert [each.reason for each in shop.dead_reasons("letters")] == ["other"]


def test_a_dead_letter_is_inspected_and_discarded(look: Looking, shop: Client, make_letters: None) -> None:
    page = look.open("/dead-letters?queue=letters&reason=other")
    page.get_by_role("button", name="Inspect").first.click()
    asked = page.get_by_role("dialog")
    expect(asked).to_contain_text("Dead letter: other")
    expect(asked.locator(".json").first).to_be_visible()

    asked.get_by_role("button", name="Discard").click()
    expect(asked).to_contain_text("1 dead letter")
    expect(asked).to_contain_text("group work")
    assert sum(each.letters for each in shop.dead_reasons("letters") if each.reason == "other") == 5
    asked.get_by_role("button", name="Discard").click()

    expect(page.get_by_role("status").filter(has_text="discarded")).to_be_visible()
    [left] = [each for each in shop.dead_reasons("letters") if each.reason == "other"]
    assert left.letters == 4


def test_a_seek_is_previewed_and_then_done(look: Looking, shop: Client) -> None:
    shop.push("sought", [1, 2, 3, 4, 5], partition="p")
    shop.create_group("sought", "g")
    batch = shop.pop("sought", "g", max_messages=10)
    assert batch is not None
    batch.ack()
    page = look.open("/queue?queue=sought&tab=groups")

    page.get_by_role("button", name="Seek").click()
    asked = page.get_by_role("dialog")
    asked.get_by_label("To").select_option("earliest")
    asked.get_by_role("button", name="Preview").click()
    expect(asked).to_contain_text("5 messages would be delivered again")
    assert shop.lag("sought", "g") == 0
    asked.get_by_role("button", name="Seek", exact=True).click()

    expect(page.get_by_role("status").filter(has_text="was moved")).to_be_visible()
    assert shop.lag("sought", "g") == 5


def test_a_group_is_paused_and_resumed(look: Looking, shop: Client) -> None:
    shop.push("held", 1, partition="p")
    shop.create_group("held", "g")
    page = look.open("/queue?queue=held&tab=groups")

    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    expect(page.locator("tbody .pill")).to_have_text("paused")
    assert shop.pop("held", "g") is None

    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    assert shop.pop("held", "g") is not None


def test_a_queue_is_configured_and_purged_after_a_question(look: Looking, shop: Client) -> None:
    shop.push("kept", [1, 2, 3], partition="p")
    page = look.open("/queue?queue=kept&tab=settings")
    page.get_by_label("Change lease_time").click()
    page.get_by_role("dialog").get_by_label("lease_time").fill("77")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("row").filter(has_text="lease_time")).to_contain_text("77")
    assert shop.describe("kept").settings["lease_time"] == 77

    page.get_by_role("button", name="Purge").click()
    asked = page.get_by_role("dialog")
    expect(asked).to_contain_text("3 messages")
    expect(asked).to_contain_text("queue kept")
    asked.get_by_role("button", name="Cancel").click()
    assert shop.describe("kept").messages == 3
    page.get_by_role("button", name="Purge").click()
    page.get_by_role("dialog").get_by_role("button", name="Purge").click()
    expect(page.get_by_role("status").filter(has_text="3 messages of kept were dropped")).to_be_visible()
    assert shop.describe("kept").messages == 0


def test_who_creates_what_is_there_is_told_so_and_changes_nothing(look: Looking, shop: Client) -> None:
    shop.create("precious", max_attempts=9)
    shop.create_group("precious", "g", paused=True)
    for path, button, name in (
        ("/queues", "New queue", "precious"),
        ("/queue?queue=precious&tab=groups", "New group", "g"),
    ):
        page = look.go(path)
        page.get_by_role("button", name=button).click()
        asked = page.get_by_role("dialog")
        asked.get_by_label("Name").fill(name)
        asked.get_by_role("button", name="Create").click()
        expect(asked.get_by_role("alert")).to_contain_text("exists")
        asked.get_by_role("button", name="Cancel").click()
    assert shop.describe("precious").config == {"max_attempts": 9}
    assert [group.config for group in shop.groups("precious")] == [{"paused": True}]
    # The browser itself writes a line for each answer of 409.
    look.faults[:] = [fault for fault in look.faults if "409" not in fault]


def test_a_group_has_the_settings_that_it_can_have(look: Looking, shop: Client) -> None:
    shop.create_group("set", "g")
    page = look.go("/queue?queue=set&tab=groups&group=g")
    rows = page.locator("section").filter(has_text="Settings of g").locator("tbody tr code")
    with shop.transaction() as tx:
        known = tx.connection.execute("SELECT s.name FROM penstock.settings() s WHERE s.scope <> 'queue'").fetchall()
    expect(rows).to_have_count(len(known))
    assert set(rows.all_text_contents()) == {name for (name,) in known}


def test_a_schedule_is_paused_and_run_now(look: Looking, shop: Client) -> None:
    shop.schedule("nightly", "reports-of-the-night", {"all": True}, cron="0 3 * * *")
    page = look.open("/schedules")
    row = page.get_by_role("row").filter(has_text="nightly")
    expect(row).to_contain_text("03:00")

    row.get_by_role("button", name="Run now").click()
    wait_until(lambda: any(queue.name == "reports-of-the-night" for queue in shop.queues()))
    row.get_by_role("button", name="Pause").click()

    expect(row.get_by_role("button", name="Resume")).to_be_visible()
    assert [each.paused for each in shop.schedules() if each.name == "nightly"] == [True]


def test_a_claim_is_released_after_a_question(look: Looking, shop: Client) -> None:
    shop.push("claimed", [1, 2], partition="p")
    assert shop.pop("claimed", "g", lease=300) is not None
    page = look.open("/consumers?queue=claimed")

    page.get_by_role("button", name="Release").click()
    asked = page.get_by_role("dialog")
    expect(asked).to_contain_text("2 messages")
    asked.get_by_role("button", name="Release").click()

    expect(page.get_by_role("status").filter(has_text="The claim was released")).to_be_visible()
    assert shop.pop("claimed", "g") is not None


def test_a_key_that_may_only_read_signs_in_and_has_no_buttons_that_change(
    window: Callable[..., Looking], live: Live, shop: Client, page_dsn: str
) -> None:
    key = shop.create_api_key("reader of the page", ["read"]).key
    with gateway(page_dsn, access=Access(keys=True)) as running:
        look = window(running.url)
        page = look.page
        page.goto(running.url + "/queue?queue=orders&tab=groups")
        page.get_by_label("API key").fill("psk_wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_be_visible()
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()

        expect(page.locator("main h1")).to_have_text("orders")
        expect(page.locator(".side .foot")).to_contain_text("reader of the page")
        for name in ("Pause", "Seek", "Purge", "Delete", "Push", "New group"):
            expect(page.get_by_role("button", name=re.compile(name))).to_have_count(0)

        # What one key had begun is not for the next.
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_be_visible()
        shop.revoke_api_key("reader of the page")
        page.get_by_label("API key").fill(shop.create_api_key("another reader", ["read"]).key)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator(".side .foot")).to_contain_text("another reader")
        expect(page.get_by_role("dialog")).to_have_count(0)

        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("API key")).to_be_visible()
        # Before its gateway ends.
        page.close()
        # The browser itself writes a line for each answer of 401.
        look.faults[:] = [fault for fault in look.faults if "401" not in fault and "403" not in fault]


def test_what_one_key_saw_is_not_there_for_the_next(
    window: Callable[..., Looking], live: Live, shop: Client, page_dsn: str
) -> None:
    keys = [
        shop.create_api_key(name, [scope]).key for name, scope in (("all of it", "admin"), ("a popper", "pop:orders"))
    ]
    with gateway(page_dsn, access=Access(keys=True)) as running:
        look = window(running.url)
        page = look.page
        page.goto(running.url + "/queues", wait_until="commit")
        page.get_by_label("API key").fill(keys[0])
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("main tbody tr").first).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("API key").fill(keys[1])
        page.get_by_role("button", name="Sign in").click()

        expect(page.locator(".side .foot")).to_contain_text("a popper")
        for path in ("/queues", "/", "/dead-letters", "/queue?queue=orders"):
            page.evaluate(
                """(path) => { history.pushState(null, "", path); dispatchEvent(new PopStateEvent("popstate")); }""",
                path,
            )
            expect(page.locator("main").get_by_role("alert").first).to_contain_text("no scope read")
            expect(page.locator("main tbody tr")).to_have_count(0)
        # Before its gateway ends.
        page.close()
        look.faults[:] = [fault for fault in look.faults if "401" not in fault and "403" not in fault]


def test_a_gateway_that_is_read_only_says_so_and_offers_no_change(
    window: Callable[..., Looking], shop: Client, page_dsn: str
) -> None:
    shop.push("calm", 1)
    with gateway(page_dsn, access=Access(read_only=True)) as running:
        look = window(running.url)
        page = look.open("/queue?queue=calm&tab=groups")
        expect(page.locator(".side .foot")).to_contain_text("read only")
        for name in ("Pause", "Seek", "Purge", "Delete", "Push", "New group"):
            expect(page.get_by_role("button", name=re.compile(name))).to_have_count(0)
        look.open("/messages?queue=calm")
        expect(page.locator("main tbody tr")).to_have_count(1)
        # Before its gateway ends.
        page.close()


def test_a_key_for_some_queues_sees_its_own_and_may_change_what_it_may(
    window: Callable[..., Looking], shop: Client, page_dsn: str
) -> None:
    for queue in ("mine-1", "mine-2"):
        shop.create_group(queue, "g")
        shop.push(queue, {"of": queue}, partition="p")
    shop.sample()
    key = shop.create_api_key("of some queues", ["read:mine-?", "admin:mine-1"]).key
    with gateway(page_dsn, access=Access(keys=True)) as running:
        look = window(running.url)
        page = look.page
        page.goto(running.url + "/queues", wait_until="commit")
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("main tbody tr")).to_have_count(2)
        expect(page.get_by_role("link", name="Server")).to_have_count(0)
        look.faults.clear()

        for path in ("/", "/queue-metrics", "/flows", "/schedules", "/consumers", "/dead-letters"):
            look.go(path)
            expect(page.locator("main .skeleton")).to_have_count(0)
            expect(page.locator("main .notice.bad")).to_have_count(0)
            expect(page.locator("main")).not_to_contain_text("orders")
        look.go("/messages?queue=mine-2")
        expect(page.locator("main tbody tr")).to_have_count(1)
        look.go("/queue?queue=mine-2&tab=groups")
        expect(page.get_by_role("button", name="Pause")).to_have_count(0)
        look.go("/queue?queue=mine-2&tab=settings")
        expect(page.get_by_role("row").filter(has_text="lease_time")).to_be_visible()
        expect(page.get_by_role("button", name="Change")).to_have_count(0)
        look.go("/queue?queue=mine-1&tab=groups")
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("button", name="Resume")).to_be_visible()
        # Before its gateway ends.
        page.close()


def test_the_page_reads_patterns_of_queues_as_the_gateway_does(look: Looking) -> None:
    patterns = ["*", "a-*", "a?", "[ab]c", "[!a]*", "a.b", "[", "a[", "(x|y)", "?", "[a-c]\\d", "]x[", "\U0001f41f-*"]
    names = [
        "",
        "a-",
        "a-b",
        "ab",
        "bc",
        "cc",
        "a.b",
        "axb",
        "[",
        "a[",
        "(x|y)",
        "x",
        "b\\d",
        "]x[",
        "\U0001f41f",
        "\U0001f41f-1",
    ]
    page = look.open("/queues")
    shown = page.evaluate(
        """async ([patterns, names]) => {
        const { grant } = await import(document.querySelector("link[href*='lib/session.js']").href);
        return patterns.map((pattern) => names.map((name) => grant(`read:${pattern}`).fits.test(name))); }""",
        [patterns, names],
    )
    assert shown == [[fnmatchcase(name, pattern) for name in names] for pattern in patterns]


def test_what_somebody_types_stays_while_the_page_refreshes_and_when_it_is_refused(look: Looking, shop: Client) -> None:
    shop.create_group("typed", "g")
    page = look.open("/messages?queue=typed")
    page.get_by_label("Partition").fill("customer-0")
    page.get_by_label("Filter by fields, or a message id").fill("amount > 4")
    shop.create("typed-appears")
    page.locator("main h1").click()
    page.keyboard.press("r")
    expect(page.locator("select[name=queue]")).to_contain_text("typed-appears")
    expect(page.get_by_label("Partition")).to_have_value("customer-0")
    expect(page.get_by_label("Filter by fields, or a message id")).to_have_value("amount > 4")

    look.go("/queue?queue=typed&tab=settings")
    page.get_by_label("Change lease_time").click()
    asked = page.get_by_role("dialog")
    asked.get_by_label("lease_time").fill("soon")
    asked.get_by_role("button", name="Save").click()
    expect(asked.get_by_role("alert")).to_contain_text("must be a number")
    expect(asked.get_by_label("lease_time")).to_have_value("soon")
    page.keyboard.press("Escape")
    # The browser itself writes a line for each answer of 400.
    look.faults[:] = [fault for fault in look.faults if "400" not in fault]

    look.go("/queue?queue=typed&tab=groups")
    page.get_by_role("button", name="Seek").click()
    asked.locator("input[name=time]").fill("2020-02-03T04:05:06")
    asked.get_by_role("button", name="Preview").click()
    expect(asked).to_contain_text("would be delivered again")
    expect(asked.locator("input[name=time]")).to_have_value("2020-02-03T04:05:06")


def test_an_act_that_is_refused_in_a_dialog_says_so_within_it_and_what_to_do(look: Looking, shop: Client) -> None:
    shop.push("refusing", [1, 2, 3], partition="p")
    shop.create_group("refusing", "g")

    def is_sampled() -> bool:
        # Other tests leave so many partitions behind that a sample takes several steps.
        shop.sample()
        return any((each.queue, each.lag) == ("refusing", 3) for each in shop.facts().work)

    wait_until(is_sampled)
    page = look.open("/queue?queue=refusing&tab=groups")
    asked = page.get_by_role("dialog")
    expect(page.get_by_role("cell", name="3", exact=True).first).to_be_visible()
    page.get_by_role("button", name="Delete…").last.click()
    expect(asked).to_contain_text("3 messages that it has not done")
    asked.get_by_role("button", name="Cancel").click()

    page.get_by_role("button", name="Seek").click()
    asked.get_by_label("To").select_option("latest")
    asked.get_by_role("button", name="Preview").click()
    expect(asked).to_contain_text("3 messages would be skipped")
    shop.delete("refusing")
    asked.get_by_role("button", name="Seek", exact=True).click()

    said = asked.locator(".toast")
    expect(said).to_contain_text("refusing")
    expect(said.locator(".muted")).not_to_be_empty()
    # The browser itself writes a line for each answer of 404.
    look.faults[:] = [fault for fault in look.faults if "404" not in fault]


def test_a_page_of_partitions_is_in_the_address(look: Looking, shop: Client) -> None:
    shop.push_many("paged", [(f"p{n:03}", n) for n in range(70)])
    shop.create_group("paged", "g")
    page = look.open("/queue?queue=paged&order=name")
    first = page.locator("section:has(#partitions) tbody tr").first
    expect(first).to_contain_text("p000")
    page.get_by_role("button", name="Next").click()
    expect(first).to_contain_text("p050")

    page.reload(wait_until="commit")
    expect(first).to_contain_text("p050")
    page.get_by_role("button", name="First").click()
    expect(first).to_contain_text("p000")
    page.go_back()
    expect(first).to_contain_text("p050")
