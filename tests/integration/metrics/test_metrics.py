"""Series per queue: what clients count is recorded in batches, goes with its queue, and is read as one index range."""

import gc
import re
import threading
import time
import weakref
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clocks import Clock
from databases import Connection, Connections
from penstock import Client, NotFound
from penstock.broker.metrics import Measured
from penstock.broker.operations.metrics import RecordMetrics
from penstock.consuming import reporting


def newest(client: Client, queue: str) -> dict[tuple[str, str | None], int]:
    """Return the newest value of each series."""
    return {
        (metric.metric_name, (metric.labels or {}).get("group")): metric.metric_value
        for metric in reversed(client.metrics(queue, limit=1000))
    }


def test_what_a_client_pushed_and_handled_is_recorded_when_it_ends(client: Client, dsn: str) -> None:
    client.create_group("orders", "billing", max_attempts=1)
    with Client(dsn) as other:
        other.push("orders", [b"1", b"2", b"bad"], partition="p")
        other.push_many("orders", [("q", b"4")])
        with other.transaction() as tx:
            tx.push("orders", b"5", partition="r")

        def handle(message: Any) -> None:
            if message.value == b"bad":
                raise ValueError("no")

        other.process("orders", handle, group="billing", idle_timeout=0)
        assert client.metrics("orders") == []
    found = newest(client, "orders")
    assert found["pushed", None] == 5
    counts = {
        name: found["delivered" if name == "delivered" else name, "billing"]
        for name in ("delivered", "acked", "failed")
    }
    assert counts == {"delivered": 5, "acked": 4, "failed": 1}
    assert found["batches", "billing"] == 3
    assert {("handling_p99_us", "billing"), ("wait_p50_us", "billing"), ("wait_p99_us", "billing")} <= set(found)


def test_counts_are_recorded_while_it_runs_and_each_once(
    client: Client, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "TICK", 0.02)
    monkeypatch.setattr(reporting, "MEASURE", 0.05)
    monkeypatch.setattr(reporting, "_MUCH", 1)
    stop = threading.Event()
    with Client(dsn) as other:
        thread = threading.Thread(target=lambda: other.process("orders", lambda message: None, stop=stop))
        thread.start()
        for half in range(2):
            for number in range(100):
                other.push("orders", b"%d" % number, partition=f"p{number % 5}")
            while len(client.metrics("orders", "pushed")) <= half:
                pass
        while client.lag("orders"):
            pass
        stop.set()
        thread.join()
    sums: dict[str, int] = {}
    rows = client.metrics("orders", limit=10_000)
    for metric in rows:
        sums[metric.metric_name] = sums.get(metric.metric_name, 0) + metric.metric_value
    assert (sums["pushed"], sums["delivered"], sums["acked"]) == (200, 200, 200)
    assert len([metric for metric in rows if metric.metric_name == "pushed"]) > 1


def test_a_client_that_does_nothing_records_nothing(client: Client, dsn: str) -> None:
    client.create("orders")
    with Client(dsn) as other:
        other.queues()
    assert client.metrics("orders") == []


def test_a_client_that_nobody_closed_is_not_kept_by_what_it_has_still_to_record(dsn: str) -> None:
    client = Client(dsn)
    client.push("orders", b"1")
    transport = weakref.ref(client._transport)
    assert "penstock-reporter" in [thread.name for thread in threading.enumerate()]
    del client
    deadline = time.monotonic() + 30
    while transport() is not None:
        gc.collect()
        assert time.monotonic() < deadline


def test_metrics_go_with_their_queue_and_keep_it_when_it_is_renamed(client: Client, sql: Connection) -> None:
    client.create("orders")
    _record(client, "orders", pushed=1)
    sql.execute("UPDATE penstock.queues SET name = 'renamed'")
    assert [metric.metric_name for metric in client.metrics("renamed")] == ["pushed"]
    client.delete("renamed")
    assert sql.execute("SELECT count(*) FROM penstock.queue_metrics").fetchall() == [(0,)]


def test_values_of_queues_that_do_not_exist_are_left_out(client: Client) -> None:
    client.create("orders")
    assert client._transport.run(RecordMetrics([Measured("orders", "a", 1), Measured("no such", "a", 1)])) == 1
    with pytest.raises(NotFound):
        client.metrics("no such")


