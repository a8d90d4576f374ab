"""The breaker of a group, across all its consumers: what reports open and close, and what is handed out meanwhile."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from random import Random

import pytest

from clocks import NOON, Clock
from databases import Connection, Connections
from penstock import Client
from penstock.broker.health import ConsumerHealth, GroupHealth, GroupVerdict
from penstock.broker.operations.health import ReportHealth

numbers = count(1)


@pytest.fixture
def clock(fresh: Connections) -> Clock:
    """A clock of the test's own."""
    return Clock(fresh.open(autocommit=True))


@pytest.fixture
def sql(fresh: Connections) -> Connection:
    """A connection to the same database."""
    return fresh.open(autocommit=True)


@pytest.fixture
def client(fresh: Connections, clock: Clock) -> Iterator[Client]:
    """A client that does not report by itself, and a group whose breaker opens after three errors, for ten seconds."""
    with Client(fresh.dsn, metrics=False) as client:
        client.create_group("orders", "billing", breaker_errors=3, breaker_pause=10, breaker_pause_max=25, lease_time=5)
        yield client


def report(
    client: Client, good: int = 0, bad: int = 0, consumer: str = "a", trailing: int | None = None
) -> GroupVerdict:
    health = GroupHealth(
        "orders", "billing", good, bad, bad if trailing is None else trailing, "Boom: no" if bad else None
    )
    sent = ReportHealth(consumer, next(numbers), ConsumerHealth("healthy", good, bad), [health])
    [verdict] = client._transport.run(sent)
    return verdict


def handed_out(client: Client) -> int:
    """Take what there is, give it back, and say how many messages that were."""
    batch = client.pop("orders", "billing")
    if batch is None:
        return 0
    batch.release()
    return len(batch)


def test_a_group_that_never_fails_has_no_breaker(client: Client) -> None:
    assert report(client, good=1000).state == "closed"
    assert client.breakers() == []


def test_errors_in_a_row_of_several_consumers_open_it_and_nothing_is_handed_out(client: Client) -> None:
    client.push("orders", [b"1", b"2"], partition="p")
    assert [report(client, bad=1, consumer=one).state for one in "aba"] == ["closed", "closed", "open"]
    assert handed_out(client) == 0
    [breaker] = client.breakers()
    assert (breaker.state, breaker.reason, breaker.last_error) == ("open", "3 errors in a row", "Boom: no")
    assert (breaker.since, breaker.open_until) == (NOON, NOON + timedelta(seconds=10))


def test_while_another_consumer_is_well_the_group_goes_on(client: Client, clock: Clock) -> None:
    report(client, good=1, consumer="b")
    assert report(client, bad=100, consumer="a").state == "closed"
    # It fails, too, and says so at once.
    assert report(client, bad=1, consumer="b").state == "open"


def test_a_consumer_that_was_not_seen_for_a_while_counts_no_more(client: Client, clock: Clock) -> None:
    report(client, good=1, consumer="b")
    report(client, bad=100, consumer="a")
    clock.pass_by(91)
    assert report(client, consumer="a", trailing=100).state == "open"


def test_a_success_of_any_consumer_begins_the_count_anew(client: Client) -> None:
    report(client, bad=2)
    report(client, good=1, consumer="b")
    assert report(client, bad=2).state == "closed"


def test_after_the_pause_one_message_is_handed_out_and_its_success_closes_the_breaker(
    client: Client, clock: Clock
) -> None:
    client.push("orders", [b"1", b"2", b"3"], partition="p")
    client.push("orders", [b"4"], partition="q")
    report(client, bad=3)
    clock.pass_by(10)
    assert [breaker.state for breaker in client.breakers()] == ["half_open"]
    probe = client.pop("orders", "billing")
    assert probe is not None
    assert len(probe) == 1
    assert client.pop("orders", "billing") is None
    probe.ack()
    assert report(client, good=1).state == "closed"
    assert handed_out(client) > 0


def test_a_probe_whose_consumer_died_is_followed_by_another(client: Client, clock: Clock) -> None:
    client.push("orders", b"1", partition="p")
    client.push("orders", b"2", partition="q")
    report(client, bad=3)
    clock.pass_by(10)
    lost = client.pop("orders", "billing")
    assert lost is not None
    assert client.pop("orders", "billing") is None
    clock.pass_by(10)
    probe = client.pop("orders", "billing")
    assert probe is not None
    assert probe.messages[0].value != lost.messages[0].value
    probe.ack()
    assert report(client, good=1).state == "closed"


def test_a_probe_that_fails_opens_it_for_longer_up_to_the_limit(client: Client, clock: Clock) -> None:
    report(client, bad=3)
    pauses = []
    for _ in range(4):
        verdict = report(client)
        assert verdict.held_for is not None
        pauses.append(verdict.held_for)
        clock.pass_by(verdict.held_for)
        assert report(client, bad=1).state == "open"
    assert pauses == [10, 20, 25, 25]


