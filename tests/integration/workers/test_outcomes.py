"""Every outcome of a handler, by a real worker process that runs all of them at the same time."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from databases import Connection, empty
from penstock import Cancelled, Client, HandlerFailed, StoredMessage
from penstock.broker.infos import DeadLetterInfo
from penstock.consuming import waiting

from .apps.outcomes import BAD
from .processes import WorkerProcess, handled, running, values


@pytest.fixture(scope="module")
def client(shared_dsn: str, cleaner: Connection) -> Iterator[Client]:
    empty(cleaner)
    with Client(shared_dsn) as client:
        yield client


@pytest.fixture(scope="module", autouse=True)
def worker(client: Client) -> Iterator[WorkerProcess]:
    client.configure("small", max_message_bytes=1000)
    with running(client.dsn, "outcomes.py") as worker:
        yield worker


def calls(client: Client, action: str, count: int) -> list[tuple[object, int]]:
    """Wait for so many calls of an action; return its items' values and attempts."""
    found: list[tuple[object, int]] = []
    while len(found) < count:
        batch = client.pop("calls", f"test-{action}", partition=action, wait=20)
        assert batch is not None, found
        with batch:
            found += [(each.json()["value"], each.json()["attempt"]) for each in batch]
    return found


def dead_letter(client: Client, queue: str, group: str) -> DeadLetterInfo:
    """Wait until all is handled, and return the only dead letter."""
    handled(client, queue, group)
    (letter,) = client.dead_letters(queue, group)
    return letter


def test_what_is_returned_is_pushed_with_its_origin(client: Client) -> None:
    pushed = client.push("values", "one", key="ada", partition="p")
    (given,) = list(_outputs(client, "p", 1))
    assert given.json() == {"attempt": 1, "queue": "values", "flow": "outcomes", "action": "give"}
    assert (given.key, given.partition) == ("ada", "p")
    assert given.headers == {
        "penstock-did": str(pushed.ids[0]),
        "penstock-parent": str(pushed.ids[0]),
        "penstock-source": "values",
    }


def test_an_action_behind_another_sees_where_the_flow_was_entered(client: Client) -> None:
    pushed = client.push("values", "chained", partition="chain")
    batch = client.pop("chained", "test", partition="chain", wait=20)
    assert batch is not None
    with batch:
        (message,) = batch
    assert message.json()["did"] == str(pushed.ids[0])
    assert message.json()["source"] == "values"
    assert UUID(message.json()["id"]) != pushed.ids[0]
    assert message.headers is not None
    assert message.headers["penstock-parent"] == message.json()["id"]


def test_a_list_pushes_several_messages_none_pushes_nothing(client: Client) -> None:
    client.push("values", ["nothing", "several", "nothing"], partition="several")
    assert [each.json() for each in _outputs(client, "several", 3)] == ["a", "b", "c"]


def test_a_message_picks_its_own_partition_key_and_headers(client: Client) -> None:
    client.push("values", "elsewhere", key="ada", partition="here")
    (given,) = _outputs(client, "elsewhere", 1)
    assert (given.json(), given.key, given.partition) == ("there", "other", "elsewhere")
    assert given.headers is not None
    assert given.headers["mine"] == "yes"
    assert given.headers["penstock-source"] == "values"


def _outputs(client: Client, partition: str, count: int) -> list[StoredMessage]:
    batch = client.pop("given", "test", partition=partition, wait=20)
    assert batch is not None
    with batch:
        assert len(batch) == count
        return list(batch)


def test_what_cannot_be_stored_is_a_failure_of_its_item(client: Client) -> None:
    client.configure_group("values", "outcomes.give", max_attempts=1)
    client.push("values", ["not json", "behind it"], partition="bad")
    assert [each.json() for each in _outputs(client, "bad", 1)] == ["behind it"]
    assert "cannot be stored as JSON" in str(dead_letter(client, "values", "outcomes.give").last_error)


def test_what_is_raised_is_retried_and_becomes_a_dead_letter_with_its_traceback(client: Client) -> None:
    client.push("raise", 7)
    assert calls(client, "raise", 3) == [(7, 1), (7, 2), (7, 3)]
    letter = dead_letter(client, "raise", "outcomes.raise")
    assert (letter.reason, letter.attempts) == ("ValueError", 3)
    assert letter.last_error == "ValueError: no such customer"
    assert letter.traceback is not None
    assert 'raise ValueError("no such customer")' in letter.traceback


