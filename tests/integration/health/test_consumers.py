"""Consumers report how they fare, by themselves and in batches; one whose handlers fail stops and lets others work."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from clocks import Clock
from databases import Connection, Connections
from penstock import Client
from penstock.broker.health import ConsumerHealth, ConsumerInfo, GroupHealth
from penstock.broker.operations.health import ReportHealth
from penstock.consuming import reporting
from penstock.consuming.breaker import BreakerSettings


def until(look: Callable[[], Any], within: float = 20.0) -> Any:
    """Look again and again until there is something."""
    deadline = time.monotonic() + within
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)
    return found


def test_a_loop_makes_its_consumer_known_and_counts_what_it_handled(client: Client, dsn: str) -> None:
    client.push("orders", [b"%d" % number for number in range(10)], partition="p")

    with Client(dsn) as worker:
        worker.process("orders", lambda message: None, group="billing", idle_timeout=0)
        name = worker.consumer_id
    [consumer] = client.consumers()
    assert (consumer.consumer_id, consumer.status) == (name, "gone")
    assert (consumer.success_count, consumer.error_count, consumer.consecutive_errors) == (10, 0, 0)
    assert consumer.metadata is not None
    assert consumer.metadata["groups"] == ["orders/billing"]
    assert consumer.avg_processing_time is not None
    assert consumer.p99_processing_time is not None


@pytest.mark.parametrize("prefetch", [0, 10])
def test_failures_are_counted_with_the_error_that_came_last(client: Client, dsn: str, prefetch: int) -> None:
    client.create_group("orders", "billing", max_attempts=1)
    client.push("orders", [b"good", b"bad", b"good"], partition="p")

    def handle(message: Any) -> None:
        if message.value == b"bad":
            raise ValueError("it is bad")

    with Client(dsn) as worker:
        worker.process("orders", handle, group="billing", idle_timeout=0, prefetch=prefetch)
    [consumer] = client.consumers()
    assert (consumer.success_count, consumer.error_count, consumer.consecutive_errors) == (2, 1, 0)
    assert consumer.last_error == "ValueError: it is bad"


def test_batches_of_consume_count_by_what_became_of_them(client: Client, dsn: str) -> None:
    client.create_group("orders", "billing", max_attempts=1)
    for number in range(4):
        client.push("orders", [b"1", b"2"], partition=f"p{number}")
    with Client(dsn) as worker:
        for number, batch in enumerate(worker.consume("orders", "billing", idle_timeout=0)):
            if number == 0:
                batch.ack()
            elif number == 1:
                batch.nack(reason="no")
            elif number == 2:
                batch.release()
                break
    [consumer] = client.consumers()
    assert (consumer.success_count, consumer.error_count) == (2, 1)


def test_a_client_that_only_pushes_or_gets_nothing_is_no_consumer(client: Client, dsn: str) -> None:
    with Client(dsn) as other:
        other.push("orders", b"1")
        assert other.pop("other") is None
    assert client.consumers() == []


def test_with_metrics_off_nothing_is_reported(client: Client, dsn: str) -> None:
    client.push("orders", b"1")
    with Client(dsn, metrics=False) as worker:
        worker.process("orders", lambda message: None, idle_timeout=0)
    assert client.consumers() == []


def test_a_running_consumer_is_seen_and_an_idle_one_writes_at_most_twice_a_minute(
    client: Client, sql: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "TICK", 0.05)
    monkeypatch.setattr(reporting, "HEARTBEAT", 1.0)
    stop = threading.Event()
    thread = threading.Thread(target=lambda: list(client.consume("orders", "billing", stop=stop)))
    thread.start()
    try:
        [consumer] = until(client.consumers)
        assert (consumer.status, consumer.success_count) == ("healthy", 0)
        [(first,)] = sql.execute("SELECT report_number FROM penstock.consumer_health").fetchall()
        began = time.monotonic()
        # One a heartbeat, although it looks twenty times as often.
        until(
            lambda: sql.execute(
                "SELECT 1 FROM penstock.consumer_health WHERE report_number >= %s", (first + 2,)
            ).fetchall()
        )
        assert time.monotonic() - began > 0.9
    finally:
        stop.set()
        thread.join()


def test_the_child_goes_with_its_parent(client: Client, sql: Connection) -> None:
    _report(client, "a")
    sql.execute("DELETE FROM penstock.consumers")
    assert sql.execute("SELECT count(*) FROM penstock.consumer_health").fetchall() == [(0,)]


def test_a_consumer_is_created_once_by_sql_callers_too(sql: Connection) -> None:
    made = [
        sql.execute("SELECT penstock.ensure_consumer_exists('me', 'first', '{\"a\": 1}')").fetchone(),
        sql.execute("SELECT penstock.ensure_consumer_exists('me', 'second')").fetchone(),
    ]
    assert made == [(True,), (False,)]
    assert sql.execute("SELECT description, metadata FROM penstock.consumers").fetchall() == [("second", {"a": 1})]
    for wrong in ("", "x" * 256, None):
        with pytest.raises(Exception, match="1 to 255 bytes"):
            sql.execute("SELECT penstock.ensure_consumer_exists(%s::text)", (wrong,))


def test_one_that_was_not_seen_for_a_while_is_gone_and_deleted_after_a_day(fresh: Connections) -> None:
    clock = Clock(fresh.open(autocommit=True))
    with Client(fresh.dsn) as client:
        _report(client, "a")
        assert _statuses(client) == {"a": "healthy"}
        clock.pass_by(91)
        assert _statuses(client) == {"a": "gone"}
        # A clock that goes back makes nobody gone who was just here.
        clock.pass_by(-3600)
        assert _statuses(client) == {"a": "healthy"}
        clock.pass_by(3600 + 86400)
        list(client.maintain())
        assert client.consumers() == []


def test_bad_reports_are_refused_and_change_nothing(client: Client, sql: Connection) -> None:
    wrong = [
        ("'a', 0, 'healthy', 0, 0, 0, NULL, NULL, NULL", "report_number must be above 0"),
        ("'a', 1, 'fine', 0, 0, 0, NULL, NULL, NULL", "status is fine but must be one of"),
        ("'a', 1, 'healthy', -1, 0, 0, NULL, NULL, NULL", "no count may be null or negative"),
        ("'a', 1, 'healthy', 0, 0, 0, NULL, NULL, NULL, NULL, NULL, '{q}'", "must be of one length"),
    ]
    for arguments, message in wrong:
        with pytest.raises(Exception, match=message):
            sql.execute(f"SELECT penstock.report_health({arguments})".encode())
    assert client.consumers() == []


def test_groups_that_do_not_exist_are_left_out(client: Client) -> None:
    report = ReportHealth("a", 1, ConsumerHealth("healthy"), [GroupHealth("no", "such", 0, 99, 99, "no")])
    assert client._transport.run(report) == []


def test_errors_with_characters_that_cannot_be_stored_are_reported(client: Client) -> None:
    client._transport.run(ReportHealth("a", 1, ConsumerHealth("degraded", 0, 1, 1, None, None, "nul \0 half \ud800")))
    [consumer] = client.consumers()
    assert consumer.last_error == "nul \\x00 half \\ud800"


# The breaker of one consumer


@pytest.fixture
def failing(client: Client) -> Client:
    """A group whose breakers open after three errors; that of the group never, as another consumer succeeds."""
    client.create_group("orders", "billing", breaker_errors=3, breaker_pause=30, max_attempts=30000, backoff_initial=0)
    return client


@pytest.mark.parametrize("prefetch", [0, 20])
def test_a_consumer_that_fails_stops_and_what_it_holds_goes_to_others_at_once(
    failing: Client, dsn: str, prefetch: int
) -> None:
    for number in range(20):
        failing.push("orders", b"%d" % number, partition=f"p{number}")
    calls, stop = [], threading.Event()

    def fail(message: Any) -> None:
        calls.append(message)
        raise OSError("no disk")

    with Client(dsn, metrics=False) as bad:
        # Its settings come with the reply to its first report, which it does not make here.
        bad.reports.tally("orders", "billing").breaker.settings = BreakerSettings(errors=3, pause=3600)
        thread = threading.Thread(
            target=lambda: bad.process(
                "orders", fail, group="billing", stop=stop, prefetch=prefetch, max_messages=1, handle_signals=False
            )
        )
        thread.start()
        until(lambda: not bad.reports.tally("orders", "billing").breaker.is_closed)
        # All of them, although the lease of what the other one had claimed ahead lasts for minutes.
        seen: set[bytes | None] = set()
        with Client(dsn) as good:
            until(lambda: _take_all(good, seen) == 20)
        assert len(calls) == 3
        stop.set()
        thread.join()


@pytest.mark.parametrize("prefetch", [0, 20])
def test_it_tries_one_message_after_the_pause_and_goes_on_when_that_succeeds(
    failing: Client, dsn: str, prefetch: int
) -> None:
    failing.configure_group("orders", "billing", breaker_errors=0)
    failing.push("orders", [b"%d" % number for number in range(30)], partition="p")
    calls: list[float] = []

    def fail_at_first(message: Any) -> None:
        calls.append(time.monotonic())
        if len(calls) <= 4:
            raise OSError("no disk")

    with Client(dsn, metrics=False) as worker:
        breaker = worker.reports.tally("orders", "billing").breaker
        breaker.settings = BreakerSettings(errors=3, pause=0.3, pause_max=10)
        worker.process("orders", fail_at_first, group="billing", idle_timeout=2, prefetch=prefetch, concurrency=2)
    assert len(calls) == 34
    # Three errors, a pause, one probe that fails, a pause twice as long, one that succeeds, and then all the others.
    assert calls[3] - calls[2] >= 0.29
    assert calls[4] - calls[3] >= 0.59
    assert breaker.is_closed


def test_resetting_a_consumer_closes_its_breaker_and_lets_it_count_from_0(
    failing: Client, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "TICK", 0.05)
    monkeypatch.setattr(reporting, "HEARTBEAT", 0.2)
    failing.configure_group("orders", "billing", breaker_pause=3600)
    failing.push("orders", [b"%d" % number for number in range(10)], partition="p")
    # Another consumer is well, so that the group is not held.
    well = ReportHealth("well", 1, ConsumerHealth("healthy", 1), [GroupHealth("orders", "billing", 1)])
    failing._transport.run(well)
    broken, stop = threading.Event(), threading.Event()
    done: list[Any] = []
    broken.set()

    def handle(message: Any) -> None:
        if broken.is_set():
            raise OSError("no disk")
        done.append(message)

    with Client(dsn) as worker:

        def seen() -> tuple[str, int] | None:
            found = [
                (one.status, one.error_count) for one in failing.consumers() if one.consumer_id == worker.consumer_id
            ]
            return found[0] if found else None

        thread = threading.Thread(
            target=lambda: worker.process("orders", handle, group="billing", stop=stop, handle_signals=False)
        )
        thread.start()
        try:
            until(lambda: (seen() or ("", 0))[0] == "open")
            assert [breaker.state for breaker in failing.breakers()] == ["closed"]
            broken.clear()
            assert not failing.reset_consumer(worker.consumer_id)
            until(lambda: len(done) == 10)
            until(lambda: seen() == ("healthy", 0))
            assert worker.reports.tally("orders", "billing").breaker.is_closed
        finally:
            stop.set()
            thread.join()


PROGRAM = """
import sys
from penstock import Client