def test_what_ends_while_the_group_is_held_is_no_probe(client: Client, clock: Clock) -> None:
    report(client, bad=3)
    clock.pass_by(5)
    assert report(client, good=5, consumer="b").state == "open"
    assert report(client, bad=5, consumer="b").held_for == 5


def test_a_clock_that_is_set_back_holds_the_group_for_one_pause_and_no_longer(client: Client, clock: Clock) -> None:
    client.push("orders", b"1", partition="p")
    report(client, bad=3)
    clock.pass_by(-86400)
    assert report(client).held_for == 10
    clock.pass_by(10)
    assert handed_out(client) == 1


def test_a_share_of_errors_opens_it(client: Client) -> None:
    client.configure_group("orders", "billing", breaker_errors=0, breaker_rate=0.5)
    assert report(client, good=10, bad=9, trailing=0).state == "closed"
    assert report(client, bad=1).state == "open"
    [breaker] = client.breakers()
    assert breaker.reason == "10 of 20 messages failed"


def test_off_it_never_opens(client: Client) -> None:
    client.configure_group("orders", "billing", breaker_errors=0)
    assert report(client, bad=100_000).state == "closed"


def test_reset_closes_it_and_messages_are_handed_out_at_once(client: Client) -> None:
    client.push("orders", b"1", partition="p")
    report(client, bad=3)
    assert client.reset_breaker("orders", "billing")
    assert handed_out(client) == 1
    assert not client.reset_breaker("orders", "billing")
    assert client.breakers() == []


def test_a_repeated_report_counts_once(client: Client) -> None:
    sent = ReportHealth(
        "a", next(numbers), ConsumerHealth("degraded", 0, 2, 2), [GroupHealth("orders", "billing", 0, 2, 2, "no")]
    )
    client._transport.run(sent)
    client._transport.run(sent)
    [breaker] = client.breakers()
    assert breaker.consecutive_errors == 2


def test_a_breaker_goes_with_its_group_and_its_queue(client: Client, sql: Connection) -> None:
    report(client, bad=3)
    client.delete_group("orders", "billing")
    assert client.breakers() == []
    client.create_group("orders", "billing")
    report(client, bad=3)
    client.delete("orders")
    assert sql.execute("SELECT count(*) FROM penstock.breakers").fetchall() == [(0,)]


@pytest.mark.parametrize("seed", range(3))
def test_whatever_fails_and_however_the_clock_jumps_nothing_is_handed_out_while_open_and_all_is_done_at_the_end(
    client: Client, clock: Clock, sql: Connection, seed: int
) -> None:
    random = Random(seed)
    client.configure_group("orders", "billing", max_attempts=30_000, backoff_initial=0, lease_time=300)
    for number in range(40):
        client.push("orders", b"%d" % number, partition=f"p{number % 7}")
    done: set[bytes | None] = set()
    for _ in range(100):
        is_open = [breaker.state for breaker in client.breakers()] == ["open"]
        batch = client.pop("orders", "billing", max_messages=2)
        assert not (is_open and batch)
        if batch is not None and random.random() < 0.7:
            batch.nack(reason="no")
            report(client, bad=1, consumer=random.choice("ab"))
        elif batch is not None:
            done.update(message.value for message in batch)
            batch.ack()
            report(client, good=len(batch), consumer=random.choice("ab"))
        else:
            clock.pass_by(random.choice([1, 3, 10, 25, -5, -100_000]))
            report(client, consumer=random.choice("ab"))
    # From here on all goes well: it takes a pause at most until the first probe.
    for _ in range(100):
        if len(done) == 40 and [breaker.state for breaker in client.breakers()] == ["closed"]:
            break
        clock.pass_by(25)
        while (batch := client.pop("orders", "billing")) is not None:
            done.update(message.value for message in batch)
            batch.ack()
            report(client, good=len(batch))
    assert len(done) == 40
    assert [breaker.state for breaker in client.breakers()] == ["closed"]
    assert sql.execute("SELECT * FROM penstock.verify() WHERE violations > 0").fetchall() == []


def test_reports_of_many_consumers_at_once_all_count_and_none_waits_for_ever(
    client: Client, fresh: Connections, sql: Connection
) -> None:
    names = [f"g{number}" for number in range(5)]
    for name in names:
        client.create_group("orders", name, breaker_errors=0)

    def work(consumer: int) -> None:
        # Each names the groups in another order, which must not make them wait for each other.
        order = names[consumer % 5 :] + names[: consumer % 5]
        for number in range(1, 21):
            health = [GroupHealth("orders", name, 0, 1, 1, "no") for name in order]
            client._transport.run(ReportHealth(f"c{consumer}", number, ConsumerHealth("degraded"), health))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    counted = sql.execute("SELECT DISTINCT consecutive_errors FROM penstock.breakers").fetchall()
    assert counted == [(80,)]