def test_a_retry_comes_again_when_it_says_and_counts_an_attempt(client: Client) -> None:
    client.push("retry", 7)
    # The backoff is a minute: it came earlier because the handler said so, raised and returned.
    assert calls(client, "retry", 3) == [(7, 1), (7, 2), (7, 3)]
    handled(client, "retry", "outcomes.retry")
    assert client.dead_letters("retry") == []


def test_a_snooze_comes_again_and_counts_no_attempt(client: Client) -> None:
    client.push("snooze", "anything")
    # More often than it could fail.
    assert calls(client, "snooze", 4) == [("anything", 1)] * 4
    handled(client, "snooze", "outcomes.snooze")
    assert client.dead_letters("snooze") == []


def test_what_is_discarded_is_done_and_pushes_nothing(client: Client) -> None:
    client.push("discard", ["raised", "returned"])
    handled(client, "discard", "outcomes.discard")
    assert client.dead_letters("discard") == []
    assert "discarded" not in {queue.name for queue in client.queues()}


def test_a_dead_letter_is_one_at_once(client: Client) -> None:
    client.push("dead", 7)
    letter = dead_letter(client, "dead", "outcomes.dead")
    assert (letter.reason, letter.attempts) == ("the address is wrong", 1)


def test_a_task_that_takes_too_long_is_cancelled_and_fails(client: Client) -> None:
    client.push("slow", ["slow", "fast"])
    letter = dead_letter(client, "slow", "outcomes.slow")
    assert letter.reason == "HandlerTimeout"
    assert letter.traceback is not None
    assert "await asyncio.sleep(60)" in letter.traceback


def test_a_task_that_heeds_no_cancellation_is_left_behind(client: Client) -> None:
    client.push("deaf", "deaf", partition="a")
    client.push("deaf", "not deaf", partition="b")
    assert values(client, "heard", 1) == ["not deaf"]
    assert dead_letter(client, "deaf", "outcomes.deaf").reason == "HandlerTimeout"


def test_a_thread_that_takes_too_long_is_left_behind_and_its_item_fails(client: Client) -> None:
    client.push("slow-thread", ["slow", "fast"])
    assert values(client, "fast-threads", 1) == ["fast"]
    assert dead_letter(client, "slow-thread", "outcomes.slow_thread").reason == "HandlerTimeout"


def test_a_child_that_takes_too_long_is_killed_and_its_item_fails(client: Client) -> None:
    client.push("slow-child", ["fast", "slow", "fast"])
    first, second = values(client, "fast-children", 2)
    assert first != second
    assert dead_letter(client, "slow-child", "outcomes.slow_child").reason == "HandlerTimeout"


def test_an_item_that_kills_its_child_becomes_a_dead_letter_and_nobody_else_notices(
    client: Client, worker: WorkerProcess
) -> None:
    client.push("deadly", ["before", "deadly", "behind"], partition="a")
    client.push("deadly", "beside", partition="b")
    assert sorted(values(client, "survived", 3)) == ["before", "behind", "beside"]
    letter = dead_letter(client, "deadly", "outcomes.deadly")
    assert (letter.reason, letter.attempts) == ("ChildDied", 2)
    assert "killed by SIGKILL" in str(letter.last_error)


def test_a_handler_that_exits_fails_and_the_worker_goes_on(client: Client) -> None:
    client.push("exit", ["exit", "stay"])
    assert values(client, "stayed", 1) == ["stay"]
    assert dead_letter(client, "exit", "outcomes.leave").reason == "SystemExit"


def test_an_output_that_its_queue_refuses_is_a_failure_of_that_item_alone(client: Client) -> None:
    client.push("large", [10, 5000, 20], partition="a")
    client.push("large", 30, partition="b")
    assert sorted(map(len, values(client, "small", 3))) == [10, 20, 30]
    assert dead_letter(client, "large", "outcomes.large").reason == "MessageTooLarge"


@pytest.mark.parametrize("kind", ["task", "thread", "child"])
def test_what_nobody_takes_is_a_failure_of_its_item_and_no_worker_ends(client: Client, kind: str) -> None:
    client.push(f"bad-{kind}", [*BAD, kind], partition=f"bad-{kind}")
    # What lies behind them is handled, by the same worker.
    assert values(client, "good", 1, group=f"test-{kind}") == [kind]
    handled(client, f"bad-{kind}", f"outcomes.bad_{kind}")
    letters = client.dead_letters(f"bad-{kind}", f"outcomes.bad_{kind}")
    assert sorted(letter.offset for letter in letters) == list(range(len(BAD)))
    assert {letter.reason for letter in letters} <= {"InvalidInput", "ValueError", "TypeError"}
    client.delete("good")


