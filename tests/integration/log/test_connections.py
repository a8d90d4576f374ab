"""Connections that time out, die, run out or were never there: always a typed error, and no call hangs."""

# ruff: noqa: PT012 - that a whole block fails, and is taken back, is what is shown here

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from databases import Connection, Connections
from penstock import AsyncClient, Client, PenstockError, SetupError, TimedOut, Unavailable
from penstock.postgres.pools import AsyncPool
from proxies import Proxy

from .interleaving import push

KILL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = 'penstock'"
)


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    proxy = Proxy(dsn)
    yield proxy
    proxy.close()


def run_async(dsn: str, act: Callable[[AsyncClient], Any], **options: Any) -> Any:
    async def run() -> Any:
        async with AsyncClient(dsn, **options) as client:
            return await act(client)

    return asyncio.run(run())


def test_the_address_is_known_and_its_password_is_not_shown(dsn: str) -> None:
    password = str(conninfo_to_dict(dsn).get("password") or "s3cr3t")
    secret = make_conninfo(dsn, password=password)
    with Client(secret) as client:
        assert client.dsn == secret
        assert password not in repr(client)
        assert "***" in repr(client)
    assert password not in repr(AsyncClient(secret))


def test_a_call_that_waits_for_a_lock_too_long_is_ended(dsn: str, connections: Connections, sql: Connection) -> None:
    push(sql, "0")
    holder = connections.open()
    push(holder, "0")
    with Client(f"{dsn} options='-c penstock.lock_timeout=60s'", timeout=0.3) as client:
        with pytest.raises(TimedOut, match=r"no answer within 0\.3 s"):
            client.push("q", 1, partition="0")
        holder.rollback()
        assert client.push("q", 1, partition="0").first_offset == 1


def test_an_asynchronous_call_that_waits_too_long_is_ended(dsn: str, connections: Connections, sql: Connection) -> None:
    push(sql, "0")
    holder = connections.open()
    push(holder, "0")

    async def act(client: AsyncClient) -> int:
        with pytest.raises(TimedOut, match=r"no answer within 0\.3 s"):
            await client.push("q", 1, partition="0")
        holder.rollback()
        return (await client.push("q", 1, partition="0")).first_offset

    assert run_async(f"{dsn} options='-c penstock.lock_timeout=60s'", act, timeout=0.3) == 1


FROZEN: dict[str, Callable[[Client], Any]] = {
    "push": lambda client: client.push("q", 1, partition="0"),
    "read": lambda client: client.read("q", "0"),
}


@pytest.mark.parametrize("what", FROZEN)
def test_no_call_hangs_when_the_network_is_gone(proxy: Proxy, sql: Connection, what: str) -> None:
    push(sql, "0")
    with Client(proxy.dsn, timeout=0.3, connect_timeout=1, pool_size=1) as client:
        client.read("q", "0")
        proxy.freeze()
        with pytest.raises(TimedOut):
            FROZEN[what](client)


def test_the_end_of_a_transaction_does_not_hang_when_the_network_is_gone(proxy: Proxy, sql: Connection) -> None:
    with (
        Client(proxy.dsn, timeout=0.3, connect_timeout=1, pool_size=1) as client,
        pytest.raises(TimedOut),
        client.transaction() as tx,
    ):
        tx.connection.execute("CREATE TABLE mine (id integer)")
        proxy.freeze()


def test_no_asynchronous_call_hangs_when_the_network_is_gone(proxy: Proxy, sql: Connection) -> None:
    push(sql, "0")

    async def act(client: AsyncClient) -> None:
        await client.read("q", "0")
        proxy.freeze()
        with pytest.raises(TimedOut):
            await client.push("q", 1, partition="0")

    run_async(proxy.dsn, act, timeout=0.3, connect_timeout=1, pool_size=1)


def test_idle_connections_that_were_killed_cost_no_error(client: Client, sql: Connection) -> None:
    client.push("q", 1)
    for number in range(2):
        kill_all(sql)
        assert client.push("q", number).first_offset == number + 1


def test_idle_asynchronous_connections_that_were_killed_cost_no_error(dsn: str, sql: Connection) -> None:
    async def act(client: AsyncClient) -> int:
        await client.push("q", 1)
        kill_all(sql)
        return (await client.push("q", 2)).first_offset

    assert run_async(dsn, act) == 1


# The pool tries again after one second, two and four: at 0, 1, 3 and 7. Who waits for it gives up at 6.
AWAY, PATIENT = 3.2, 6.0


