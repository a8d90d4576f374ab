"""What waits is sampled from positions, in steps: it agrees with what counting finds, and costs little."""

import threading
import time
from collections.abc import Iterator

import pytest
from groups.test_plans import cost, grow

from clocks import Clock
from databases import Connection, Connections
from penstock import Client
from penstock.broker.operations.metrics import Sample


@pytest.fixture
def client(fresh: Connections) -> Iterator[Client]:
    """A client of a database whose clock may be replaced."""
    with Client(fresh.dsn, metrics=False) as client:
        yield client


@pytest.fixture
def clock(fresh: Connections) -> Clock:
    """A clock of the test's own."""
    return Clock(fresh.open(autocommit=True))


def sample(client: Client, max_entries: int = 1000) -> int:
    """Sample to the end, and return how many steps that took."""
    steps = 1
    while not client.sample(max_entries=max_entries):
        steps += 1
    return steps


def in_all_states(client: Client) -> None:
    """Leave partitions and ranges that are ready, claimed, in backoff and done, in an ordered and a shared group."""
    client.create_group("orders", "ordered")
    client.create_group("orders", "shared", mode="shared")
    for number in range(6):
        client.push("orders", [b"x"] * (number + 1), partition=f"p{number}")
    for group in ("ordered", "shared"):
        done = client.pop("orders", group)
        held = client.pop("orders", group, max_messages=2)
        failed = client.pop("orders", group)
        assert done
        assert held
        assert failed
        done.ack()
        failed.nack(delay=60)


@pytest.mark.parametrize("step", [1, 2, 1000])
def test_a_sample_agrees_with_what_list_groups_counts(client: Client, step: int) -> None:
    in_all_states(client)
    sample(client, step)
    sampled = {
        work.group: (work.lag, work.cold, work.ready, work.claimed, work.waiting) for work in client.work("orders")
    }
    counted = {
        info.name: (info.lag, info.depth, info.ready, info.claimed, info.waiting) for info in client.groups("orders")
    }
    assert sampled == counted
    assert counted["ordered"][0] > counted["ordered"][1] > 0


def test_the_oldest_message_and_its_did_are_found(client: Client) -> None:
    client.create_group("orders", "billing")
    client.push("orders", b"newer", partition="b", headers={"penstock-did": "of another"})
    first = client.push("orders", b"old", partition="a", headers={"penstock-did": "entered first"})
    client.push("orders", b"newest", partition="c")
    batch = client.pop("orders", "billing", partition="b")
    assert batch is not None
    batch.ack()
    sample(client)
    [work] = client.work()
    assert (work.oldest_id, work.oldest_did) == (str(first.ids[0]), "entered first")
    assert work.oldest_at == client.get(first.ids[0]).timestamp


def test_without_a_header_the_did_is_the_messages_own_id(client: Client) -> None:
    client.create_group("orders", "billing")
    pushed = client.push("orders", b"1")
    sample(client)
    [work] = client.work()
    assert work.oldest_did == str(pushed.ids[0])


def test_work_is_known_by_the_action_of_its_group(client: Client, fresh: Connections) -> None:
    fresh.open(autocommit=True).execute(
        "SELECT penstock.register_flow('images', 'TRANSFORM', '{in}', '{out}', 'one', '/c', '{resize}',"
        " '{app.resize}', '{p:1}')"
    )
    client.create_group("in", "images.resize")
    client.create_group("in", "plain")
    client.push("in", b"1")
    sample(client)
    found = {work.group: (work.action_class, work.flow, work.action, work.flow_type) for work in client.work()}
    assert found == {
        "images.resize": ("app.resize", "images", "resize", "TRANSFORM"),
        "plain": (None, None, None, "UNKNOWN"),
    }


