"""A push whose answer is lost is tried again by the client, gets the first answer, and is in the log once."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from penstock import Client, Message, TimedOut, Unavailable

from .conftest import Way
from .proxy import CUT_ANSWER, CUT_REQUEST, HOLD_ANSWER, HOLD_REQUEST, Proxy

HOUR = 3600.0
PUSHES: dict[str, Callable[[Any], Any]] = {
    "one message": lambda api: api.push("q", "x", partition="p"),
    "with a key": lambda api: api.push("q", "x", partition="p", key="k", headers={"h": "1"}),
    "a batch": lambda api: api.push("q", ["x", "y"], partition="p"),
    "to several partitions": lambda api: api.push_many("q", [("p", "x"), ("r", "y"), ("p", "z")]),
    "of messages": lambda api: api.push("q", Message("x", partition="p")),
    "with a dedupe id": lambda api: api.push(
        "q", [Message("x", dedupe_id="a"), Message("x", dedupe_id="a")], partition="p"
    ),
    "to be delayed": lambda api: api.push("q", ["x", "y"], partition="p", delay=HOUR),
}
# One of each function of the engine, for what takes its time.
FUNCTIONS = ["one message", "to several partitions", "to be delayed"]


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT penstock.configure_queue('q', '{\"dedupe_window\": 60}')")
    proxy = Proxy(dsn)
    yield proxy
    proxy.close()


@pytest.fixture
def open_through(way: Way, proxy: Proxy) -> Iterator[Any]:
    """Open a client whose connections go through the proxy."""
    opened: list[Any] = []

    def open_one(**options: Any) -> Any:
        opened.append(way.open(proxy.dsn, **options))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


def stored(api: Any) -> list[Any]:
    """Return all that is in the log or scheduled."""
    in_log = [
        (partition.name, message.json())
        for partition in api.partitions("q")
        for message in api.read("q", partition.name)
    ]
    return [*in_log, *((each.partition, each.count) for each in api.scheduled())]


@pytest.fixture
def expected(client: Client, dsn: str) -> Callable[[str], list[Any]]:
    """What a push leaves that nothing happens to."""

    def push(what: str) -> list[Any]:
        PUSHES[what](client)
        left = stored(client)
        client.purge("q")
        with psycopg.connect(dsn) as connection:
            connection.execute("DELETE FROM penstock.partitions")
            connection.execute("DELETE FROM penstock.segments")
        return left

    return push


@pytest.mark.parametrize("what", PUSHES)
def test_a_push_that_is_cut_off_after_it_committed_is_there_once(
    open_through: Any, proxy: Proxy, expected: Any, what: str
) -> None:
    left = expected(what)
    api = open_through()
    proxy.plan(CUT_ANSWER)
    result = PUSHES[what](api)
    assert proxy.followed == [CUT_ANSWER]
    assert stored(api) == left
    results = result if isinstance(result, list) else [result]
    if what != "to be delayed":
        assert [api.get(each).partition for one in results for each in one.ids]
        assert [one.first_offset for one in results] == [0] * len(results)
    else:
        assert [each.scheduled_id for each in api.scheduled()] == list(result.scheduled.ids)


def test_one_that_is_cut_off_again_and_again_is_there_once(open_through: Any, proxy: Proxy) -> None:
    api = open_through()
    proxy.plan(CUT_ANSWER, CUT_REQUEST, CUT_ANSWER, CUT_ANSWER, CUT_REQUEST)
    first = api.push("q", "x", partition="p")
    assert len(proxy.followed) == 5
    second = api.push("q", "y", partition="p")
    assert (first.first_offset, second.first_offset) == (0, 1)
    assert stored(api) == [("p", "x"), ("p", "y")]


def test_one_that_never_reached_the_server_is_stored(open_through: Any, proxy: Proxy) -> None:
    api = open_through()
    proxy.plan(CUT_REQUEST)
    assert api.push("q", "x", partition="p").first_offset == 0
    assert stored(api) == [("p", "x")]


@pytest.mark.parametrize("what", FUNCTIONS)
def test_one_whose_answer_does_not_come_is_asked_again_when_it_timed_out(
    open_through: Any, proxy: Proxy, expected: Any, what: str
) -> None:
    left = expected(what)
    api = open_through(timeout=0.5)
    proxy.plan(HOLD_ANSWER)
    PUSHES[what](api)
    assert proxy.followed == [HOLD_ANSWER]
    assert stored(api) == left


@pytest.mark.parametrize("what", FUNCTIONS)
def test_a_first_attempt_that_reaches_the_server_after_its_repetition_stores_nothing(
    open_through: Any, proxy: Proxy, expected: Any, what: str
) -> None:
    left = expected(what)
    api = open_through(timeout=0.5)
    proxy.plan(HOLD_REQUEST)
    PUSHES[what](api)
    assert stored(api) == left
    proxy.release()
    assert proxy.answered_late.wait(20), "the server did not answer the late request"
    assert stored(api) == left


def test_a_push_that_is_never_answered_ends_within_twice_its_time(open_through: Any, proxy: Proxy) -> None:
    api = open_through(timeout=1.0, connect_timeout=1.0)
    proxy.plan(*[HOLD_ANSWER] * 9)
    began = time.monotonic()
    with pytest.raises(TimedOut, match="whether the call took effect is unknown"):
        api.push("q", "x", partition="p")
    # Twice the time, a connection, and the seconds that cancelling may take.
    assert time.monotonic() - began < 2 * 1.0 + 1.0 + 2 * 3.0
    assert proxy.followed == [HOLD_ANSWER] * 2
    assert stored(api) == [("p", "x")]


def test_a_push_that_is_cut_off_for_ever_says_that_its_outcome_is_unknown(open_through: Any, proxy: Proxy) -> None:
    api = open_through(timeout=1.0)
    proxy.plan(*[CUT_ANSWER] * 99)
    with pytest.raises(Unavailable, match="whether it took effect is unknown"):
        api.push("q", "x", partition="p")
    assert len(proxy.followed) > 2
    proxy.plan()
    assert stored(api) == [("p", "x")]


def test_while_an_earlier_attempt_may_be_under_way_a_lock_timeout_does_not_say_that_nothing_was_changed(
    open_through: Any, proxy: Proxy, dsn: str
) -> None:
    api = open_through(timeout=1.5)
    api.push("q", "old", partition="p")
    with psycopg.connect(dsn) as holder:
        holder.execute("ALTER DATABASE " + holder.info.dbname + " SET penstock.lock_timeout = '100ms'")
        holder.commit()
        try:
            locked = open_through(timeout=1.5)
            holder.execute("SELECT 1 FROM penstock.partitions FOR NO KEY UPDATE")
            proxy.plan(CUT_REQUEST)
            with pytest.raises(Unavailable, match="whether it took effect is unknown"):
                locked.push("q", "x", partition="p")
        finally:
            holder.rollback()
            holder.execute("ALTER DATABASE " + holder.info.dbname + " RESET penstock.lock_timeout")


def test_a_push_in_a_transaction_of_ones_own_is_not_repeated(open_through: Any, proxy: Proxy) -> None:
    api = open_through()
    api.push("q", "old", partition="p")
    proxy.plan(CUT_REQUEST)
    with pytest.raises(Unavailable), api.transaction() as tx:
        tx.push("q", "x", partition="p")
    assert stored(api) == [("p", "old")]
