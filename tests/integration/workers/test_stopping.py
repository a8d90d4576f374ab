"""Workers that are stopped, killed, or lose a lease: nothing is lost, and nothing is pushed twice."""

import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from databases import Connection
from penstock import Client

from .processes import handled, running, values


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(dsn) as client:
        yield client


@pytest.fixture(autouse=True)
def told(sql: Connection) -> Connection:
    sql.execute("CREATE TABLE public.told (what text)")
    return sql


def tell(told: Connection, *values: str) -> None:
    """Let handlers go on."""
    for value in values:
        told.execute("INSERT INTO public.told VALUES (%s)", (value,))


def said(client: Client, count: int) -> list[dict[str, Any]]:
    """Wait until so many handlers have begun."""
    return values(client, "said", count)


def delivered_again(client: Client, queue: str, action: str, count: int) -> list[tuple[str, int]]:
    """Take what was given back as another worker would: values and attempts."""
    found: list[tuple[str, int]] = []
    while len(found) < count:
        batch = client.pop(queue, f"waiting.{action}", wait=20)
        assert batch is not None, found
        found += [(message.json(), message.attempt) for message in batch]
    return found


def test_a_stopped_worker_finishes_what_runs_and_gives_back_the_rest_without_an_attempt(
    client: Client, told: Connection
) -> None:
    client.push("work", ["first", "second", "third"], partition="p")
    with running(client.dsn, "waiting.py", "--actions", "wait") as worker:
        said(client, 1)
        worker.say(signal.SIGTERM)
        worker.wait_for("stopping")
        tell(told, "first")
        assert worker.end() == 0
        worker.wait_for("handled")
    assert values(client, "results", 1) == ["first"]
    assert client.claims("work") == []
    assert delivered_again(client, "work", "wait", 2) == [("second", 1), ("third", 1)]


@pytest.mark.parametrize(
    ("queue", "results", "action"),
    [
        ("work", "results", "wait"),
        ("shared-work", "shared-results", "share"),
        ("child-work", "child-results", "child"),
    ],
)
def test_a_second_signal_gives_back_what_runs_without_an_attempt(
    client: Client, told: Connection, queue: str, results: str, action: str
) -> None:
    client.push(queue, ["first", "second"], partition="p")
    with running(client.dsn, "waiting.py", "--actions", action) as worker:
        said(client, 2 if action == "share" else 1)
        worker.say(signal.SIGTERM)
        worker.wait_for("stopping")
        worker.say(signal.SIGTERM)
        assert worker.end() == 0
    assert client.claims(queue) == []
    assert sorted(delivered_again(client, queue, action, 2)) == [("first", 1), ("second", 1)]
    assert results not in {each.name for each in client.queues()}


def test_what_outlasts_the_grace_is_given_back_without_an_attempt(client: Client, told: Connection) -> None:
    client.push("work", "first", partition="p")
    with running(client.dsn, "waiting.py", "--actions", "wait", "--grace", "0.1") as worker:
        said(client, 1)
        worker.say(signal.SIGINT)
        assert worker.end() == 0
    assert delivered_again(client, "work", "wait", 1) == [("first", 1)]


def test_a_handler_that_heeds_nothing_does_not_keep_its_worker_from_ending(client: Client) -> None:
    client.push("deaf", "anything")
    with running(client.dsn, "deaf.py", "--grace", "0") as worker:
        assert values(client, "heard", 1) == ["anything"]
        worker.say(signal.SIGTERM)
        assert worker.end() == 0
        worker.wait_for("handled")
    batch = client.pop("deaf", "deaf.hear", wait=20)
    assert batch is not None
    assert [message.attempt for message in batch] == [1]


