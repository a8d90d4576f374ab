"""What a stream does on its driver between two batches. It talks to the database only, so no Spark is started."""

import psycopg
import pytest

from penstock import Client, DataLost
from penstock.spark import progress
from penstock.spark.options import read_options
from penstock.spark.streaming import Offset, StreamReader


def reader(dsn: str) -> StreamReader:
    options = {"url": dsn, "subscribe": "in", "groupId": "g", "startingOffsets": "earliest"}
    return StreamReader(read_options(options, streaming=True))


def following(stream: StreamReader, start: Offset) -> Offset:
    return stream.latestOffset(start, stream.getDefaultReadLimit())


def test_a_transaction_that_pushed_to_the_source_does_not_hold_up_the_next_batch(
    client: Client, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever waits for it waits until this test is given up.
    monkeypatch.setattr(progress, "_BUSY_SECONDS", 3600.0)
    client.push_many("in", [("p", b"1"), ("q", b"1")])
    stream = reader(dsn)
    first = following(stream, stream.initialOffset())
    with psycopg.connect(dsn) as pusher:
        pusher.execute("SELECT penstock.push('in', ARRAY['2'::bytea], 'p')")
        client.push("in", b"2", partition="q")
        second = following(stream, first)
        assert second != first
        # What is free is told at once.
        assert client.lag("in", "g") == 2
    # The rest follows.
    third = following(stream, second)
    assert client.lag("in", "g") == 1
    following(stream, third)
    assert client.lag("in", "g") == 0


def test_a_deleted_partition_that_was_read_to_its_end_is_forgotten_and_another_is_missed(
    client: Client, dsn: str
) -> None:
    client.push_many("in", [("p", b"1"), ("q", b"1")])
    stream = reader(dsn)
    first = following(stream, stream.initialOffset())
    client.delete("in", partition="p")
    # Also for one that comes back with the same checkpoint.
    for one in (stream, reader(dsn)):
        assert following(one, first) == first
    client.push("in", b"2", partition="q")
    second = following(stream, first)
    client.push("in", b"3", partition="q")
    client.delete("in", partition="q")
    for one in (stream, reader(dsn)):
        with pytest.raises(DataLost, match="a partition that was deleted"):
            following(one, second)
