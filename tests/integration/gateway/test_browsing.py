"""Messages as somebody looks through them: in pages, whatever their size."""

from gateways import RunningGateway
from penstock import Client

SIZE = 1_000_000


def test_pages_of_large_messages_are_short_and_lead_to_all_of_them(http: RunningGateway, client: Client) -> None:
    for _ in range(4):
        client.push("large", [b"x" * SIZE] * 10, partition="p")
    client.push("large", b"small", partition="q")

    newest = http.ask("GET", "/browse/queues/large/messages")
    assert len(newest.body) < 10 * SIZE
    assert {each["partition"] for each in newest.json()["messages"]} == {"p", "q"}

    back: list[int] = []
    before = ""
    while True:
        answer = http.ask("GET", f"/browse/queues/large/messages?partition=p{before}")
        assert len(answer.body) < 10 * SIZE
        page = answer.json()
        back += [each["offset"] for each in page["messages"]]
        if page["older"] is None:
            break
        before = f"&before={page['older']}"
    assert back == list(reversed(range(40)))

    forth: list[int] = []
    start: int | None = 0
    while start is not None:
        page = http.ask("GET", f"/browse/queues/large/messages?partition=p&start={start}").json()
        forth += [each["offset"] for each in page["messages"]]
        start = page["newer"]
    assert forth == list(range(40))


def test_an_offset_without_a_partition_is_refused(http: RunningGateway, client: Client) -> None:
    client.push("q", [1, 2], partition="p")
    assert http.ask("GET", "/browse/queues/q/messages?partition=p&start=1").json()["messages"][0]["offset"] == 1
    refused = http.ask("GET", "/browse/queues/q/messages?start=1")
    assert (refused.status, refused.json()["detail"]) == (
        400,
        "an offset is a place in a partition: give the partition, too",
    )
