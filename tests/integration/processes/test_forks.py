"""A client that was made before a fork: each process has its own, and none loses or spoils what is another's."""

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from databases import Connection
from penstock import AsyncClient, Client, forks

FORK = multiprocessing.get_context("fork")
SOON = 20.0
_shared: list[Any] = []


@pytest.fixture
def shared(client: Client) -> Any:
    """A client that children find in a module, as they do after `gunicorn --preload`."""
    _shared.append(client)
    yield client
    _shared.clear()


def in_child(work: Callable[[], object]) -> int:
    """Run something in a forked child and return its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def join(child: int) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def until(condition: Callable[[], Any]) -> None:
    """Look again and again until a condition holds."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def push_one(number: int) -> None:
    _shared[0].push("q", number)


def drain(_: int) -> list[int]:
    found = []
    for batch in _shared[0].consume("q", "g", max_messages=5, idle_timeout=0.1):
        with batch:
            found += [message.json() for message in batch.messages]
    return found


def sessions(sql: Connection, application: str = "penstock") -> set[int]:
    """Return the server's processes that serve clients of penstock."""
    found = sql.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s", (application,)
    ).fetchall()
    return {pid for (pid,) in found}


def test_a_pool_of_processes_stores_every_message_that_it_pushes(shared: Client) -> None:
    shared.push("q", -1)
    with FORK.Pool(4) as pool:
        pool.map(push_one, range(100), chunksize=5)
    shared.push("q", 100)
    assert sorted(message.json() for message in shared.read("q", "0")) == list(range(-1, 101))


def test_parent_and_child_that_push_at_the_same_time_get_different_offsets(client: Client) -> None:
    client.push("q", "before")
    reader, writer = os.pipe()
    child = in_child(lambda: os.write(writer, str(client.push("q", "child").first_offset).encode()))
    parents = client.push("q", "parent").first_offset
    childs = int(os.read(reader, 10))
    join(child)
    assert {parents, childs} == {1, 2}
    assert sorted(message.json() for message in client.read("q", "0")) == ["before", "child", "parent"]


def test_consumers_in_children_share_the_messages(shared: Client) -> None:
    shared.push_many("q", [(f"p{number % 8}", number) for number in range(80)])
    batch = shared.pop("q", "g", max_messages=5)
    assert batch
    ours = [message.json() for message in batch.messages]
    batch.ack()
    with FORK.Pool(3) as pool:
        theirs = [number for found in pool.map(drain, range(3), chunksize=1) for number in found]
    assert sorted(ours + theirs) == list(range(80))
    assert shared.lag("q", "g") == 0


def test_a_child_says_nothing_on_its_parents_connections(client: Client, sql: Connection) -> None:
    client.push("q", 1)
    before = sessions(sql)

    def collect_and_close() -> None:
        import gc

        client.push("q", 2)
        client.close()
        gc.collect()

    join(in_child(collect_and_close))
    assert before <= sessions(sql)
    assert client.push("q", 3).first_offset == 2
    assert before <= sessions(sql)


def test_the_server_notices_the_end_of_the_parent_while_its_child_lives(dsn: str, sql: Connection) -> None:
    reader, writer = os.pipe()

    def parent() -> None:
        client = Client(f"{dsn} application_name=ending")
        client.push("q", 1)
        if os.fork() == 0:
            os.read(reader, 1)
            os._exit(0)
        # Ends without a word to the server, as one that is killed does.

    join(in_child(parent))
    try:
        # Other tests of this process may have left clients behind, which connect anew.
        until(lambda: not sessions(sql, "ending"))
    finally:
        os.write(writer, b"x")


def test_a_fork_waits_for_a_connection_that_is_being_opened() -> None:
    opening, opened = threading.Event(), threading.Event()

    def connect() -> None:
        with forks.opening():
            opening.set()
            threading.Timer(0.2, opened.set).start()
            opened.wait()

    def check() -> None:
        # Of this process's own opening nothing is left, so it may open one.
        assert opened.is_set()
        with forks.opening():
            pass

    connecting = threading.Thread(target=connect)
    connecting.start()
    opening.wait()
    join(in_child(check))
    connecting.join()