def test_a_group_that_has_caught_up_is_sampled_at_zero(client: Client) -> None:
    client.create_group("orders", "billing")
    client.push("orders", b"1")
    sample(client)
    batch = client.pop("orders", "billing")
    assert batch is not None
    batch.ack()
    client.sweep()
    sample(client)
    [work] = client.work()
    assert (work.lag, work.cold, work.oldest_at) == (0, 0, None)


def test_a_sample_without_change_writes_nothing(client: Client, fresh: Connections) -> None:
    in_all_states(client)
    sample(client)
    connection = fresh.open(autocommit=True)

    def state() -> list[tuple[object, ...]]:
        return connection.execute(
            "SELECT xmin::text, sampled_at FROM penstock.group_samples"
            ' UNION ALL SELECT xmin::text, "timestamp" FROM penstock.queue_metrics ORDER BY 1, 2'
        ).fetchall()

    before = state()
    sample(client)
    assert state() == before


def test_series_grow_once_a_minute_and_only_by_what_changed(client: Client, clock: Clock) -> None:
    client.create_group("orders", "billing")
    for _ in range(4):
        client.push("orders", b"1")
        sample(client)
        clock.pass_by(30)
    [work] = client.work()
    assert (work.lags, work.lag) == ([1, 3], 4)
    lags = [metric.metric_value for metric in client.metrics("orders", "lag")]
    assert lags == [3, 1]
    assert client.metrics("orders", "lag")[0].labels == {"group": "billing"}


def test_a_clock_that_is_set_back_does_not_stop_samples(client: Client, clock: Clock) -> None:
    client.create_group("orders", "billing")
    client.push("orders", b"1")
    sample(client)
    clock.pass_by(-86400)
    client.push("orders", b"2")
    sample(client)
    [work] = client.work()
    assert (work.lag, work.sampled_at, work.lags) == (2, clock.now, [1, 2])


def test_one_samples_at_a_time_and_nobody_waits(client: Client, fresh: Connections) -> None:
    holder = fresh.open()
    holder.execute("SELECT * FROM penstock.sample()")
    began = time.monotonic()
    assert client.sample() is False
    assert time.monotonic() - began < 5
    holder.rollback()
    assert client.sample() is True


def test_a_sample_whose_process_died_is_continued_by_another(client: Client, fresh: Connections) -> None:
    in_all_states(client)
    one = fresh.open(autocommit=True)
    one.execute("SELECT * FROM penstock.sample(2)")
    one.close()
    sample(client, 2)
    assert {work.group: work.lag for work in client.work()} == {info.name: info.lag for info in client.groups()}


@pytest.mark.parametrize("known", [True, False], ids=["sampled before", "new"])
@pytest.mark.parametrize("what", ["delete_group('orders', 'billing')", "delete_queue('orders')"])
def test_a_group_that_somebody_is_deleting_is_left_out_and_nobody_waits(
    client: Client, fresh: Connections, what: str, known: bool
) -> None:
    client.create_group("orders", "billing", max_attempts=1)
    client.create_group("others", "billing")
    if known:
        client.push("orders", b"1", partition="p")
        sample(client)
    for queue in ("orders", "others"):
        client.push(queue, [b"2", b"3"], partition="p")
    failing = client.pop("orders", "billing", max_messages=1)
    assert failing is not None
    failing.nack(reason="no")
    deleting = fresh.open()
    deleting.execute(f"SELECT penstock.{what}".encode())

    sample(client)
    deleting.commit()

    assert [(work.queue, work.lag) for work in client.work()] == [("others", 2)]
    sample(client)


def test_in_the_background_a_step_is_followed_by_a_pause_whoever_calls(client: Client, clock: Clock) -> None:
    in_all_states(client)
    assert client.sample(max_entries=1, min_age=15) is False
    assert client._transport.run(Sample(1, 15.0)) == (0, False)
    clock.pass_by(30)
    assert client._transport.run(Sample(1, 15.0)) == (1, False)
    # A clock that is set back makes nobody wait for it.
    clock.pass_by(-3600)
    assert client._transport.run(Sample(1, 15.0)) == (1, False)
    sample(client, 100)
    # The last one is young.
    client.push("orders", b"more", partition="p9")
    assert client._transport.run(Sample(100, 15.0)) == (0, True)
    clock.pass_by(16)
    assert client._transport.run(Sample(100, 15.0)) != (0, True)