def test_a_database_that_comes_back_is_found_before_the_pool_looks_again(proxy: Proxy) -> None:
    with Client(proxy.dsn, connect_timeout=PATIENT, pool_size=2) as client:
        client.push("q", 1)
        proxy.leave(AWAY)
        assert client.push("q", 2).first_offset == 1
        assert [message.value for message in client.read("q", "0")] == [b"1", b"2"]


def test_an_asynchronous_client_finds_it_too(proxy: Proxy) -> None:
    async def act(client: AsyncClient) -> int:
        await client.push("q", 1)
        proxy.leave(AWAY)
        pushed = await asyncio.gather(*(client.push("q", number) for number in range(3)))
        return sum(result.count for result in pushed)

    assert run_async(proxy.dsn, act, connect_timeout=PATIENT, pool_size=2, push_batching=False) == 3


# The pool's first connection is waited for two seconds, when a client is opened.
SLOW = 2.5


def test_a_database_whose_first_connection_comes_late_is_waited_for(proxy: Proxy) -> None:
    with Client(proxy.dsn):
        # The last of them is that of the pool.
        proxy.hold(2 * proxy.accepted, SLOW)
    with Client(proxy.dsn, connect_timeout=PATIENT) as client:
        assert client.push("q", 1).first_offset == 0


def test_a_database_whose_first_asynchronous_connection_comes_late_is_waited_for(proxy: Proxy) -> None:
    with Client(proxy.dsn):
        proxy.hold(2 * proxy.accepted, SLOW)

    async def act(client: AsyncClient) -> int:
        return (await client.push("q", 1)).first_offset

    assert run_async(proxy.dsn, act, connect_timeout=PATIENT) == 0


def test_a_database_that_stays_away_is_said_to_be(proxy: Proxy) -> None:
    with Client(proxy.dsn, connect_timeout=0.5, timeout=0.5, pool_size=1) as client:
        client.push("q", 1)
        proxy.leave(60)
        with pytest.raises(Unavailable, match="cannot be reached"):
            client.push("q", 2)


def kill_all(sql: Connection) -> None:
    """Kill the connections that clients have now, and wait until these are gone."""
    clients = "datname = current_database() AND application_name = 'penstock'"
    pids = [pid for (pid,) in sql.execute(f"SELECT pid FROM pg_stat_activity WHERE {clients}").fetchall()]
    assert pids
    # With a timeout, the function waits until the process has ended.
    ended = sql.execute("SELECT bool_and(pg_terminate_backend(pid, 10000)) FROM unnest(%s) pid", (pids,)).fetchall()
    assert ended == [(True,)]


