"""Two who settle at once, beside pushes, sweeps and kills: each claim is settled once, and nobody deadlocks."""

import random
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from groups.steps import (
    MODES,
    ack_of,
    create_group,
    drain,
    must_pop,
    offsets,
    pass_time,
    pop,
    push_some,
    push_to_many,
    reply,
    run,
    start,
    sweep,
    violations,
)
from log.interleaving import Running
from log.interleaving import push as push_one
from psycopg import errors

from databases import Connection, Connections
from penstock import LeaseLost
from penstock.broker.claims import Claim
from penstock.broker.items import SettledItems
from penstock.broker.operations.claiming import Nack, Pop, Release, Renew
from penstock.broker.operations.groups import CreateGroup
from penstock.broker.operations.items import SettleItems
from penstock.broker.operations.operation import Operation

from .steps import ALL, dead, failed, output, settle, settled, snoozed, values

BESIDE: dict[str, Callable[[Claim], Operation[Any]]] = {
    "the same": lambda claim: SettleItems([settled(claim, done=[(0, 3)])], [output(0, "x")]),
    "all": lambda claim: SettleItems([settled(claim, done=ALL)], [output(0, "y")]),
    "failure": lambda claim: SettleItems([settled(claim, failed(3), done=[(0, 3)], release=True)], [output(0, "z")]),
    "given back": lambda claim: SettleItems([settled(claim, release=True)]),
    "ack": lambda claim: ack_of([claim]),
    "nack": lambda claim: Nack(claim.lease, None, "oops", None, 0.0),
    "renew": lambda claim: Renew([claim.lease]),
    "release": lambda claim: Release(claim.lease),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "rolled back"])
@pytest.mark.parametrize("what", BESIDE)
def test_whoever_comes_second_waits_and_looks_again(
    connections: Connections, sql: Connection, mode: str, what: str, committed: bool
) -> None:
    create_group(sql, mode=mode, max_attempts=9)
    push_some(sql, 6)
    claim = must_pop(sql)
    one, other = connections.open(), connections.open(autocommit=True)
    assert settle(one, settled(claim, done=[(0, 3)]), outputs=[output(0, "first")]).settled == ["settled"]
    second = BESIDE[what](claim)
    settling = start(other, second)
    assert settling.waits(sql)
    one.commit() if committed else one.rollback()
    try:
        answer = reply(second, settling.rows())
    except LeaseLost:
        pytest.fail("the lease is live")
    again = what in ("the same", "failure")
    if isinstance(answer, SettledItems):
        assert answer.settled == ["repeated" if committed and again else "settled"]
    pushed = {"the same": "x", "all": "y", "failure": "z"}.get(what)
    assert values(sql) == ["first"] * committed + [pushed] * (pushed is not None and not (committed and again))
    pass_time(sql)
    sweep(sql)
    done = range(6) if what in ("all", "ack") else range(3) if committed or again else ()
    assert sorted(offsets(drain(sql))) == [offset for offset in range(6) if offset not in done]
    assert violations(sql) == {}


def test_a_claim_that_ended_while_we_waited_gives_nothing(connections: Connections, sql: Connection) -> None:
    create_group(sql)
    push_some(sql, 3)
    claim = must_pop(sql)
    one, other = connections.open(), connections.open(autocommit=True)
    run(one, ack_of([claim]))
    second = SettleItems([settled(claim, dead(0), release=True)], [output(0, "never")])
    settling = start(other, second)
    assert settling.waits(sql)
    one.commit()
    answer: SettledItems = reply(second, settling.rows())
    assert (answer.settled, answer.outcomes) == ([None], [[None]])
    assert values(sql) == []
    assert violations(sql) == {}


