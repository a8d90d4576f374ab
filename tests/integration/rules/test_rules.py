"""Rules redrive dead letters by themselves: those that match, after a backoff, and each not more often than allowed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from clocks import Clock
from databases import Connections
from penstock import AlreadyExists, Client, InvalidInput, NotFound
from penstock.broker.operations.rules import RunRules


@pytest.fixture
def clock(fresh: Connections) -> Clock:
    """A clock that shows the time of now until it is set: a dead letter's own time is the server's."""
    clock = Clock(fresh.open(autocommit=True))
    clock.set(datetime.now(UTC))
    return clock


@pytest.fixture
def client(fresh: Connections, clock: Clock) -> Iterator[Client]:
    """A client, and a group of which every message dies at its first failure."""
    with Client(fresh.dsn, metrics=False) as client:
        client.create_group("orders", "billing", max_attempts=1)
        yield client


def die(client: Client, count: int = 1, reason: str = "Down", error: str = "connection refused") -> None:
    """Let the next messages of the group die."""
    for _ in range(count):
        batch = client.pop("orders", "billing", max_messages=1)
        assert batch is not None
        batch.nack(reason=reason, error=error)


def test_what_matches_is_redriven_after_its_backoff_and_the_rest_is_not(client: Client, clock: Clock) -> None:
    client.push("orders", [b"1", b"2"], partition="p")
    die(client)
    die(client, reason="Bad", error="no such customer")
    client.add_rule("again", queue="orders", group="billing", reason="Down", error="Connection REFUSED", backoff=60)
    assert client.run_rules() == 0
    clock.pass_by(61)
    assert client.run_rules() == 1
    assert client.run_rules() == 0
    assert [letter.reason for letter in client.dead_letters("orders")] == ["Bad"]
    again = client.pop("orders", "billing")
    assert again is not None
    assert [message.value for message in again] == [b"1"]
    [rule] = client.rules()
    assert rule.redriven == 1


@pytest.mark.parametrize(
    "conditions",
    [
        {"queue": "other"},
        {"group": "other"},
        {"reason": "down"},
        {"error": "refused!"},
        {"queue": "orders", "reason": "no"},
    ],
)
def test_a_condition_that_is_not_met_keeps_it_dead(client: Client, clock: Clock, conditions: dict[str, str]) -> None:
    client.push("orders", b"1")
    die(client)
    client.add_rule("again", backoff=0, **conditions)  # type: ignore[arg-type]
    clock.pass_by(3600)
    assert client.run_rules() == 0


def test_a_message_that_dies_again_waits_longer_and_stays_dead_at_the_limit(client: Client, clock: Clock) -> None:
    client.push("orders", b"1")
    die(client)
    client.add_rule("again", backoff=60, backoff_factor=3, max_redrives=2)
    waits = []
    for _ in range(2):
        [match] = client.test_rule("again")
        assert (match.verdict, match.due_at) != ("redrive", None)
        assert match.due_at is not None
        waits.append(round((match.due_at - match.died_at).total_seconds()))
        clock.set(match.due_at - timedelta(seconds=1))
        assert client.run_rules() == 0
        clock.set(match.due_at)
        assert client.run_rules() == 1
        die(client)
    assert waits == [60, 180]
    clock.pass_by(10 * 365 * 86400)
    assert client.run_rules() == 0
    [match] = client.test_rule("again")
    assert (match.verdict, match.redrives, match.due_at) == ("exhausted", 2, None)


def test_a_redrive_by_hand_does_not_give_it_more_tries(client: Client, clock: Clock) -> None:
    client.push("orders", b"1")
    die(client)
    client.add_rule("again", backoff=0, max_redrives=1)
    clock.pass_by(1)
    assert client.run_rules() == 1
    die(client)
    assert client.redrive("orders") == 1
    die(client)
    clock.pass_by(3600)
    assert client.run_rules() == 0


def test_a_header_that_a_sender_made_up_counts_for_nothing(client: Client, clock: Clock) -> None:
    client.push("orders", b"1", headers={"penstock-redrives": "99"})
    die(client)
    client.add_rule("again", backoff=0, max_redrives=1)
    clock.pass_by(1)
    assert client.run_rules() == 1
    again = client.pop("orders", "billing")
    assert again is not None
    assert (again.messages[0].headers or {})["penstock-redrives"] == "1"


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(client: Client, clock: Clock) -> None:
    client.push("orders", [b"1", b"2"])
    die(client, 2)
    matches = client.match_dead_letters(queue="orders", backoff=60)
    assert [match.verdict for match in matches] == ["wait", "wait"]
    clock.pass_by(61)
    assert [match.verdict for match in client.match_dead_letters(queue="orders", backoff=60)] == ["redrive", "redrive"]
    assert (len(client.dead_letters("orders")), client.rules()) == (2, [])


def test_a_clock_that_is_set_back_keeps_nothing_dead(client: Client, clock: Clock) -> None:
    client.push("orders", b"1")
    die(client)
    client.add_rule("again", backoff=60)
    clock.pass_by(-86400)
    assert client.run_rules() == 1


def test_all_are_redriven_however_many_there_are_before_them_that_are_not_due(client: Client, clock: Clock) -> None:
    client.push("orders", [b"%d" % number for number in range(12)])
    client.add_rule("again", backoff=0, max_redrives=1)
    die(client, 6)
    clock.pass_by(60)
    while client.run_rules():
        pass
    # Those of the lane, which have had their one redrive, lie before those that die now.
    die(client, 12)
    clock.pass_by(60)
    done = [client._transport.run(RunRules(2)) for _ in range(20)]
    assert sum(done) == 6
    assert len(client.dead_letters("orders")) == 6


def test_of_two_that_run_rules_at_the_same_time_each_letter_is_redriven_by_one(client: Client, clock: Clock) -> None:
    client.push("orders", [b"%d" % number for number in range(50)])
    die(client, 50)
    client.add_rule("one", backoff=0)
    client.add_rule("two", backoff=0)
    clock.pass_by(1)
    with ThreadPoolExecutor(4) as pool:
        done = sum(pool.map(lambda _: client.run_rules(), range(8)))
    while more := client.run_rules():
        done += more
    assert (done, client.dead_letters("orders")) == (50, [])
    assert client.lag("orders", "billing") == 50


def test_rules_are_listed_and_deleted_by_name(client: Client) -> None:
    client.add_rule("again", queue="orders", backoff=timedelta(minutes=5), max_redrives=7)
    [rule] = client.rules()
    assert (rule.name, rule.queue, rule.group, rule.backoff, rule.max_redrives) == ("again", "orders", None, 300, 7)
    with pytest.raises(AlreadyExists, match='a rule "again" already'):
        client.add_rule("again")
    client.delete_rule("again")
    assert client.rules() == []
    for call in (client.delete_rule, client.test_rule):
        with pytest.raises(NotFound, match='no rule "again"'):
            call("again")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backoff": -1}, "delay"),
        ({"backoff_factor": 0.5}, "backoff_factor is 0.5 and must be from 1 to 100"),
        ({"max_redrives": 0}, "max_redrives is 0 and must be from 1 to 1000"),
        ({"error": ""}, "an empty text matches nothing"),
        ({"reason": "nul \0"}, "without NUL"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(client: Client, options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        client.add_rule("bad", **options)  # type: ignore[arg-type]
    assert client.rules() == []
