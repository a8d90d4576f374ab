"""What a partition waits for can change while it waits: settings, limits, and the clock itself."""

from typing import Any

import pytest
from log.interleaving import mutate, push

from databases import Connection, Connections
from penstock import Client
from penstock.broker.operations.claiming import Nack

from .steps import MODES, ack, create_group, drain, must_pop, nack, newest, pop, run, sweep, violations

SETTINGS = ["delay", "quiet_period"]


def configure(client: Client, where: str, settings: dict[str, Any]) -> None:
    if where == "group":
        client.configure_group("q", "g", **settings)
    else:
        client.configure("q", **settings)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("where", ["group", "queue"])
def test_a_wait_ends_when_its_setting_is_set_back(
    client: Client, sql: Connection, mode: str, setting: str, where: str
) -> None:
    create_group(sql, mode=mode)
    configure(client, where, {setting: 3600})
    push(sql)
    assert pop(sql) is None
    assert newest(sql)[1] == "t"
    configure(client, where, {setting: 0})
    sweep(sql)
    assert pop(sql) is not None


def test_a_wait_that_is_made_shorter_goes_on(client: Client, sql: Connection) -> None:
    create_group(sql, delay=3600)
    push(sql)
    assert pop(sql) is None
    client.configure_group("q", "g", delay=600)
    sweep(sql)
    assert newest(sql)[1] == "t"
    ((soon,),) = sql.execute(
        "SELECT max(due_at) < clock_timestamp() + interval '601 seconds' FROM penstock.journal WHERE state = 't'"
    ).fetchall()
    assert soon


def test_a_backoff_is_not_cut_short_by_another_setting(client: Client, sql: Connection) -> None:
    create_group(sql, backoff_initial=3600)
    push(sql)
    claim = must_pop(sql)
    run(sql, Nack(claim.lease, None, "oops", None, None))
    client.configure_group("q", "g", delay=0)
    sweep(sql)
    assert newest(sql)[1] == "t"


@pytest.mark.parametrize("mode", MODES)
def test_a_second_look_does_not_wait_for_a_clock_that_went_back(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push(sql)
    ack(sql, must_pop(sql))
    assert pop(sql) is None
    assert newest(sql)[1] == "p"
    sql.execute("UPDATE penstock.journal SET due_at = due_at + interval '1 hour' WHERE state = 'p'")
    sweep(sql)
    assert newest(sql)[1] == "i"
    assert violations(sql) == {}


def test_dead_letters_are_redriven_though_their_queue_allows_less_now(client: Client, sql: Connection) -> None:
    create_group(sql, max_attempts=1)
    client.push("q", b"x" * 1000, partition="p", key="k", headers={"a": "b"})
    assert nack(sql, must_pop(sql)) == "dead letter"
    client.configure("q", max_message_bytes=10)
    assert client.redrive("q") == 1
    batch = client.pop("q", "g")
    assert batch is not None
    [message] = batch.messages
    assert (message.value, message.key, message.headers and message.headers["a"]) == (b"x" * 1000, "k", "b")
    assert violations(sql) == {}


def test_dead_letters_are_taken_in_portions_that_fit_into_memory(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "take_dead_letters", ("67108864", "2500"))
    create_group(sql, max_attempts=1)
    for size in (1000, 1000, 1000, 9000, 1):
        sql.execute("SELECT penstock.push('q', ARRAY[repeat('x', %s)::bytea], 'p')", (size,))
        nack(sql, must_pop(sql))
    taken = [sql.execute("SELECT penstock.redrive('q')").fetchall()[0][0] for _ in range(5)]
    assert taken == [2, 1, 1, 1, 0]
    assert len(drain(sql)) == 5


def test_a_queue_that_does_not_exist_has_nothing_pending(sql: Connection) -> None:
    asked = "SELECT penstock.has_pending_messages('q', NULL, 'g'), penstock.has_pending_messages('q', 'p', 'g')"
    assert sql.execute(asked).fetchall() == [(False, False)]
    push(sql)
    assert sql.execute(asked).fetchall() == [(True, True)]
