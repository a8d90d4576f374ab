"""What was claimed ahead and not begun does not die with the message that kills its consumer."""

import subprocess
import sys
from typing import Any

import pytest

from databases import Connection
from penstock import Client
from penstock.broker.claims import Claim
from penstock.broker.operations.claiming import Pop, Renew
from penstock.broker.operations.groups import ConfigureGroup

from .steps import MODES, ack, create_group, nack, pass_time, push_to_many, run, sweep, violations

# Handles what comes; the poison kills it as soon as its neighbours are claimed, too.
CONSUMER = """
import os, signal, sys
from penstock import Client
watch = Client(sys.argv[1])
def handle(message):
    if message.json() == "poison":
        while len(watch.claims("q")) < 4:
            pass
        os.kill(os.getpid(), signal.SIGKILL)
with Client(sys.argv[1]) as client:
    client.process("q", handle, prefetch=30, max_messages=10, idle_timeout=0.5)
"""


def pop_ahead(sql: Connection) -> list[Claim]:
    return run(sql, Pop("q", "g", max_partitions=10, ahead=True))


def let_leases_end(sql: Connection) -> None:
    pass_time(sql, "c")
    sweep(sql)


def dead(sql: Connection) -> list[tuple[Any, ...]]:
    return sql.execute(
        "SELECT p.name, d.attempts FROM penstock.dead_letters d JOIN penstock.partitions p USING (partition_id)"
    ).fetchall()


@pytest.mark.parametrize("mode", MODES)
def test_the_end_of_a_lease_counts_where_the_consumer_had_begun_and_not_where_it_had_not(
    sql: Connection, mode: str
) -> None:
    create_group(sql, mode=mode, max_attempts=3)
    push_to_many(sql, 2)
    pop_ahead(sql)
    let_leases_end(sql)
    for attempt in (2, 3):
        claims = {claim.partition: claim for claim in pop_ahead(sql)}
        assert (claims["n1"].attempt, claims["n2"].attempt) == (attempt, 2)
        run(sql, Renew([claims["n1"].lease], begun=True))
        # Kept alive with all others, which does not begin them.
        run(sql, Renew([claim.lease for claim in claims.values()]))
        let_leases_end(sql)
    (spared,) = pop_ahead(sql)
    assert (spared.partition, spared.attempt) == ("n2", 2)
    assert dead(sql) == [("n1", 3)]
    ack(sql, spared)
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_a_first_delivery_that_nobody_had_begun_makes_no_dead_letter(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode, max_attempts=1)
    push_to_many(sql, 1)
    pop_ahead(sql)
    let_leases_end(sql)
    assert dead(sql) == []
    (again,) = pop_ahead(sql)
    run(sql, Renew([again.lease], begun=True))
    let_leases_end(sql)
    assert dead(sql) == [("n1", 2)]


@pytest.mark.parametrize("mode", MODES)
def test_a_handler_that_fails_at_what_was_claimed_ahead_counts(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode, max_attempts=1)
    push_to_many(sql, 1)
    (claim,) = pop_ahead(sql)
    assert nack(sql, claim) == "dead letter"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("setting", [{"concurrency_limit": 5}, {"delay": 0.0001}], ids=["limited", "delayed"])
def test_it_holds_on_every_way_to_a_claim(sql: Connection, mode: str, setting: dict[str, Any]) -> None:
    create_group(sql, mode=mode, max_attempts=1)
    run(sql, ConfigureGroup("q", "g", setting))
    push_to_many(sql, 1)
    pass_time(sql, "t")
    sweep(sql)
    (claim,) = pop_ahead(sql)
    let_leases_end(sql)
    assert dead(sql) == []
    assert pop_ahead(sql)[0].attempt == claim.attempt + 1


@pytest.mark.parametrize("mode", MODES)
def test_a_message_that_kills_its_consumer_takes_no_other_one_with_it(
    client: Client, sql: Connection, dsn: str, mode: str
) -> None:
    client.create("q", max_attempts=2, lease_time=600)
    client.create_group("q", "default", mode=mode)
    client.push("q", "poison", partition="p0")
    client.push_many("q", [(f"p{number}", number) for number in range(1, 4)])
    for _ in range(10):
        if subprocess.run([sys.executable, "-c", CONSUMER, dsn], check=False).returncode == 0:
            break
        let_leases_end(sql)
    assert client.lag("q") == 0
    assert [letter.partition for letter in client.dead_letters("q")] == ["p0"]