def test_two_whose_outputs_go_to_each_others_partitions_do_not_deadlock(
    connections: Connections, sql: Connection
) -> None:
    create_group(sql)
    push_to_many(sql, 2)
    claims = sorted([must_pop(sql), must_pop(sql)], key=lambda claim: claim.partition)
    holder, one, other = connections.open(), connections.open(autocommit=True), connections.open(autocommit=True)
    # Both hold their claim and wait for the partitions, in which the other's claim lies.
    push_one(holder, "n1")
    push_one(holder, "n2")
    names = ["n1", "n2"]
    first = SettleItems([settled(claims[0], done=ALL)], [output(0, "x", queue="q", partition=name) for name in names])
    second = SettleItems(
        [settled(claims[1], done=ALL)], [output(0, "x", queue="q", partition=name) for name in reversed(names)]
    )
    running = [start(one, first), start(other, second)]
    assert all(each.waits(sql) for each in running)
    holder.commit()
    for operation, each in zip([first, second], running, strict=True):
        assert reply(operation, each.rows()).settled == ["settled"]
    assert sorted(drain(sql)) == [(name, offset) for name in names for offset in (1, 2, 3)]
    assert violations(sql) == {}


def test_who_waits_for_a_partition_holds_up_no_pop_and_no_sweep(connections: Connections, sql: Connection) -> None:
    create_group(sql)
    push_to_many(sql, 3)
    claim = must_pop(sql)
    holder, one = connections.open(), connections.open(autocommit=True)
    push_one(holder, "busy")
    settling = start(one, SettleItems([settled(claim, done=ALL)], [output(0, "x", queue="q", partition="busy")]))
    assert settling.waits(sql)
    assert pop(sql) is not None
    assert sweep(sql) is not None
    holder.rollback()
    settling.rows()


def test_a_lock_timeout_undoes_all_of_it(connections: Connections, sql: Connection) -> None:
    create_group(sql)
    push_some(sql, 2)
    claim = must_pop(sql)
    holder, one = connections.open(), connections.open(autocommit=True)
    push_one(holder, "busy")
    one.execute("SET penstock.lock_timeout = '20ms'")
    settling = SettleItems([settled(claim, dead(0), done=[(1, 2)])], [output(0, "x", queue="q", partition="busy")])
    with pytest.raises(errors.LockNotAvailable):
        run(one, settling)
    holder.rollback()
    assert sql.execute("SELECT count(*) FROM penstock.dead_letters").fetchall() == [(0,)]
    assert run(one, settling).settled == ["settled"]