@pytest.mark.parametrize("said", ["inf", "nan", "1e300", "-1", "9" * 400, "soon", ""])
def test_a_header_that_asks_for_a_result_for_no_time_that_can_be_ends_nobody(client: Client, said: str) -> None:
    pushed = client.push("ask", "json", headers={"penstock-result": said})
    assert client.result(pushed.ids[0], timeout=20) == {"asked": "json"}


def test_middleware_is_around_the_handler(client: Client) -> None:
    client.push("around", ["return", "raise"])
    assert values(client, "rounded", 3) == ["before", "inner", "after"]
    assert dead_letter(client, "around", "outcomes.inner").reason == "translated by a middleware"


@pytest.mark.parametrize("kind", ["task", "thread", "child"])
def test_a_step_runs_once_and_a_checkpoint_is_kept_over_attempts(client: Client, kind: str) -> None:
    client.push(f"steps-{kind}", "anything")
    batch = client.pop("stepped", "test", partition=kind, wait=30)
    assert batch is not None
    with batch:
        ((receipt, seen),) = [message.json() for message in batch]
    # Three attempts, one of which killed its child where there is one, and one call.
    assert seen == [receipt, receipt]
    handled(client, f"steps-{kind}", f"outcomes.step_{kind}")
    assert kept_of_items(client) == (0, 0)


@pytest.mark.parametrize("kind", ["task", "thread", "child"])
def test_a_step_that_a_handler_asks_for_several_times_at_once_runs_once(client: Client, kind: str) -> None:
    client.push(f"at-once-{kind}", "anything")
    batch = client.pop("at-once", "test", partition=kind, wait=30)
    assert batch is not None
    with batch:
        assert [message.json() for message in batch] == [[[1, 1, [0, 1, 2, 3]]]]


@pytest.mark.parametrize("kind", ["thread", "child"])
def test_a_step_whose_name_cannot_be_kept_is_refused_before_it_runs(client: Client, kind: str) -> None:
    client.push(f"bad-name-{kind}", "anything")
    batch = client.pop("bad-name", "test", partition=kind, wait=30)
    assert batch is not None
    with batch:
        assert [message.json() for message in batch] == [["InvalidInput", 0]]


def kept_of_items(client: Client) -> "tuple[int, int]":
    """Return how many steps and notes are kept."""
    counts = "SELECT (SELECT count(*) FROM penstock.item_steps), (SELECT count(*) FROM penstock.item_notes)"
    with psycopg.connect(client.dsn, autocommit=True) as connection:
        ((steps, notes),) = connection.execute(counts).fetchall()
    return steps, notes


@pytest.mark.parametrize("kind", ["task", "thread", "child"])
def test_what_an_earlier_attempt_noted_goes_with_an_item_whose_last_attempt_never_looked_at_it(
    client: Client, kind: str
) -> None:
    ends = ["return", "discard", "dead"] + ["die"] * (kind == "child")
    client.push(f"left-{kind}", ends, partition="p")
    handled(client, f"left-{kind}", f"outcomes.left_{kind}")
    assert len(client.dead_letters(f"left-{kind}")) == ends.count("dead") + ends.count("die")
    assert kept_of_items(client) == (0, 0)


def test_an_item_that_sleeps_until_a_moment_comes_again_then_without_an_attempt(client: Client) -> None:
    client.push("sleep", "anything")
    (woken,) = values(client, "woken", 1)
    assert woken["slept"] >= 0.3
    assert woken["attempt"] == 1


