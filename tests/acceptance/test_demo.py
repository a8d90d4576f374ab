"""The demo: it shows the main job, checks itself, and leaves nothing behind, however it ends."""

import signal
import time
from pathlib import Path

import psycopg
import pytest

from acceptance.commandline import CommandLine, Running
from penstock import Client


def consumers_of(queues: list[bytes]) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"penstock.demo.worker" in words and any(queue in words for queue in queues):
            found.append(int(place.parent.name))
    return found


def at_work(running: Running, client: Client) -> list[bytes]:
    """Wait until the demo has its consumers at work; return the names of its queues."""
    while not running.line().startswith("8. "):
        pass
    queues = [queue.name.encode() for queue in client.queues()]
    assert len(queues) == 4
    deadline = time.monotonic() + 30
    while not consumers_of(queues) and time.monotonic() < deadline:
        pass
    assert consumers_of(queues)
    return queues


@pytest.mark.timeout(300)
def test_the_demo_shows_the_main_job_and_cleans_up(penstock: CommandLine, client: Client, dsn: str) -> None:
    result = penstock("demo")
    assert result.stderr == ""
    table = [" ".join(line.split()) for line in result.lines]
    for line in (
        "messages read, of those pushed: 20204 ✓",
        "taken by it: 20 ✓",
        "customers billed out of order: 0 ✓",
        "redriven: 1 ✓",
        "pushed 2,000 ✓",
        "delivered to billing 2,000 ✓",
        "delivered to mailer 2,000 ✓",
        "redelivered to billing 22 ✓",
        "redelivered to mailer 0 ✓",
        "dead letters 0 ✓",
        "lag of billing 0 ✓",
        "lag of mailer 0 ✓",
        "verify 0 ✓",
        "large payments of each customer, as Python counts them: 40 ✓",
        "large payments written: 1000 ✓",
        "lag of the Spark query: 0 ✓",
    ):
        assert line in table
    assert result.lines[-1].startswith("All counts are correct")
    assert (client.queues(), client.groups()) == ([], [])
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall() == []


def test_the_demo_fails_when_a_number_is_wrong(penstock: CommandLine, client: Client) -> None:
    with penstock.running("demo") as running:
        [_, _, invoices, _] = at_work(running, client)
        assert invoices.endswith(b"-invoices")
        # An order that the demo knows nothing of.
        client.push(invoices.decode(), {"order": 0, "cents": 0}, partition="customer-5")
        result = running.wait()
    assert result.code == 1
    assert "the demo found something wrong: orders " in result.stderr
    assert client.queues() == []


def test_an_interrupted_demo_leaves_nothing_behind(penstock: CommandLine, client: Client) -> None:
    with penstock.running("demo") as running:
        queues = at_work(running, client)
        result = running.end(signal.SIGINT)
    assert (result.code, result.stderr) == (130, "penstock: interrupted\n")
    assert consumers_of(queues) == []
    assert client.queues() == []


def test_consumers_end_also_when_the_demo_is_killed(penstock: CommandLine, client: Client) -> None:
    with penstock.running("demo") as running:
        queues = at_work(running, client)
        running.process.kill()
        running.process.wait()
    deadline = time.monotonic() + 30
    while consumers_of(queues) and time.monotonic() < deadline:
        pass
    assert consumers_of(queues) == []
