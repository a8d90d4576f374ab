"""`pop_batch` and its packed twin: who gets which partition, what is answered, and that nobody waits for anybody."""

import json
from typing import Any

import pytest
from groups.steps import (
    ack,
    create_group,
    drain,
    must_pop,
    pass_time,
    push_some,
    push_to_many,
    reply,
    run,
    start,
    violations,
)
from log.interleaving import Running, mutate, push
from psycopg import errors

from databases import Connection, Connections
from penstock.broker.claims import Claim
from penstock.broker.operations.claiming import HasPending, Pop, PopMany
from penstock.broker.operations.operation import Operation
from penstock.postgres.statements.call import call_for

NOTHING: dict[str, Any] = {"leaseId": None, "messages": []}


def pop_batch(connection: Connection, *requests: dict[str, Any]) -> dict[str, Any]:
    """Call the function with JSON."""
    ((answer,),) = connection.execute("SELECT penstock.pop_batch(%s)", (json.dumps(requests),)).fetchall()
    return dict(answer)


def wish(request_id: str, partition: str | None = None, group: str = "g", **more: Any) -> dict[str, Any]:
    return {
        "request_id": request_id, "queue_name": "q", "partition_name": partition, "consumer_group": group, **more
    }  # fmt: skip


def taken(answers: dict[str, Any]) -> dict[str, str]:
    """Return which request got which partition."""
    return {name: answer["partition"] for name, answer in answers.items() if answer["leaseId"]}


def many_call(*partitions: str | None, group: str = "g", most: int = 100, auto_ack: bool = False) -> Operation[Any]:
    """Return some pops as one operation."""
    requests = [Pop("q", group, name, most, 8 << 20, 1, None, "c", auto_ack) for name in partitions]
    return PopMany(requests)


def pop_many(connection: Connection, *partitions: str | None, **options: Any) -> list[list[Claim] | None]:
    return run(connection, many_call(*partitions, **options))


def claimed(answers: list[list[Claim] | None]) -> list[str]:
    return [claim.partition for claims in answers for claim in claims or []]


def test_an_answer_has_the_lease_the_place_and_the_messages(sql: Connection) -> None:
    create_group(sql)
    sql.execute("SELECT penstock.push_json('q', '{\"n\": 1}', 'ada', NULL, '{\"traceId\": \"t-1\"}')")
    sql.execute("SELECT penstock.push('q', ARRAY['plain', '\\xff00']::bytea[], 'ada')")
    answer = pop_batch(sql, wish("a", batch_size=5, lease_time_seconds=7))["a"]
    ((lease, until, left),) = sql.execute(
        "SELECT lease_id::text, expires_at, extract(epoch FROM expires_at - acquired_at) FROM penstock.list_claims()"
    ).fetchall()
    assert (answer["leaseId"], answer["queue"], answer["partition"]) == (lease, "q", "ada")
    assert answer["leaseExpiresAt"] == sql.execute("SELECT to_jsonb(%s)", (until,)).fetchall()[0][0]
    assert 6 < left <= 7
    read = sql.execute("SELECT id::text, to_jsonb(created_at) FROM penstock.read('q', 'ada')").fetchall()
    assert [(message["messageId"], message["createdAt"]) for message in answer["messages"]] == read
    first, second, third = answer["messages"]
    assert (first["payload"], first["traceId"]) == ({"n": 1}, "t-1")
    assert (second["payloadText"], second["traceId"]) == ("plain", None)
    assert third["payloadBase64"] == "/wA="
    sql.execute("SELECT penstock.ack('q', 'g', 'ada', %s)", (lease,))
    assert drain(sql) == []


def test_by_default_one_message_under_the_queues_lease(sql: Connection) -> None:
    create_group(sql, lease_time=100)
    push_some(sql, 3)
    for lease_time in (0, None):
        answer = pop_batch(sql, wish("a", lease_time_seconds=lease_time))["a"]
        assert len(answer["messages"]) == 1
        ((left,),) = sql.execute(
            "SELECT extract(epoch FROM expires_at - acquired_at) FROM penstock.list_claims()"
        ).fetchall()
        assert 99 < left <= 100
        sql.execute("SELECT penstock.ack('q', 'g', 'p', %s)", (answer["leaseId"],))


