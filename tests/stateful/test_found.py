"""Short lives that the model found something in, and keeps looking at."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import IsolationLevel

from penstock import Client, StoredMessage

from .model import Content
from .test_model import Everything
from .texts import Trouble

REPEATABLE_READ = IsolationLevel.REPEATABLE_READ


@pytest.fixture
def life(client: Client, sql: psycopg.Connection[Any]) -> Iterator[Everything]:
    """A life of the model, whose steps a test chooses; it ends with everything consumed."""
    Everything.client, Everything.sql = client, sql
    life = Everything()
    life.begin(suffix="", partitions=["a", "b", "c"], dedupe_ids=["x", "y", "z"])
    yield life
    life.groups_agree()
    life.dead_letters_agree()
    life.verified()
    life.teardown()


@pytest.mark.parametrize("kind", ["patient", "patient shared"])
def test_no_message_dies_of_its_neighbours_failures(life: Everything, kind: str) -> None:
    life.push_a_lot(partition=1, size=10)
    life.each_handler_fails_once(kind=kind, size=100, error="once")
    assert life.group(kind).letters == []


@pytest.mark.parametrize("kind", ["ordered", "shared"])
@pytest.mark.parametrize("said", ["a\0b", "\ud800", "\0" * 3000], ids=["NUL", "half a pair", "long"])
def test_a_failure_counts_whatever_it_says(life: Everything, kind: str, said: str) -> None:
    life.pop_one(kind=kind)
    life.handler_raises(pick=0, where=0, error=said)
    life.pop_one(kind=kind)
    life.block_raises(pick=0, error=said)


@pytest.mark.parametrize("mode", ["ordered", "shared"])
@pytest.mark.parametrize("said", ["a\0b", "\ud800"], ids=["NUL", "half a pair"])
def test_a_worker_outlives_what_its_handler_says(client: Client, mode: str, said: str) -> None:
    client.create("q", backoff_initial=0, max_attempts=2)
    client.create_group("q", "g", mode=mode)
    client.push("q", [1, 2, 3], partition="p")

    def handle(message: StoredMessage) -> None:
        if message.offset == 1:
            raise Trouble(said)

    client.process("q", handle, group="g", idle_timeout=0.2)
    assert [(letter.offset, letter.attempts) for letter in client.dead_letters("q")] == [(1, 2)]
    assert client.lag("q", "g") == 0


@pytest.mark.parametrize("end", ["expire", "nack"])
def test_a_claim_that_fails_stays_one_row(life: Everything, end: str) -> None:
    life.push_a_lot(partition=1, size=60)
    for _ in range(2):
        life.pop_any(kind="shared", size=100, width=1, auto=False)
    if end == "expire":
        life.expire(pick=1)
    else:
        life.nack(pick=1, error="somewhere")


@pytest.mark.parametrize("rolled_back", [True, False])
def test_a_push_shares_the_fate_of_its_savepoint(life: Everything, rolled_back: bool) -> None:
    life.transact(steps=[("savepoint", [("push", 1, Content(b"x"))], rolled_back)], commits=True)


@pytest.mark.parametrize("rolled_back", [True, False])
@pytest.mark.parametrize("kind", ["ordered", "shared"])
def test_an_acknowledgement_shares_the_fate_of_its_savepoint(life: Everything, kind: str, rolled_back: bool) -> None:
    life.pop_several(kind=kind)
    life.transact(steps=[("savepoint", [("ack", 0)], rolled_back)], commits=True)


def test_a_group_of_new_messages_gets_one_that_was_pushed_above_read_committed(life: Everything) -> None:
    life.push_isolated(partition=1, contents=[Content(b"x")], level=REPEATABLE_READ, overtaken=True)
    life.pop_named(kind="of new messages", partition=1, size=100)
    assert [len(batch) for batch, _ in life.batches] == [2]


@pytest.mark.parametrize("kind", ["ordered", "shared"])
def test_what_failed_together_comes_alone_though_one_of_it_is_taken_at_most_once(life: Everything, kind: str) -> None:
    life.pop_several(kind=kind)
    life.nack(pick=0, error="somewhere")
    life.pop_any(kind=kind, size=100, width=1, auto=True)
    life.pop_any(kind=kind, size=100, width=1, auto=False)


def test_what_is_done_can_be_acknowledged_again_while_the_claim_lives(life: Everything) -> None:
    life.pop_several(kind="shared")
    life.ack_message(pick=0, where=0)
    life.ack_up_to(pick=0, where=0)


def test_a_repeated_push_is_answered_as_before(client: Client, sql: psycopg.Connection[Any]) -> None:
    producer = uuid4()
    offsets = [
        sql.execute(
            "SELECT first_offset FROM penstock.push_segments(ARRAY['q'], ARRAY['p'], ARRAY[1], ARRAY['x'::bytea],"
            " ARRAY['\\x01000000'::bytea], producer => %s, sequence => %s)",
            (producer, sequence),
        ).fetchone()
        for sequence in (1, 2, 1)
    ]
    assert offsets == [(0,), (1,), (0,)]
    assert len(client.read("q", "p")) == 2