class Killer(threading.Thread):
    """Kills the connections of clients as soon as one of them waits for a lock."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(daemon=True)
        self._connection = connection
        self.start()

    def run(self) -> None:
        waiting = KILL + " AND cardinality(pg_blocking_pids(pid)) > 0"
        while not self._connection.execute(waiting.encode()).fetchall():
            pass


def test_a_push_whose_connection_breaks_is_tried_again(
    client: Client, connections: Connections, sql: Connection
) -> None:
    push(sql, "0")
    holder = connections.open()
    push(holder, "0")
    killer = Killer(connections.open(autocommit=True))

    def release() -> None:
        killer.join()
        holder.rollback()

    threading.Thread(target=release, daemon=True).start()
    assert client.push("q", 1, partition="0").first_offset == 1
    assert not killer.is_alive()
    assert [message.offset for message in client.read("q", "0")] == [0, 1]


def test_a_pop_whose_connection_breaks_says_that_its_outcome_is_unknown(
    client: Client, connections: Connections, sql: Connection
) -> None:
    push(sql, "0")
    holder = connections.open()
    holder.execute("LOCK TABLE penstock.ready IN ACCESS EXCLUSIVE MODE")
    killer = Killer(connections.open(autocommit=True))
    with pytest.raises(Unavailable) as caught:
        client.pop("q", "g")
    assert not isinstance(caught.value, TimedOut)
    killer.join()


def test_a_read_whose_connection_breaks_is_tried_again(
    client: Client, connections: Connections, sql: Connection
) -> None:
    push(sql, "0")
    holder = connections.open()
    holder.execute("LOCK TABLE penstock.segments IN ACCESS EXCLUSIVE MODE")
    killer = Killer(connections.open(autocommit=True))

    def release() -> None:
        killer.join()
        holder.rollback()

    threading.Thread(target=release, daemon=True).start()
    assert [message.offset for message in client.read("q", "0")] == [0]
    assert not killer.is_alive()


def test_a_client_whose_connections_are_all_in_use_says_so(dsn: str) -> None:
    with (
        Client(dsn, pool_size=1, connect_timeout=0.3) as client,
        client.transaction(),
        pytest.raises(Unavailable, match=r"all 1 connections were in use for 0\.3 s; raise PENSTOCK_POOL_SIZE"),
    ):
        client.push("q", 1, partition="0")


def test_an_asynchronous_client_whose_connections_are_all_in_use_says_so(dsn: str) -> None:
    async def act(client: AsyncClient) -> None:
        async with client.transaction():
            with pytest.raises(Unavailable, match="all 1 connections were in use"):
                await client.push("q", 1, partition="0")

    run_async(dsn, act, pool_size=1, connect_timeout=0.3)


def test_a_closed_client_says_so(dsn: str) -> None:
    client = Client(dsn)
    client.close()
    client.close()
    with pytest.raises(PenstockError, match="this client is closed; make a new one"):
        client.queues()


def test_a_closed_asynchronous_client_says_so(dsn: str) -> None:
    async def act() -> None:
        client = AsyncClient(dsn)
        with pytest.raises(PenstockError, match="not open yet"):
            _ = client.dsn
        await client.queues()
        await client.close()
        with pytest.raises(PenstockError, match="this client is closed; make a new one"):
            await client.queues()

    asyncio.run(act())


def test_closing_a_client_leaves_no_thread_behind(dsn: str) -> None:
    before = set(threading.enumerate())
    with Client(dsn) as client:
        client.queues()
        started = set(threading.enumerate()) - before
    assert started
    for thread in started:
        thread.join(10)
        assert not thread.is_alive(), thread.name


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"port": 1}, Unavailable, "cannot be reached"),
        ({"dbname": "no_such_database"}, SetupError, "does not exist"),
        ({"user": "no_such_user"}, SetupError, "no_such_user"),
    ],
)
@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_database_that_cannot_be_used_says_why(
    dsn: str, changes: dict[str, Any], kind: type[PenstockError], says: str, way: str
) -> None:
    password = str(conninfo_to_dict(dsn).get("password") or "s3cr3t")
    address = make_conninfo(dsn, password=password, **changes)
    with pytest.raises(kind) as caught:
        Client(address, connect_timeout=2) if way == "sync" else run_async(address, lambda c: c.queues())
    assert says in str(caught.value)
    assert password not in str(caught.value)


@pytest.mark.parametrize("url", ["mysql://somewhere", "nonsense", "postgresql://%zz"])
def test_an_address_that_is_none_says_so(url: str) -> None:
    with pytest.raises(SetupError, match="PENSTOCK_URL"):
        Client(url)


def test_a_connection_is_in_utf8_and_named(client: Client, sql: Connection) -> None:
    with client.transaction() as tx:
        assert tx.connection.info.encoding == "utf-8"
    names = sql.execute("SELECT DISTINCT application_name FROM pg_stat_activity").fetchall()
    assert ("penstock",) in names


def test_the_connection_of_a_failed_call_serves_the_next_one(dsn: str) -> None:
    with Client(dsn, pool_size=1) as client:
        for _ in range(3):
            with pytest.raises(LookupError):
                client.read("none", "0")
        assert client.queues() == []


def test_a_call_after_many_idle_connections_died_does_not_wait_for_each_of_them(dsn: str, sql: Connection) -> None:
    with Client(dsn, notify=False) as client:
        client.push("q", "x")
        together = threading.Barrier(4)

        def hold() -> None:
            with client.transaction() as tx:
                tx.push("q", "x")
                together.wait(30)

        holders = [threading.Thread(target=hold) for _ in range(4)]
        for holder in holders:
            holder.start()
        for holder in holders:
            holder.join()
        sql.execute(KILL)
        while sql.execute(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'penstock'"
        ).fetchone():
            pass
        began = time.monotonic()
        client.push("q", "x")
        # The pool's own check would wait for one second, two seconds, four seconds.
        assert time.monotonic() - began < 3


def test_an_event_loop_ends_though_a_pool_that_nobody_closed_is_connecting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = make_conninfo(host="127.0.0.1", port=silent.getsockname()[1], sslmode="disable")

        async def main() -> None:
            pool = AsyncPool(address, open=False)
            await pool.open()
            accepted.append((await asyncio.to_thread(silent.accept))[0])

        accepted: list[socket.socket] = []
        running = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
        running.start()
        running.join(20)
        accepted[0].close()
        assert not running.is_alive()
