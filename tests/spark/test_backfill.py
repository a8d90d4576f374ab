"""A backfill replays a range, archived or not, into another queue: all of it or nothing, and once if it has a name."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from penstock import Client, InvalidInput, Message, MessageTooLarge, NotFound
from penstock.pipeline.archiving import archive
from penstock.pipeline.backfilling import BackfillResult, backfill

from .conftest import Lab


def fill(client: Client) -> None:
    for number in range(40):
        headers = {"n": str(number)} if number % 3 == 0 else None
        message = Message(
            None if number % 7 == 0 else b"%d" % number, key=f"k{number % 5}" if number % 2 else None, headers=headers
        )
        client.push("in", [message, Message(b"again %d" % number)], partition=f"p{number % 2}")


def log(client: Client, queue: str) -> dict[str, list[tuple[object, ...]]]:
    """Return what the partitions of a queue hold, in their order."""
    return {
        one.name: [(m.key, m.value, m.headers) for m in client.scan(queue, one.name)]
        for one in client.partitions(queue)
    }


def replay(lab: Lab, target: str = "out", **options: Any) -> BackfillResult:
    return backfill("in", target, url=lab.dsn, spark=lab.spark, **options)


def test_partition_key_headers_and_order_are_kept_across_archive_and_log(lab: Lab) -> None:
    fill(lab.client)
    before = log(lab.client, "in")
    with psycopg.connect(lab.dsn) as connection:
        connection.execute(
            "UPDATE penstock.segments SET created_at = created_at - interval '1 day' WHERE base_offset < 20"
        )
    yesterday = datetime.now(UTC) - timedelta(hours=12)
    archive("in", str(lab.folder), before=yesterday, drop=True, url=lab.dsn, spark=lab.spark)
    assert [one.floor for one in lab.client.partitions("in")] == [20, 20]

    preview = replay(lab, dry_run=True)
    assert (preview.partitions, preview.messages, preview.done) == (2, 80, False)
    assert [queue.name for queue in lab.client.queues()] == ["in"]
    assert replay(lab) == preview._replace(done=True)
    assert log(lab.client, "out") == before

    # A time in between, and offsets on either side of the boundary.
    assert replay(lab, "today", start=yesterday).messages == 40
    assert log(lab.client, "today") == {name: messages[20:] for name, messages in before.items()}
    assert replay(lab, "some", start=15, stop=25, partitions=["p1"]).messages == 10
    assert log(lab.client, "some") == {"p1": before["p1"][15:25]}
    assert replay(lab, "none", start=1000).messages == 0
    assert all(check.violations == 0 for check in lab.client.verify())


def test_a_name_makes_it_happen_once(lab: Lab) -> None:
    fill(lab.client)
    first = replay(lab, name="january")
    assert (first.messages, first.done, first.repeated) == (80, True, False)
    lab.client.push("in", [b"later"], partition="p0")
    again = replay(lab, name="january")
    assert (again.messages, again.done, again.repeated) == (80, False, True)
    assert sum(map(len, log(lab.client, "out").values())) == 80
    assert replay(lab, name="february").messages == 81

    # Two that run at once both find that nothing was done yet; the ledger knows better.
    frame = lab.read(endingOffsets='{"in": {"p0": 1, "p1": 0}}').select("partition", "value")
    for _ in range(2):
        lab.write(frame, queue="single", batchName="one")
    assert sum(map(len, log(lab.client, "single").values())) == 1


def test_what_fails_in_the_middle_leaves_nothing(lab: Lab) -> None:
    lab.client.push("in", [b"x"] * 100, partition="p0")
    lab.client.push("in", [b"x" * 2000], partition="p1")
    lab.client.create("out", max_message_bytes=1000)
    with pytest.raises(MessageTooLarge):
        replay(lab, name="large")
    assert log(lab.client, "out") == {}
    # It was not done, so its name is free.
    lab.client.configure("out", max_message_bytes=None)
    assert replay(lab, name="large").messages == 101
    assert sum(map(len, log(lab.client, "out").values())) == 101


def test_a_queue_is_replayed_into_itself_only_with_an_end(lab: Lab) -> None:
    fill(lab.client)
    with pytest.raises(InvalidInput, match="give `stop`"):
        replay(lab, "in")
    assert replay(lab, "in", start=0, stop=5).messages == 10
    assert [one.head for one in lab.client.partitions("in")] == [45, 45]
    assert log(lab.client, "in")["p0"][40:] == log(lab.client, "in")["p0"][:5]


def test_what_does_not_exist_is_named(lab: Lab) -> None:
    with pytest.raises(NotFound, match="nope"):
        backfill("nope", "out", url=lab.dsn, spark=lab.spark)
    lab.client.push("in", [b"x"], partition="p")
    with pytest.raises(NotFound, match="nope"):
        replay(lab, partitions=["nope"])
    assert [queue.name for queue in lab.client.queues()] == ["in"]