@pytest.mark.parametrize(
    "tasks",
    [
        "[1]",
        "[{}]",
        '[{"flow": "f", "action": "a", "action_class": "c", "did": "x", "message_id": "x", "attempt": 1}]',
        '[{"flow": "f", "action": "a", "action_class": "c", "attempt": 1, "started_at": "infinity", '
        '"did": "01a1e9bc-1d59-8000-8000-040000000000", "message_id": "01a1e9bc-1d59-8000-8000-040000000000"}]',
        '["' + 3_000_000 * "x" + '"]',
    ],
)
def test_a_report_that_could_not_be_listed_is_refused(client: Client, told: Connection, tasks: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        told.execute("SELECT penstock.report_tasks('w', %s::jsonb)", (tasks,))
    assert client.tasks() == []


def test_the_items_of_a_killed_worker_are_delivered_again_and_count_an_attempt(
    client: Client, told: Connection
) -> None:
    client.push("work", ["first", "second"], partition="p")
    with running(client.dsn, "waiting.py", "--actions", "wait") as worker:
        said(client, 1)
        worker.say(signal.SIGKILL)
        worker.end()
    # When their leases end. Nobody knows which of them was at fault, so they come one by one.
    assert delivered_again(client, "work", "wait", 1) == [("first", 2)]


def test_children_end_with_a_worker_that_is_killed(client: Client, told: Connection) -> None:
    client.push("child-work", "first", partition="p")
    with running(client.dsn, "waiting.py", "--actions", "child") as worker:
        (begun,) = said(client, 1)
        worker.say(signal.SIGKILL)
        worker.end()
    # Its output pipe is closed by all who had it, so the child is gone, too, or waits for somebody to ask how it ended.
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(begun["pid"])], capture_output=True, text=True, check=False)
    assert state.stdout[:1] in ("", "Z")
    assert delivered_again(client, "child-work", "child", 1) == [("first", 2)]


def test_a_lease_is_renewed_while_a_handler_runs(client: Client, told: Connection) -> None:
    client.push("work", "first", partition="p")
    with running(client.dsn, "waiting.py", "--actions", "wait"):
        said(client, 1)
        (before,) = client.claims("work")
        # Longer than its lease of two seconds.
        told.execute("SELECT pg_sleep(3)")
        (after,) = client.claims("work")
        assert (after.lease_id, after.attempt) == (before.lease_id, 1)
        tell(told, "first")
        assert values(client, "results", 1) == ["first"]


@pytest.mark.parametrize(
    ("queue", "results", "action"),
    [
        ("work", "results", "wait"),
        ("shared-work", "shared-results", "share"),
    ],
)
def test_whoever_loses_a_lease_pushes_nothing(
    client: Client, told: Connection, queue: str, results: str, action: str
) -> None:
    client.push(queue, "first", partition="p")
    with running(client.dsn, "waiting.py", "--actions", action):
        said(client, 1)
        (claim,) = client.claims(queue)
        client.release_claim(claim)
        # Delivered again, while the first handler has not ended.
        said(client, 1)
        tell(told, "first")
        handled(client, queue, f"waiting.{action}")
        assert values(client, results, 1) == ["first"]
    (partition,) = client.partitions(results)
    assert partition.messages == 1


def test_running_tasks_are_listed_with_their_progress(client: Client, told: Connection) -> None:
    (identity,) = client.push("work", "first", partition="p").ids
    with running(client.dsn, "waiting.py", "--actions", "wait") as worker:
        said(client, 1)
        while not (tasks := client.tasks()):
            worker.wait_for("working")
        (task,) = tasks
        assert (task.flow, task.flow_type, task.action) == ("waiting", "TRANSFORM", "wait")
        assert (task.did, task.message_id, task.attempt) == (identity, identity, 1)
        assert (task.progress, task.text) == (40, "begun")
        assert 0 < task.running_for < 60
        assert task.action_class == "waiting.wait"
        # A worker that says nothing for 30 seconds is not believed any more.
        told.execute("UPDATE penstock.running_tasks SET heartbeat_at = heartbeat_at - interval '31 seconds'")
        assert client.tasks() == []
        tell(told, "first")
        values(client, "results", 1)
        worker.say(signal.SIGTERM)
        assert worker.end() == 0
    assert told.execute("SELECT count(*) FROM penstock.running_tasks").fetchall() == [(0,)]


def test_an_action_that_nobody_registered_is_of_unknown_type(client: Client, told: Connection) -> None:
    told.execute(
        "SELECT penstock.report_tasks('w', jsonb_build_array(jsonb_build_object('action_class', 'a.b', 'flow', 'f', "
        "'action', 'a', 'did', gen_random_uuid(), 'message_id', gen_random_uuid(), 'started_at', now(), 'attempt', 1)))"
    )
    (task,) = client.tasks()
    assert task.flow_type == "UNKNOWN"