def test_wildcards_of_a_group_get_different_partitions_in_the_order_of_the_line(sql: Connection) -> None:
    create_group(sql)
    for name in "edcba":
        push(sql, name)
    answers = pop_batch(sql, *(wish(f"r{n}", "*" if n % 2 else None) for n in range(7)))
    assert taken(answers) == {"r0": "e", "r1": "d", "r2": "c", "r3": "b", "r4": "a"}
    assert answers["r5"] == answers["r6"] == NOTHING
    assert violations(sql) == {}


def test_a_request_for_several_partitions_takes_its_share_first(sql: Connection) -> None:
    create_group(sql)
    push_to_many(sql, 5)
    requests = [Pop("q", "g", None, 10, 8 << 20, share, None, "c", False) for share in (3, 1, 3)]
    answers = run(sql, PopMany(requests))
    assert [len(claims or []) for claims in answers] == [3, 1, 1]
    assert len(set(claimed(answers))) == 5


def test_a_wildcard_never_takes_what_is_named_in_the_same_batch(sql: Connection) -> None:
    create_group(sql)
    for name in "abc":
        push(sql, name)
    # The named one comes last in the batch, and its partition first in the ready list.
    answers = pop_batch(sql, wish("any"), wish("any2"), wish("any3"), wish("named", "a"))
    assert taken(answers) == {"any": "b", "any2": "c", "named": "a"}


def wildcard_beside_a_name(sql: Connection) -> list[str]:
    """Pop one partition by name and any other at once, so that what was named is ready again; return what came."""
    create_group(sql)
    push_some(sql, 5, "a")
    return claimed(pop_many(sql, None, "a", most=1, auto_ack=True))


def test_not_even_where_the_named_one_has_given_it_back_already(sql: Connection) -> None:
    assert wildcard_beside_a_name(sql) == ["a"]


def test_without_passing_it_the_wildcard_would_take_it(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "ack_and_pop", ("y.partition_id <> ALL (passing)", "true"))
    assert wildcard_beside_a_name(sql) == ["a", "a"]


def test_of_two_that_name_the_same_partition_one_wins_and_the_other_is_empty(sql: Connection) -> None:
    create_group(sql)
    push_some(sql, 5, "a")
    answers = pop_batch(sql, wish("one", "a"), wish("two", "a"), wish("none", "unknown"))
    assert taken(answers) == {"one": "a"}
    assert answers["two"] == answers["none"] == NOTHING


def test_groups_do_not_get_in_each_others_way(sql: Connection) -> None:
    for group in "gh":
        create_group(sql, group)
    for name in "ab":
        push(sql, name)
    answers = pop_batch(
        sql, wish("g1"), wish("h-named", "a", "h"), wish("g2"), wish("h1", None, "h"), wish("g-named", "b")
    )
    assert taken(answers) == {"g1": "a", "h-named": "a", "h1": "b", "g-named": "b"}
    assert answers["g2"] == NOTHING
    assert violations(sql) == {}


def test_in_a_shared_group_one_partition_serves_all_with_ranges_that_do_not_overlap(sql: Connection) -> None:
    create_group(sql, mode="shared")
    push_some(sql, 40, "a")
    answers = pop_many(sql, *[None] * 15, "a", "a", most=2)
    ranges = sorted((claim.start, claim.stop) for claims in answers for claim in claims or [])
    assert ranges == [(start, start + 2) for start in range(0, 34, 2)]
    assert violations(sql) == {}


def test_no_requests_are_no_answers(sql: Connection) -> None:
    assert pop_batch(sql) == {}


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ({}, "JSON array"),
        ([{"queue_name": "q"}], "request 1 has no request_id"),
        ([{"request_id": "a"}], '"a" has no queue_name'),
        ([wish("a"), wish("a")], 'two requests have the request_id "a"'),
        ([wish("fine"), wish("a", batch_size=0)], '"a": batch_size is 0'),
        ([wish("fine"), wish("a", lease_time_seconds=-1)], '"a": lease_time_seconds is -1'),
    ],
)
def test_bad_input_names_the_request_and_changes_nothing(sql: Connection, requests: Any, said: str) -> None:
    create_group(sql)
    push_some(sql, 3)
    with pytest.raises(errors.InvalidParameterValue, match=said):
        sql.execute("SELECT penstock.pop_batch(%s)", (json.dumps(requests),))
    assert len(must_pop(sql).messages) == 3