def test_a_fork_does_not_wait_long_for_a_connection_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_OPENED_WITHIN", 0.01)
    with forks.opening():
        join(in_child(lambda: None))


def test_a_client_that_was_closed_before_the_fork_stays_closed(dsn: str) -> None:
    client = Client(dsn)
    client.close()

    def use() -> None:
        with pytest.raises(Exception, match="closed"):
            client.push("q", 1)

    join(in_child(use))


def test_an_asynchronous_client_is_made_anew_in_the_child(dsn: str, client: Client, sql: Connection) -> None:
    twin = AsyncClient(dsn, notify=True)
    runner = asyncio.Runner()

    async def push(*values: str) -> None:
        await asyncio.gather(*(twin.push("q", value) for value in values))

    async def take() -> None:
        batch = await twin.pop("q", "g", wait=1)
        assert batch
        await batch.ack()
        await twin.close()

    def use() -> None:
        asyncio.run(push("child 1", "child 2"))

    def use_and_close() -> None:
        async def work() -> None:
            await push("child 3")
            await take()

        asyncio.run(work())

    runner.run(push("parent 1", "parent 2"))
    before = sessions(sql)
    for work in (use, use_and_close):
        join(in_child(work))
    runner.run(push("parent 3"))
    assert before <= sessions(sql)
    runner.run(twin.close())
    runner.close()
    found = sorted(message.json() for message in client.read("q", "0"))
    assert found == [f"{who} {number}" for who in ("child", "parent") for number in (1, 2, 3)]
    assert client.lag("q", "g") == 1


def test_a_child_that_leaves_its_parents_loop_leaves_its_batch_alone(client: Client) -> None:
    client.push("q", 1)
    parent = os.getpid()
    try:
        for batch in client.consume("q", "g"):
            with batch:
                child = os.fork()
                if child == 0:
                    raise SystemExit
                join(child)
                assert len(client.claims("q", "g")) == 1
            break
    finally:
        if os.getpid() != parent:
            os._exit(0)
    assert client.lag("q", "g") == 0


@pytest.mark.parametrize("options", [{}, {"defer_acks": True}])
def test_a_child_that_goes_on_with_its_parents_loop_acknowledges_what_it_takes(
    client: Client, options: dict[str, Any]
) -> None:
    client.push_many("q", [(f"p{partition}", number) for partition in range(4) for number in range(5)])
    parent = os.getpid()
    try:
        for batch in client.consume("q", "g", max_messages=1, idle_timeout=0.2, **options):
            with batch:
                if os.getpid() == parent:
                    child = os.fork()
                    if child:
                        join(child)
                        break
    finally:
        if os.getpid() != parent:
            os._exit(0)
    # All but the partition whose first message the parent had in its hands.
    assert client.lag("q", "g") in (4, 5)
    assert client.claims("q", "g") == []


def test_a_child_that_is_forked_while_a_driver_is_imported_can_import_it() -> None:
    script = """
import os, threading, time
from penstock.valkey import connecting
imported = threading.Event()
def load():
    imported.set()
    connecting.load_driver()
threading.Thread(target=load).start()
imported.wait()
time.sleep(float(os.environ["PAUSE"]))
child = os.fork()
if child == 0:
    connecting.load_driver()
    os._exit(0)
deadline = time.monotonic() + 20
while time.monotonic() < deadline:
    if os.waitpid(child, os.WNOHANG)[0]:
        raise SystemExit(0)
    time.sleep(0.01)
os.kill(child, 9)
raise SystemExit("the child hangs")
"""
    for pause in ("0.002", "0.01", "0.03"):
        ran = subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PAUSE": pause}, capture_output=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
