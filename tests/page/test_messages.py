"""Messages on the page: exact, whatever they hold; found by id, key, place and filter; and looking never takes."""

import json

from playwright.sync_api import expect

from penstock import Client, Message

from .conftest import Looking

LARGE = 9_223_372_036_854_775_807
EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>"\'${7*7}'
NAMES = ("a/b .. 🐟 ?#%&+", "..", ".")


def test_a_message_shows_every_digit_its_headers_and_its_state_in_each_group(look: Looking, shop: Client) -> None:
    value = f'{{"id": {LARGE}, "1": 1.10, "0": [1e400, -0]}}'.encode()
    shop.create("exact")
    shop.create_group("exact", "g")
    pushed = shop.push("exact", Message(value, key="k-1", headers={"source": "test"}, partition="p"))
    page = look.open(f"/message?id={pushed.ids[0]}")

    shown = page.locator(".json")
    expect(shown).to_contain_text(str(LARGE))
    # Digits, and the order of keys, are those that were pushed.
    assert [text.strip('"') for text in shown.locator(".key").all_inner_texts()] == ["id", "1", "0"]
    assert shown.locator(".number").all_inner_texts() == [str(LARGE), "1.10", "1e400", "-0"]
    expect(page.locator("section:has(#headers)")).to_contain_text("source")
    expect(page.locator("section:has(#states)")).to_contain_text("waiting")
    assert shop.lag("exact", "g") == 1


def test_bytes_that_are_no_text_are_shown_as_hex_and_a_null_value_as_such(look: Looking, shop: Client) -> None:
    pushed = shop.push("raw", [b"\xff\x00PNG", None], partition="p")
    page = look.open(f"/message?id={pushed.ids[0]}")
    expect(page.locator("pre.code")).to_contain_text("ff 00 50 4e 47")
    look.open(f"/message?id={pushed.ids[1]}")
    expect(page.locator("section:has(#value)")).to_contain_text("tombstone")


def test_values_of_any_kind_survive_the_pages_own_parser(look: Looking) -> None:
    page = look.open("/queues")
    texts = [
        f'{{"a":{LARGE},"a":-0.10,"2":null,"1":[]}}',
        "[" * 50_000 + "]" * 50_000,
        '"\\ud800 \\u0000 \\n é 🐟"',
        json.dumps({EVIL: [EVIL]}),
        "[1E+2,-1.50e-7,true,false,{}]",
    ]
    written = page.evaluate(
        """async (texts) => { const { parse, write } = await import("/ui/lib/json.js");
        return texts.map((text) => write(parse(text), 0)); }""",
        texts,
    )
    # Strings may be escaped in another way.
    assert [json.loads(text) for text in written[2:4]] == [json.loads(text) for text in texts[2:4]]
    assert written[:2] + written[4:] == texts[:2] + texts[4:]
    refused = page.evaluate(
        """async (texts) => { const { parse } = await import("/ui/lib/json.js");
        return texts.map((text) => { try { parse(text); return false; } catch { return true; } }); }""",
        ["", "{", "[1,]", '{"a" 1}', "01", "1 2", '"\n"', "nul", "{,}"],
    )
    assert refused == [True] * 9


def test_a_message_that_tries_to_inject_script_stays_text(look: Looking, shop: Client) -> None:
    pushed = shop.push("evil", Message({"html": EVIL, EVIL: 1}, key=EVIL, headers={"x": EVIL}, partition="<b>bold</b>"))
    shop.push("evil", Message(EVIL.encode(), partition="<b>bold</b>"))
    page = look.open("/messages?queue=evil")
    expect(page.locator("main tbody")).to_contain_text("<b>bold</b>")
    look.open(f"/message?id={pushed.ids[0]}")
    expect(page.locator(".json")).to_contain_text("onerror")
    look.open("/queue?queue=evil&order=name")
    expect(page.locator("main tbody")).to_contain_text("<b>bold</b>")

    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main b, main script").count() == 0
    policy = page.evaluate("fetch('/').then((answer) => answer.headers.get('content-security-policy'))")
    assert "'unsafe-inline'" not in policy
    assert "script-src 'self'" in policy


def test_names_of_any_kind_work_in_addresses_and_links(look: Looking, shop: Client) -> None:
    for name in NAMES:
        shop.create(name)
        shop.create_group(name, name)
        shop.push(name, {"in": name}, partition=name)
    page = look.open("/queues")
    for name in NAMES:
        look.open("/queues")
        page.get_by_role("link", name=name, exact=True).first.click()
        expect(page.locator("main h1")).to_have_text(name)
        page.locator("section:has(#partitions) tbody").get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", name="What happened to")).to_contain_text(name)
        page.locator("section:has(#history)").get_by_role("link", name="Messages").click()
        page.get_by_role("link", name='{"in":').first.click()
        expect(page.locator("section:has(#place)")).to_contain_text(name)