def test_who_pushed_can_wait_for_what_the_handler_returned_or_raised(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(what: str) -> object:
        return client.result(client.push("ask", what, result=True).ids[0], timeout=20)

    assert ask("json") == {"asked": "json"}
    assert ask("bytes") == b"abc"
    assert ask("nothing") is None
    with pytest.raises(HandlerFailed, match="ValueError: no answer"):
        ask("raise")

    # The worker wakes who waits: nobody looks again by himself.
    assert client._wakes._listening()
    monkeypatch.setattr(waiting, "_GROWTH", 1e9)
    monkeypatch.setattr(waiting, "_LONGEST", 3600.0)
    monkeypatch.setattr(waiting, "_LONGEST_LATELY", 3600.0)
    assert [ask("json") for _ in range(3)] == [{"asked": "json"}] * 3


@pytest.mark.parametrize("kind", ["thread", "child"])
def test_what_refuses_a_step_has_its_own_class_wherever_the_handler_runs(client: Client, kind: str) -> None:
    client.push(f"large-{kind}", 1, partition=kind)
    assert values(client, f"refused-{kind}", 1) == ["MessageTooLarge"]


@pytest.mark.parametrize("kind", ["", "-thread", "-child"])
def test_a_cancelled_item_is_interrupted_and_no_other_of_its_batch_is_touched(client: Client, kind: str) -> None:
    ids = client.push(f"cancel{kind}", ["endless", "waiting", "last"], partition="p", result=True).ids
    action = {"": "cancel_task", "-thread": "cancel_thread", "-child": "cancel_child"}[kind]
    assert calls(client, action, 1) == [("endless", 1)]
    # The second one is claimed with the first, and waits for it.
    assert client.cancel(ids[0], ids[1]) == [ids[0], ids[1]]
    assert calls(client, action, 1) == [("last", 1)]
    assert values(client, f"not-cancelled{kind}", 1) == ["last"]
    for cancelled in ids[:2]:
        with pytest.raises(Cancelled):
            client.result(cancelled, timeout=20)
    handled(client, f"cancel{kind}", f"outcomes.{action}")
    assert [state.state for each in ids for state in client.state(each)] == ["cancelled", "cancelled", "done"]


@pytest.mark.parametrize("said", ["raise", "retry", "snooze"])
def test_a_child_goes_on_behind_a_cancelled_item_whatever_its_handler_says_of_it(client: Client, said: str) -> None:
    ids = client.push("cancel-end", [said, f"behind {said}", f"last of {said}"], partition=said).ids
    assert calls(client, "cancel_end", 1) == [(said, 1)]
    assert client.cancel(ids[0]) == [ids[0]]
    assert values(client, "after-cancel", 2) == [f"behind {said}", f"last of {said}"]
    assert calls(client, "cancel_end", 2) == [(f"behind {said}", 1), (f"last of {said}", 1)]
    handled(client, "cancel-end", "outcomes.cancel_end")
    assert [state.state for each in ids for state in client.state(each)] == ["cancelled", "done", "done"]


def test_time_counts_on_after_a_cancellation(client: Client) -> None:
    kinds = ("thread", "child")
    ids = {
        kind: client.push(f"cancel-slow-{kind}", ["deaf", "behind"], partition="p", result=True).ids[0]
        for kind in kinds
    }
    for kind in kinds:
        assert calls(client, f"cancel_slow_{kind}", 1) == [("deaf", 1)]
        assert client.cancel(ids[kind]) == [ids[kind]]
    for kind in kinds:
        # It is left behind, or killed, and was cancelled all the same.
        assert values(client, f"ended-{kind}", 1) == ["behind"]
        with pytest.raises(Cancelled):
            client.result(ids[kind], timeout=20)
        assert client.dead_letters(f"cancel-slow-{kind}") == []


@pytest.mark.parametrize(
    ("what", "reason"), [("hang", "HandlerTimeout"), ("crash", "ChildDied"), ("daemon", "ChildDied")]
)
def test_a_child_that_forks_is_missed_when_it_ends_and_what_it_started_ends_too(
    client: Client, what: str, reason: str
) -> None:
    client.push("fork", [what, "fine"], partition=what)
    assert values(client, "forked", 1) == ["fine"]
    handled(client, "fork", "outcomes.fork")
    letter = next(each for each in client.dead_letters("fork", "outcomes.fork") if each.partition == what)
    assert letter.reason == reason
    batch = client.pop("forks", "test", partition=what, wait=20)
    assert batch is not None
    with batch:
        (pid,) = [message.json() for message in batch]
    # One that has left its parent's session lives on, and takes nothing of the worker with it.
    assert lives(pid) == (what == "daemon")
    if what == "daemon":
        os.kill(pid, signal.SIGKILL)


def lives(pid: int) -> bool:
    """Say whether there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_registry_has_every_action_and_the_list_shows_what_is_left(client: Client) -> None:
    listed = {action.action: action for action in client.actions("outcomes")}
    assert (listed["give"].flow_type, listed["give"].queue, listed["give"].output) == ("TRANSFORM", "values", "given")
    assert (listed["dead"].flow_type, listed["dead"].output) == ("DATA_SINK", None)
    assert listed["give"].action_class == "outcomes.give"
    assert listed["give"].plugin.startswith("outcomes.py:")
    (flow,) = [flow for flow in client.flows() if flow.name == "outcomes"]
    assert flow.flow_type == "TRANSFORM"
    assert client.verify() == [check for check in client.verify() if check.violations == 0]