def test_new_dead_letters_are_counted_once_whoever_made_them(client: Client, clock: Clock, fresh: Connections) -> None:
    client.create_group("orders", "billing", max_attempts=1)
    client.push("orders", [b"1", b"2"], partition="p")
    batch = client.pop("orders", "billing", max_messages=1)
    assert batch is not None
    batch.nack(reason="no")
    # A lease that runs out: the sweep makes the dead letter, and no client knows of it.
    assert client.pop("orders", "billing", max_messages=1) is not None
    fresh.open(autocommit=True).execute("UPDATE penstock.journal SET due_at = now() - interval '1 s' WHERE state = 'c'")
    client.sweep()
    assert len(client.dead_letters("orders")) == 2
    sample(client)
    sample(client)
    assert [metric.metric_value for metric in client.metrics("orders", "dead_lettered")] == [2]


def test_samples_beside_live_traffic_end_with_the_truth(client: Client, fresh: Connections) -> None:
    client.create_group("orders", "billing")
    stop = threading.Event()

    def work() -> None:
        with Client(fresh.dsn, metrics=False) as other:
            for number in range(300):
                other.push("orders", b"x", partition=f"p{number % 20}")
                if number % 3 and (batch := other.pop("orders", "billing")) is not None:
                    batch.ack()
        stop.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not stop.is_set():
        client.sample(max_entries=3)
    thread.join()
    sample(client, 3)
    sample(client, 3)
    client.sweep()
    [info] = client.groups("orders")
    assert [found.lag for found in client.work()] == [info.lag]


def test_a_step_costs_the_same_however_many_partitions_wait(client: Client, fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    client.create_group("orders", "billing")
    buffers = []
    for partitions in (200, 4000):
        client.push_many("orders", [(f"{partitions}-{number}", b"x") for number in range(partitions)])
        sample(client, 100_000)
        sql.execute("SELECT * FROM penstock.sample(100)")
        plan = _buffers(sql, "SELECT * FROM penstock.sample(100)")
        buffers.append(plan)
        sample(client, 100_000)
    assert buffers[1] < 1.6 * buffers[0]


def _buffers(sql: Connection, statement: str) -> int:
    """Return how many pages a statement touches."""
    [(plan,)] = sql.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}".encode()).fetchall()
    top = plan[0]["Plan"]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])


def test_what_is_listed_of_very_many_partitions_is_what_was_sampled_and_costs_no_more(
    client: Client, fresh: Connections
) -> None:
    sql = fresh.open(autocommit=True)
    client.create_group("q", "g")
    grow(sql, 1, 15_000)
    # Both times: autovacuum may come or not, and halves what is looked at.
    sql.execute("VACUUM ANALYZE")
    listed = cost(sql, "SELECT * FROM penstock.list_groups('q')", ())
    (many,) = client.groups("q")
    # Before the first sample nobody knows, and nobody looks at all of them.
    assert (many.at_least, many.lag, many.ready, many.sampled_at) == (True, 10_000, 10_000, None)
    grow(sql, 15_001, 30_000)
    sql.execute("VACUUM ANALYZE")
    for listing in ("list_groups('q')", "list_flows()", "list_action_work()", "lag('q', 'g')"):
        assert cost(sql, f"SELECT * FROM penstock.{listing}", ()) < 1.2 * listed
    sample(client, 10_000)
    (more,) = client.groups("q")
    assert (more.at_least, more.lag, more.depth, more.ready) == (False, 30_000, 30_000, 30_000)
    assert more.sampled_at is not None
    assert client.lag("q", "g") == 30_000