@pytest.mark.parametrize("mode", MODES)
def test_a_worker_that_is_killed_before_the_commit_has_settled_nothing(
    connections: Connections, sql: Connection, mode: str
) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 4)
    claim = must_pop(sql)
    one = connections.open()
    settling = SettleItems([settled(claim, dead(0), done=[(1, 3)])], [output(0, "x")], Pop("q", "g"))
    run(one, settling)
    sql.execute("SELECT pg_terminate_backend(%s, 5000)", (one.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError):
        one.commit()
    assert values(sql) == []
    assert run(sql, settling).settled == ["settled"]
    assert values(sql) == ["x"]
    assert violations(sql) == {}


def test_many_workers_with_outputs_into_one_another_give_each_output_once(
    connections: Connections, sql: Connection
) -> None:
    """Workers of two queues, each of which pushes to the other; some settle twice, some are killed."""
    hops, items = 3, 28
    for queue in ("a", "b"):
        sql.execute('SELECT penstock.create_queue(%s, \'{"backoff_initial": 0, "lease_time": 600}\')', (queue,))
        for group, mode in (("ordered", "ordered"), ("shared", "shared")):
            run(sql, CreateGroup(queue, group, mode))
    for number in range(items):
        sql.execute("SELECT penstock.push('a', ARRAY[%s::bytea], %s)", (f"{number}", f"p{number % 7}"))
    problems: list[BaseException] = []
    workers = [
        threading.Thread(target=_work, args=(connections.dsn, seed, queue, group, hops, problems))
        for seed, (queue, group) in enumerate([(q, g) for q in "ab" for g in ("ordered", "shared")] * 2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert problems == []
    for queue, lengths in (("a", [0, 2]), ("b", [1, 3])):
        rows = sql.execute(
            "SELECT convert_from(m.payload, 'UTF8') FROM penstock.messages m WHERE m.queue_name = %s", (queue,)
        ).fetchall()
        # Each group gives each message once: its number, then the first letters of the groups that handled it.
        found = [value for (value,) in rows]
        assert sorted(found) == sorted(_expected(items, lengths))
    assert violations(sql) == {}


def _expected(items: int, lengths: list[int]) -> list[str]:
    trails = [""]
    wanted = []
    for length in range(max(lengths) + 1):
        if length:
            trails = [trail + letter for trail in trails for letter in "os"]
        if length in lengths:
            wanted += [f"{number}{trail}" for number in range(items) for trail in trails]
    return wanted


_BUSY = "SELECT EXISTS (SELECT 1 FROM penstock.list_groups() WHERE lag > 0)"


def _work(dsn: str, seed: int, queue: str, group: str, hops: int, problems: list[BaseException]) -> None:
    chance = random.Random(seed)
    pause = threading.Event()
    try:
        connection = psycopg.connect(dsn, autocommit=True)
        while connection.execute(_BUSY).fetchall() == [(True,)]:
            claims = run(connection, Pop(queue, group, max_messages=5, max_partitions=2))
            if not claims:
                connection.execute("SELECT penstock.sweep()")
                pause.wait(0.01)
                continue
            settling = _settling(chance, claims, "b" if queue == "a" else "a", group[0], hops)
            if chance.random() < 0.1:
                # Killed in mid-flight, and sent again by a worker that does not know.
                connection.autocommit = False
                run(connection, settling)
                connection.close()
                connection = psycopg.connect(dsn, autocommit=True)
            first = run(connection, settling)
            if chance.random() < 0.3:
                run(connection, settling)
            for claim, state in zip(claims, first.settled, strict=True):
                assert state == "settled"
                run(connection, Release(claim.lease))
        connection.close()
    except BaseException as error:
        problems.append(error)


def _settling(chance: random.Random, claims: list[Claim], target: str, letter: str, hops: int) -> SettleItems:
    settlings, outputs = [], []
    for number, claim in enumerate(claims):
        done, outcomes = [], []
        for message in claim.messages:
            kind = chance.random()
            if kind < 0.1:
                outcomes.append(snoozed(message.offset, chance.choice([0, 0.01])))
            elif kind < 0.2:
                outcomes.append(failed(message.offset) if claim.attempt == 1 else snoozed(message.offset))
            if kind < 0.2 and not claim.shared:
                break
            if kind >= 0.2:
                done.append((message.offset, message.offset + 1))
                trail = (message.value or b"").decode()
                if len(trail.lstrip("0123456789")) < hops:
                    outputs.append(output(number, trail + letter, queue=target, partition=message.partition))
        whole = len(done) == len(claim.messages)
        settlings.append(settled(claim, *outcomes, done=ALL if whole else done, release=True))
    return SettleItems(settlings, outputs)


@pytest.mark.parametrize("mode", MODES)
def test_a_deletion_does_not_deadlock_with_a_settlement_that_pushes_into_the_partition(
    connections: Connections, sql: Connection, mode: str
) -> None:
    create_group(sql, mode=mode)
    create_group(sql, "other")
    push_some(sql, 3)
    claim = must_pop(sql)
    settling, deleting = connections.open(), connections.open(autocommit=True)
    assert settle(settling, settled(claim, done=[(0, 1)])).settled == ["settled"]
    deletion = Running(deleting, "SELECT penstock.delete_partition('q', 'p')")
    assert deletion.waits(sql)
    # Before it commits it also pushes, as settle_items does with outputs.
    assert settle(settling, settled(claim, done=[(1, 3)]), outputs=[output(0, "x", queue="q", partition="p")]).settled
    settling.commit()
    assert deletion.rows() == [(4,)]
    assert violations(sql) == {}
