"""Consume, transform and produce in one transaction: all of it commits, or nothing does."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from penstock import LeaseLost, PenstockError

from .groups import MODES, drain, values

pytestmark = pytest.mark.usefixtures("sound")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, api: Any, dsn: str) -> str:
    """Group "g" of queue "q", in each mode, with three messages, and a table of the user's own."""
    api.create_group("q", "g", mode=request.param)
    api.push("q", [1, 2, 3])
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE results (value integer)")
    return str(request.param)


def results(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return [value for (value,) in connection.execute("SELECT value FROM results ORDER BY value")]


def execute(api: Any, tx: Any, value: int) -> None:
    """Write into the user's own table, on the transaction's connection."""
    done = tx.connection.execute("INSERT INTO results VALUES (%s)", (value,))
    if asyncio.iscoroutine(done):
        api._run(done)


def test_claim_own_writes_pushes_and_ack_commit_together(api: Any, dsn: str, mode: str) -> None:
    with api.transaction() as tx:
        batch = tx.pop("q", "g", max_messages=2)
        for message in batch.messages:
            execute(api, tx, message.json())
            tx.push("out", message.json() * 10)
        tx.ack(batch)
        assert api.lag("q", "g") == 3
    assert batch.settled
    assert (results(dsn), drain(api, "out"), api.lag("q", "g")) == ([1, 2], [10, 20], 1)
    assert drain(api, "q", "g") == [3]


def test_an_error_takes_back_claim_own_writes_pushes_and_ack(api: Any, dsn: str, mode: str) -> None:
    def fail() -> None:
        with api.transaction() as tx:
            batch = tx.pop("q", "g")
            execute(api, tx, 1)
            tx.push("out", 1)
            tx.ack(batch)
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fail()
    assert (results(dsn), api.lag("q", "g"), api.claims("q")) == ([], 3, [])
    assert [queue.name for queue in api.queues()] == ["q"]
    again = api.pop("q", "g")
    assert (values(again), again.messages[0].attempt) == ([1, 2, 3], 1)


def test_a_batch_that_was_popped_outside_is_acknowledged_inside(api: Any, dsn: str, mode: str) -> None:
    batch = api.pop("q", "g")

    def fail() -> None:
        with api.transaction() as tx:
            tx.ack(batch)
            raise RuntimeError("rolled back")

    with pytest.raises(RuntimeError, match="rolled back"):
        fail()
    assert not batch.settled
    assert api.lag("q", "g") == 3
    with api.transaction() as tx:
        execute(api, tx, 7)
        tx.ack(batch)
    assert (results(dsn), api.lag("q", "g")) == ([7], 0)
    with pytest.raises(PenstockError, match="settled already"):
        batch.ack()


def test_an_ack_whose_lease_is_gone_takes_the_whole_transaction_back(api: Any, dsn: str, mode: str) -> None:
    batch = api.pop("q", "g")
    api.release_claim(api.claims("q")[0])

    def work() -> None:
        with api.transaction() as tx:
            execute(api, tx, 1)
            tx.push("out", 1)
            tx.ack(batch)

    with pytest.raises(LeaseLost):
        work()
    assert (results(dsn), [queue.name for queue in api.queues()]) == ([], ["q"])


def test_a_claim_that_is_not_acknowledged_inside_is_held_after_the_commit(api: Any, mode: str) -> None:
    with api.transaction() as tx:
        batch = tx.pop("q", "g", max_messages=2, lease=100)
        assert api.claims("q") == []
    assert len(api.claims("q")) == 1
    assert values(batch) == [1, 2]
    api.release_claim(api.claims("q")[0])
    assert sorted(drain(api, "q", "g")) == [1, 2, 3]


def test_nothing_to_pop_in_a_transaction_is_none(open_api: Callable[..., Any]) -> None:
    api = open_api()
    with api.transaction() as tx:
        assert tx.pop("q", "g") is None


@pytest.mark.parametrize("how", ["ack", "nack", "renew"])
def test_a_batch_that_was_popped_inside_is_settled_by_itself_after_the_block(api: Any, mode: str, how: str) -> None:
    with api.transaction() as tx:
        batch = tx.pop("q", "g", max_messages=2)
    # A connection that was lent has gone back: what runs on it now is somebody else's, who rolls it back.
    with contextlib.suppress(RuntimeError), api.transaction():
        getattr(batch, how)()
        raise RuntimeError

    assert batch.settled == (how != "renew")
    assert api.lag("q", "g") == (1 if how == "ack" else 3)
    assert len(api.claims("q")) == (1 if how == "renew" else 0)


def test_a_batch_whose_claim_was_rolled_back_is_lost(api: Any, mode: str) -> None:
    batches = []

    def fail() -> None:
        with api.transaction() as tx:
            batches.append(tx.pop("q", "g"))
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fail()
    with pytest.raises(LeaseLost):
        batches[0].ack()
    assert api.lag("q", "g") == 3


def test_a_transaction_takes_nothing_after_its_block(api: Any, mode: str) -> None:
    batch = api.pop("q", "g")
    with api.transaction() as tx:
        tx.push("out", 1)
    uses: list[Callable[[], object]] = [lambda: tx.push("out", 2), lambda: tx.pop("q", "g"), lambda: tx.ack(batch)]
    for use in uses:
        with pytest.raises(PenstockError, match="this transaction's block has ended; begin a new one"):
            use()
    assert not batch.settled
    batch.ack()
    assert (api.lag("q", "g"), drain(api, "out")) == (0, [1])


@pytest.mark.parametrize("how", ["ack", "renew", "release"])
def test_nothing_that_settles_a_batch_lets_the_transaction_commit_before_it_is_on_disk(
    api: Any, mode: str, how: str
) -> None:
    def setting(statement: str) -> str:
        done = tx.connection.execute(statement)
        cursor = api._run(done) if asyncio.iscoroutine(done) else done
        row = cursor.fetchone()
        return str((api._run(row) if asyncio.iscoroutine(row) else row)[0])

    api.configure_group("q", "g", durable_acks=False)
    with api.transaction() as tx:
        assert setting("SELECT set_config('synchronous_commit', 'on', true)") == "on"
        batch = tx.pop("q", "g", max_messages=1)
        getattr(batch, how)()
        assert setting("SELECT current_setting('synchronous_commit')") == "on"