@pytest.mark.parametrize("name", ["", "Pushed", "a b", "x" * 64, "1st", "a;b"])
def test_a_metric_with_an_odd_name_is_refused_and_nothing_is_stored(client: Client, name: str) -> None:
    client.create("orders")
    with pytest.raises(Exception, match="a metric has a name of small letters"):
        client._transport.run(RecordMetrics([Measured("orders", "good", 1), Measured("orders", name, 1)]))
    assert client.metrics("orders") == []


def test_old_values_are_dropped_by_maintenance_by_the_setting_of_their_queue(fresh: Connections) -> None:
    clock = Clock(fresh.open(autocommit=True))
    with Client(fresh.dsn, metrics=False) as client:
        client.create("short", metrics_retention=60)
        client.create("long")
        for queue in ("short", "long"):
            _record(client, queue, pushed=1)
        clock.pass_by(61)
        list(client.maintain())
        assert [len(client.metrics(queue)) for queue in ("short", "long")] == [0, 1]
        clock.pass_by(7 * 86400)
        list(client.maintain())
        assert client.metrics("long") == []


def test_a_page_of_metrics_is_newest_first_and_may_be_of_one_series_or_since_a_time(fresh: Connections) -> None:
    clock = Clock(fresh.open(autocommit=True))
    with Client(fresh.dsn, metrics=False) as client:
        client.create("orders")
        for number in range(5):
            _record(client, "orders", pushed=number, acked=10 * number)
            clock.pass_by(10)
        assert [m.metric_value for m in client.metrics("orders", "pushed", limit=3)] == [4, 3, 2]
        since = clock.now - timedelta(seconds=20)
        assert [m.metric_value for m in client.metrics("orders", "acked", since=since)] == [40, 30]


@pytest.fixture(scope="module")
def big(penstock_server: str, penstock_template: str) -> Any:
    """A database with 200 queues, and 1,000 rows of metrics for each."""
    from conftest import _database

    with _database("metrics", penstock_server, penstock_template) as dsn, Client(dsn, metrics=False) as client:
        with client.transaction() as tx:
            tx.connection.execute("INSERT INTO penstock.queues (name) SELECT 'q' || n FROM generate_series(1, 200) n")
            tx.connection.execute(
                "INSERT INTO penstock.queue_metrics SELECT 'q' || q, 'm' || t % 10, t, now() - t * interval '6 s',"
                " jsonb_build_object('group', t % 3) FROM generate_series(1, 1000) t, generate_series(1, 200) q"
            )
            tx.connection.execute("ANALYZE penstock.queue_metrics")
        yield client


def test_the_query_of_the_document_is_one_range_of_an_index(big: Client) -> None:
    query = "SELECT * FROM penstock.queue_metrics WHERE queue_name = 'q7' ORDER BY timestamp DESC LIMIT 100"
    with big.transaction() as tx:
        plan = tx.connection.execute(f"EXPLAIN (ANALYZE, BUFFERS) {query}".encode()).fetchall()
    text = "\n".join(line for (line,) in plan)
    assert re.search(r"Index Scan using queue_metrics_by_time .*rows=100", text)
    assert "Sort" not in text
    assert "Filter" not in text
    [touched] = re.findall(r"Buffers: shared hit=(\d+)(?: read=\d+)?", text)[:1]
    assert int(touched) < 130


def test_the_function_reads_as_little(big: Client) -> None:
    with big.transaction() as tx:
        tx.connection.execute("SELECT count(*) FROM penstock.list_metrics('q7')")
        [(plan,)] = tx.connection.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM penstock.list_metrics('q8')"
        ).fetchall()
    top = plan[0]["Plan"]
    assert top["Shared Hit Blocks"] + top["Shared Read Blocks"] < 150


def _record(client: Client, queue: str, **values: int) -> None:
    client._transport.run(RecordMetrics([Measured(queue, name, value) for name, value in values.items()]))


def test_times_are_of_the_moment_of_recording(client: Client) -> None:
    client.create("orders")
    _record(client, "orders", pushed=1)
    [metric] = client.metrics("orders")
    assert abs(datetime.now(UTC) - metric.timestamp) < timedelta(minutes=1)