def test_a_filter_of_fields_is_run_by_the_server_and_lies_in_the_address(look: Looking, shop: Client) -> None:
    shop.push("found", [{"id": LARGE - n, "who": {"name": f"n{n}"}} for n in range(300)], partition="p")
    page = look.open("/messages?queue=found&partition=p")
    expect(page.locator("main tbody tr")).to_have_count(50)
    page.get_by_label("Filter by fields").fill(f"id >= {LARGE - 1} who.name ~ N")
    page.keyboard.press("Enter")

    expect(page.locator("main tbody tr")).to_have_count(2)
    expect(page.locator(".pager")).to_contain_text("Looked at 300 messages")
    page.reload()
    expect(page.locator("main tbody tr")).to_have_count(2)
    page.get_by_label("Filter by fields").fill("a = = b")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("not understood")
    # The browser writes a line for each answer of 400.
    look.faults[:] = [fault for fault in look.faults if "400" not in fault]


def test_pages_of_messages_go_back_to_the_first_and_forth_again(look: Looking, shop: Client) -> None:
    shop.push("long", list(range(120)), partition="p")
    page = look.open("/messages?queue=long&partition=p")
    first = page.locator("main tbody tr").first
    expect(first).to_contain_text("119")
    page.get_by_role("button", name="Older").click()
    expect(first).to_contain_text("69")
    page.get_by_role("button", name="Older").click()
    expect(page.locator("main tbody tr")).to_have_count(20)
    expect(page.get_by_role("button", name="Older")).to_be_disabled()
    page.go_back()
    expect(first).to_contain_text("69")


def test_what_a_message_caused_is_found_and_leads_back(look: Looking, shop: Client) -> None:
    def paid() -> list[str]:
        found = [each for place in shop.partitions("paid") for each in shop.read("paid", place.name, limit=1)]
        return [(each.headers or {})["penstock-parent"] for each in found]

    from .conftest import wait_until

    wait_until(paid)
    page = look.open(f"/message?id={paid()[0]}")
    page.locator("section:has(#children)").get_by_role("link").first.click()
    expect(page.locator("section:has(#place)")).to_contain_text("paid")
    page.get_by_role("link", name=paid()[0]).first.click()
    expect(page.locator("section:has(#place)")).to_contain_text("orders")


def test_a_message_is_pushed_by_hand_and_followed_live(look: Looking, shop: Client) -> None:
    shop.push("tested", {"first": True}, partition="p")
    page = look.open("/messages?queue=tested")
    page.get_by_role("button", name="Live tail").click()
    expect(page.locator("main tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Push a test message").click()
    asked = page.get_by_role("dialog")
    asked.get_by_label("Value").fill(f'{{"digits": {LARGE}}}')
    asked.get_by_label("Partition").fill("p")
    asked.get_by_role("button", name="Push").click()
    page.get_by_role("dialog").get_by_role("button", name="Close").click()

    expect(page.locator("main tbody tr")).to_have_count(2)
    expect(page.locator("main tbody tr").first).to_contain_text(str(LARGE))
    assert shop.read("tested", "p")[-1].value == f'{{"digits": {LARGE}}}'.encode()


def test_whoever_follows_an_empty_queue_sees_all_that_comes(look: Looking, shop: Client) -> None:
    shop.create("empty yet")
    with look.page.expect_response("**/browse/queues/empty%20yet/messages?*"):
        page = look.open("/messages?queue=empty%20yet&tail=on")
    shop.push("empty yet", list(range(100)), partition="p")
    expect(page.locator("main tbody tr")).to_have_count(100)


def test_a_time_in_the_address_that_is_none_is_refused_and_leaves_the_form(look: Looking, shop: Client) -> None:
    shop.push("timed", 1)
    page = look.open("/messages?queue=timed&time=foo")
    expect(page.get_by_role("alert")).to_contain_text("`$.time`")
    expect(page.get_by_label("From time")).to_be_visible()
    look.faults[:] = [fault for fault in look.faults if "400" not in fault]


def test_a_queue_that_is_not_there_is_the_one_that_is_chosen(look: Looking, shop: Client) -> None:
    shop.create("here")
    # The console may say so after all that this looks at.
    look.forgiven = ("404",)
    page = look.open("/messages?queue=nowhere")
    expect(page.get_by_label("Queue")).to_have_value("nowhere")


def test_ten_thousand_partitions_are_searched_and_sorted_by_the_server(look: Looking, shop: Client) -> None:
    shop.create("wide")
    shop.create_group("wide", "g")
    for begin in range(0, 10_000, 2_500):
        shop.push_many("wide", [(f"lane-{n:05}", b"1") for n in range(begin, begin + 2_500)])
    shop.push("wide", [b"1"] * 500, partition="lane-07777")
    page = look.open("/queue?queue=wide")

    rows = page.locator("section:has(#partitions) tbody tr")
    expect(rows.first).to_contain_text("lane-07777")
    expect(rows.first).to_contain_text("501")
    expect(rows).to_have_count(50)
    expect(page.locator(".heat button")).to_have_count(120)
    page.get_by_role("button", name="Next").click()
    expect(rows.first).to_contain_text("lane-00049")
    page.get_by_label("Search partitions").fill("lane-0123")
    expect(rows).to_have_count(10)
    assert "search=lane-0123" in page.url