def test_queue_and_group_come_into_being_on_first_use(sql: Connection) -> None:
    push(sql, "a")
    assert taken(pop_batch(sql, wish("new"))) == {"new": "a"}
    assert pop_batch(sql, {"request_id": "x", "queue_name": "unheard of"}) == {"x": NOTHING}
    groups = sql.execute("SELECT queue, name FROM penstock.list_groups() ORDER BY 1, 2").fetchall()
    assert groups == [("q", "g"), ("unheard of", "default")]


def test_a_new_group_waits_for_no_push_and_holds_up_none(connections: Connections, sql: Connection) -> None:
    create_group(sql)
    push(sql, "a")
    pusher, popper = connections.open(), connections.open()
    push(pusher, "b")
    popping = Running(popper, "SELECT penstock.pop_batch(%s)", json.dumps([wish("g"), wish("n", group="n")]))
    assert not popping.waits(sql)
    assert taken(popping.value()) == {"g": "a", "n": "a"}
    push(sql, "c")
    popper.commit()
    pusher.commit()
    assert sorted(drain(sql, "n")) == [("b", 0), ("c", 0)]
    assert violations(sql) == {}


def new_group_beside_a_deletion(connections: Connections, sql: Connection) -> bool:
    """Return whether a batch with a new group of a queue that is being deleted waits for that."""
    create_group(sql)
    push(sql, "a")
    sql.execute("SELECT penstock.push_json('other', '1')")
    deleter, popper = connections.open(), connections.open(autocommit=True)
    deleter.execute("SELECT penstock.delete_queue('other')")
    new = {"request_id": "n", "queue_name": "other", "consumer_group": "n"}
    popping = Running(popper, "SELECT penstock.pop_batch(%s)", json.dumps([wish("g"), new]))
    waited = popping.waits(sql)
    deleter.commit()
    assert taken(popping.value()) == {"g": "a"}
    return waited


def test_a_new_group_does_not_make_the_others_wait_for_a_deletion(connections: Connections, sql: Connection) -> None:
    assert not new_group_beside_a_deletion(connections, sql)


def test_without_looking_for_the_lock_first_they_would_wait(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "pop_batch", ("pg_try_advisory_xact_lock_shared(penstock.queue_lock_class(), q.queue_id)", "true"))
    assert new_group_beside_a_deletion(fresh, sql)


def test_the_packed_form_leaves_making_a_group_to_whoever_asks_alone(sql: Connection) -> None:
    create_group(sql)
    push(sql, "a")
    requests = [Pop("q", group, None, 1, 8 << 20, 1, None, "c", False) for group in ("g", "new")]
    known, new = run(sql, PopMany(requests))
    assert (claimed([known]), new) == (["a"], None)
    assert sql.execute("SELECT name FROM penstock.list_groups()").fetchall() == [("g",)]


def test_an_answer_that_is_full_asks_the_others_to_come_again(sql: Connection) -> None:
    create_group(sql)
    for name in "abcd":
        push_some(sql, 1000, name)
    pops = many_call("a", None, None, None, most=1000)
    call = call_for(pops)
    rows = sql.execute(f"{call.sql[:-1]}, 1500)".encode(), call.parameters, binary=True).fetchall()
    answers = call.parse(rows)
    assert claimed(answers) == ["a", "b"]
    assert [answer is None for answer in answers] == [False, False, True, True]
    assert claimed(pop_many(sql, None, None)) == ["c", "d"]


def two_batches_at_once(connections: Connections, sql: Connection) -> tuple[list[str], list[str]]:
    """Pop twice three partitions of five, the second time while the first is not committed; return what each got."""
    create_group(sql)
    push_to_many(sql, 5)
    first, second = connections.open(), connections.open(autocommit=True)
    one = pop_many(first, None, None, "n1")
    popping = start(second, many_call(None, None, "n1"))
    assert not popping.waits(sql)
    two = reply(many_call(None, None, "n1"), popping.rows())
    first.commit()
    return claimed(one), claimed(two)


