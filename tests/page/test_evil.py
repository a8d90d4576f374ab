"""Whatever a stranger can name or write stays text: in markup, in attributes, in addresses, in what is downloaded."""

import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import urlencode
from uuid import UUID

import pytest
from playwright.sync_api import expect

from penstock import Client, Message
from penstock.broker.health import ConsumerHealth, GroupHealth
from penstock.broker.operations.health import ReportHealth
from penstock.broker.operations.warm import HoldWarmLease
from penstock.broker.operations.workers import RegisterActions, RegisteredAction, ReportTasks
from penstock.broker.tasks import ReportedTask
from penstock.demo.live import Live

from .conftest import Looking

MARKUP = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script><svg onload="window.hacked=1">'
# It ends an attribute, and begins another.
ATTRIBUTE = '" onmouseover="window.hacked=1" autofocus onfocus="window.hacked=1" x="'
ADDRESS = "javascript:window.hacked=1//"
FORMULA = '=HYPERLINK("javascript:window.hacked=1")'
EVIL = [MARKUP, ATTRIBUTE, ADDRESS, FORMULA, "__proto__", "{{7*7}}${7*7}"]
ALL = " ".join(EVIL)
WORKER = "evil worker " + MARKUP


class Filled:
    """What was put into the shop."""

    def __init__(self, queue: str, group: str, message: UUID) -> None:
        self.queue = queue
        self.group = group
        self.message = message


@pytest.fixture(scope="module")
def filled(shop: Client) -> Iterator[list[Filled]]:
    """For each payload a queue, a group, a partition, a message, a dead letter, an action and so on of that name."""
    found = []
    for number, name in enumerate(EVIL):
        group = f"{name} group"
        shop.create(name, description=ALL)
        shop.create_group(name, group, max_attempts=1, warm=True)
        evil = Message({name: ALL, "list": EVIL}, key=ALL, headers={name: ALL}, partition=name)
        pushed = shop.push(name, [evil, Message(ALL.encode(), partition=name)])
        batch = shop.pop(name, group, max_messages=1)
        assert batch is not None
        batch.nack(reason=name, error=f"ValueError: {ALL}\n  File {ALL}")
        shop.push(name, [evil], partition=name)
        shop.pop(name, group, lease=600)
        shop.schedule(name, name, {"all": ALL}, every="1h", partition=name)
        action = RegisteredAction(name, name, "TRANSFORM", ALL[:200], ALL[:100], name, f"{name} out")
        shop.run(RegisterActions([action]))
        task = ReportedTask(
            ALL[:200], name, name, pushed.ids[0], pushed.ids[0], datetime.now(UTC), 1, 50.0 if number else None, ALL
        )
        shop.run(ReportTasks(f"{WORKER} {number}", [task]))
        health = ConsumerHealth("degraded", last_error=ALL)
        report = ReportHealth(
            f"evil consumer {name}", 1, health, [GroupHealth(name, group, 0, 500, 500, ALL)], description=ALL
        )
        shop.run(report)
        [window] = [each for each in shop.windows() if (each.queue, each.name) == (name, group)]
        shop.run(HoldWarmLease(window.group_id, f"dispatcher {ALL}"[:200], items=7, hold_for=600.0))
        found.append(Filled(name, group, pushed.ids[0]))
    shop.sample()
    yield found
    for each in found:
        shop.delete_schedule(each.queue)
        shop.delete(each.queue)
    for number in range(len(EVIL)):
        shop.run(ReportTasks(f"{WORKER} {number}", []))


def harmless(look: Looking) -> None:
    """See that nothing ran, nothing became markup, and no link leads elsewhere."""
    page = look.page
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script, main iframe, main object, main embed").count() == 0
    faults = page.evaluate(
        """() => [...document.querySelectorAll("*")].flatMap((each) => [...each.attributes].filter((one) =>
            one.name.startsWith("on") || (["href", "src", "action", "formaction", "xlink:href"].includes(one.name)
            && new URL(one.value, location.href).origin !== location.origin))
            .map((one) => each.outerHTML.slice(0, 200)))"""
    )
    assert faults == []


LISTS = (
    *("/", "/queue-metrics?running=open", "/queue-metrics?group=class", "/queues", "/flows", "/schedules"),
    *("/consumers", "/dead-letters", "/server"),
)


def test_names_and_texts_of_strangers_stay_text_in_lists(look: Looking, filled: list[Filled]) -> None:
    for path in LISTS:
        page = look.go(path)
        expect(page.locator("main .skeleton")).to_have_count(0)
        if path != "/queue-metrics?group=class":
            expect(page.locator("main")).to_contain_text(ADDRESS)
        harmless(look)


def test_names_and_texts_of_strangers_stay_text_everywhere_else(look: Looking, filled: list[Filled]) -> None:
    for each in filled[:3]:
        for path, parameters, shown in (
            ("/queue", {"queue": each.queue}, each.queue),
            ("/queue", {"queue": each.queue, "tab": "groups", "group": each.group}, each.group),
            ("/queue", {"queue": each.queue, "tab": "settings"}, each.queue),
            ("/messages", {"queue": each.queue, "partition": each.queue}, each.queue),
            ("/message", {"id": str(each.message)}, each.queue),
            ("/dead-letters", {"queue": each.queue, "group": each.group}, each.queue),
        ):
            page = look.go(f"{path}?{urlencode(parameters)}")
            expect(page.locator("main .skeleton")).to_have_count(0)
            expect(page.locator("body")).to_contain_text(shown)
            harmless(look)
        page.get_by_role("button", name="Inspect").first.click()
        expect(page.get_by_role("dialog")).to_contain_text("ValueError")
        assert page.locator("dialog img, dialog script").count() == 0
        harmless(look)
        page.keyboard.press("Escape")


def test_what_is_in_the_address_stays_text(look: Looking, filled: list[Filled]) -> None:
    text = urlencode(dict.fromkeys(("queue", "id", "partition", "filter", "sort", "reason", "group", "tab"), ALL))
    for path in ("/queue", "/message", "/messages", "/dead-letters", "/consumers", "/queues"):
        look.go(f"{path}?{text}")
        harmless(look)
    look.faults.clear()


def test_the_bytes_of_a_message_are_a_download_and_never_a_page(live: Live, filled: list[Filled]) -> None:
    path = f"{live.address}/api/v2/messages/{filled[0].message}"
    for accept in ("application/octet-stream", "text/html, application/octet-stream", "application/json"):
        asked = urllib.request.Request(path, headers={"Accept": accept})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            media, sniff = answer.headers["Content-Type"], answer.headers["X-Content-Type-Options"]
            kept = answer.headers["Content-Disposition"]
        assert media in ("application/octet-stream", "application/json")
        assert sniff == "nosniff"
        assert media == "application/json" or kept == "attachment"


def test_the_docs_page_stays_text(look: Looking) -> None:
    page = look.page
    page.goto(f"{look.base}/docs?{MARKUP}#{MARKUP}", wait_until="commit")
    page.locator("main, body").first.wait_for()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img[src=x]").count() == 0