def handle(message):
    if sys.argv[2] == "bad":
        raise OSError("no disk")
    print(message.offset, flush=True)

with Client(sys.argv[1]) as client:
    client.process("orders", handle, group="billing", max_messages=1)
"""


def test_of_two_processes_the_one_that_fails_leaves_the_work_to_the_other(client: Client, dsn: str) -> None:
    client.create_group(
        "orders", "billing", mode="shared", breaker_errors=5, breaker_pause=60, max_attempts=100, backoff_initial=0
    )
    # Settings reach a consumer with the reply to its first report, so that both are known before there is work.
    processes = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, dsn, kind], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for kind in ("bad", "good")
    ]
    try:
        until(lambda: len(client.consumers()) == 2)
        client.push("orders", [b"%d" % number for number in range(300)])
        until(lambda: client.lag("orders", "billing") == 0, within=60)
        statuses = until(lambda: {one.status: one for one in client.consumers() if one.status == "open"})
        assert 5 <= statuses["open"].error_count < 60
        assert statuses["open"].last_error == "OSError: no disk"
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate(timeout=20)


def test_a_process_that_is_killed_is_gone_after_a_while(fresh: Connections) -> None:
    clock = Clock(fresh.open(autocommit=True))
    with Client(fresh.dsn) as client:
        client.create_group("orders", "billing")
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, fresh.dsn, "good"], stdout=subprocess.DEVNULL)
        try:
            until(lambda: _status_list(client) == ["healthy"])
        finally:
            process.kill()
            process.wait()
        clock.pass_by(120)
        assert _status_list(client) == ["gone"]


def _take_all(client: Client, seen: set[bytes | None]) -> int:
    while (batch := client.pop("orders", "billing", wait=0.2)) is not None:
        seen.update(message.value for message in batch)
        batch.ack()
    return len(seen)


def _report(client: Client, consumer: str) -> None:
    client._transport.run(ReportHealth(consumer, 1, ConsumerHealth("healthy", 1), []))


def _statuses(client: Client) -> dict[str, str]:
    return {one.consumer_id: one.status for one in client.consumers()}


def _status_list(client: Client) -> list[str]:
    found: list[ConsumerInfo] = client.consumers()
    return [one.status for one in found]