def test_two_batches_at_once_neither_wait_nor_overlap(connections: Connections, sql: Connection) -> None:
    one, two = two_batches_at_once(connections, sql)
    assert (len(one), len(two)) == (3, 2)
    assert sorted(one + two) == ["n1", "n2", "n3", "n4", "n5"]
    assert violations(sql) == {}


def test_what_a_batch_that_rolls_back_had_claimed_goes_to_the_next(connections: Connections, sql: Connection) -> None:
    create_group(sql)
    push_to_many(sql, 3)
    first = connections.open()
    assert len(claimed(pop_many(first, None, None, "n1"))) == 3
    first.rollback()
    assert len(claimed(pop_many(sql, None, None, "n1"))) == 3


def test_every_interleaving_of_two_batches_gives_each_partition_once(connections: Connections, sql: Connection) -> None:
    """All orders in which two transactions of a batch and its acknowledgement can run, step by step."""
    create_group(sql)
    for order in ("aabb", "abab", "abba", "bbaa", "baba", "baab"):
        push_to_many(sql, 4)
        both = {name: connections.open() for name in "ab"}
        got: dict[str, list[list[Claim] | None]] = {}
        for name in order:
            if name not in got:
                got[name] = pop_many(both[name], None, None, None, most=1)
            else:
                both[name].commit()
        one, two = claimed(got["a"]), claimed(got["b"])
        assert not set(one) & set(two), order
        assert len(one) == len(set(one)), order
        assert len(one) + len(two) == 4, order
        assert violations(sql) == {}
        for claims in (*got["a"], *got["b"]):
            for claim in claims or []:
                ack(sql, claim)
        drain(sql)
        pass_time(sql)
        drain(sql)


@pytest.mark.parametrize(
    ("partition", "state", "pending"),
    [
        (None, "new", True),
        ("*", "new", True),
        ("a", "new", True),
        ("b", "new", False),
        (None, "claimed", False),
        ("a", "claimed", False),
        (None, "done", False),
        ("a", "done", False),
    ],
)
@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_pending_is_what_a_pop_could_get(
    sql: Connection, mode: str, partition: str | None, state: str, pending: bool
) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 3, "a")
    if state != "new":
        claim = must_pop(sql)
        if state == "done":
            ack(sql, claim)
            drain(sql)
    assert has_pending(sql, partition) is pending


def has_pending(sql: Connection, partition: str | None = None, group: str = "g", queue: str = "q") -> bool:
    """Ask from the front, and from places that clients remember: the answers must agree."""
    answers = {run(sql, HasPending(queue, group, partition, lows)) for lows in (None, [0], [0, 0, 0, 0])}
    (answer,) = answers
    return answer


def test_what_lies_before_the_place_to_begin_is_not_looked_at(sql: Connection) -> None:
    create_group(sql)
    push(sql)
    ((seq,),) = sql.execute("SELECT seq FROM penstock.ready").fetchall()
    answers = [run(sql, HasPending("q", "g", None, [low])) for low in (seq, seq + 1)]
    assert answers == [True, False]


def test_ranges_that_came_back_to_a_shared_group_are_pending(sql: Connection) -> None:
    create_group(sql, mode="shared")
    push_some(sql, 3, "a")
    claim = must_pop(sql)
    assert not has_pending(sql, "a")
    sql.execute("SELECT penstock.release_claim(%s, %s, %s)", (claim.group_id, claim.partition_id, claim.lease_id))
    assert (has_pending(sql), has_pending(sql, "a"), has_pending(sql, "b")) == (True, True, False)


def test_every_priority_is_looked_at(sql: Connection) -> None:
    create_group(sql)
    sql.execute("SELECT penstock.create_partition('q', 'low', -3)")
    sql.execute("SELECT penstock.create_partition('q', 'high', 3)")
    assert not has_pending(sql)
    for name in ("low", "high"):
        push(sql, name)
        assert has_pending(sql)
        ack(sql, must_pop(sql))
        drain(sql)
        assert not has_pending(sql)


def test_a_group_that_does_not_exist_has_everything_before_it_and_a_queue_nothing(sql: Connection) -> None:
    push(sql)
    assert has_pending(sql, group="unheard of")
    assert not has_pending(sql, queue="unheard of")
