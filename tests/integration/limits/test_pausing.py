"""A paused group gets nothing and writes nothing, until it is resumed; what it holds can be settled."""

import psycopg
import pytest
from groups.steps import (
    MODES,
    ack,
    ack_of,
    create_group,
    drain,
    must_pop,
    nack,
    offsets,
    pop,
    pop_call,
    push_some,
    run,
    start,
    violations,
)

from databases import Connection, Connections
from penstock.broker.operations.claiming import AckAndPop, Pop, PopMany
from penstock.broker.operations.flows import PauseFlow
from penstock.broker.operations.groups import CreateGroup, ListGroups, PauseGroup

from .steps import is_pending, writing_nothing

WAYS = {
    "any": lambda: pop_call(),
    "named": lambda: pop_call(partition="p"),
    "auto_ack": lambda: pop_call(auto_ack=True),
    "several": lambda: pop_call(partitions=5),
}


def pause(connection: Connection, paused: bool = True) -> bool:
    return run(connection, PauseGroup("q", "g", paused))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
def test_a_paused_group_gets_nothing_and_writes_nothing(sql: Connection, mode: str, way: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 3)
    assert pause(sql) is True
    with writing_nothing(sql):
        assert run(sql, WAYS[way]()) == []
        assert not is_pending(sql)
    assert pause(sql, False) is True
    assert is_pending(sql)
    assert [message.offset for claim in run(sql, WAYS[way]()) for message in claim.messages] == [0, 1, 2]


def test_pops_that_are_sent_together_see_the_pause_of_each_group(sql: Connection) -> None:
    create_group(sql)
    create_group(sql, "other")
    push_some(sql, 1)
    pause(sql)
    pops = [Pop("q", group, None, 1, 1 << 20, 1, None, "c", False) for group in ("g", "other", "g")]
    assert [len(claims or ()) for claims in run(sql, PopMany(pops))] == [0, 1, 0]


@pytest.mark.parametrize("mode", MODES)
def test_what_a_paused_group_holds_is_settled_and_its_retries_wait(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 4)
    first, second = must_pop(sql, most=1), None
    if mode == "shared":
        second = must_pop(sql, most=1)
    pause(sql)
    done = run(sql, AckAndPop(ack_of([first]).ranges, pop_call()))  # type: ignore[arg-type]
    assert (done.acked, done.claims) == ([True], [])
    if second is not None:
        assert nack(sql, second) == "retry"
    assert drain(sql) == []
    pause(sql, False)
    assert sorted(offsets(drain(sql))) == [1, 2, 3]
    assert violations(sql) == {}


def test_pausing_twice_changes_nothing_and_says_so(sql: Connection) -> None:
    create_group(sql)
    assert [pause(sql), pause(sql), pause(sql, False), pause(sql, False)] == [True, False, True, False]
    (group,) = run(sql, ListGroups("q"))
    assert (group.paused, group.settings["paused"], group.config) == (False, False, {})


def test_a_group_that_does_not_exist_cannot_be_paused(sql: Connection) -> None:
    create_group(sql)
    with pytest.raises(psycopg.errors.UndefinedObject, match='has no group "other"'):
        sql.execute("SELECT penstock.pause_group('q', 'other')")


def test_pushes_to_a_paused_group_are_kept_for_it(sql: Connection) -> None:
    create_group(sql)
    pause(sql)
    push_some(sql, 2, "a")
    push_some(sql, 2, "b")
    (group,) = run(sql, ListGroups("q"))
    assert (group.paused, group.lag) == (True, 4)
    pause(sql, False)
    assert sorted(drain(sql)) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert pop(sql) is None


def test_a_pause_ends_no_claim(sql: Connection) -> None:
    create_group(sql)
    push_some(sql, 1)
    claim = must_pop(sql)
    pause(sql)
    ack(sql, claim)
    assert violations(sql) == {}


def registered(sql: Connection, flow: str = "f", action: str = "a", queue: str = "q") -> None:
    """Register an action of a flow, as a worker does."""
    sql.execute(
        "SELECT penstock.register_actions(ARRAY[%s], ARRAY[%s], '{DATA_SINK}', '{m.a}', '{p:1}', ARRAY[%s], '{NULL}')",
        (flow, action, queue),
    )


def paused_groups(sql: Connection) -> list[str]:
    return [group.name for group in run(sql, ListGroups()) if group.paused]


def test_a_group_that_is_created_while_its_flow_is_being_paused_is_paused(
    connections: Connections, sql: Connection
) -> None:
    registered(sql)
    pausing = connections.open()
    run(pausing, PauseFlow("f", True))
    creating = start(connections.open(autocommit=True), CreateGroup("q", "f.a"))
    assert creating.waits(sql)
    pausing.commit()
    creating.rows()
    assert paused_groups(sql) == ["f.a"]


def test_a_flow_that_is_paused_while_a_group_is_being_created_pauses_it(
    connections: Connections, sql: Connection
) -> None:
    registered(sql)
    creating = connections.open()
    run(creating, CreateGroup("q", "f.a"))
    pausing = start(connections.open(autocommit=True), PauseFlow("f", True))
    assert pausing.waits(sql)
    creating.commit()
    pausing.rows()
    assert paused_groups(sql) == ["f.a"]


def test_an_action_that_joins_a_paused_flow_is_paused(sql: Connection) -> None:
    registered(sql)
    run(sql, CreateGroup("q", "f.b"))
    run(sql, PauseFlow("f", True))
    assert paused_groups(sql) == []
    registered(sql, action="b")
    assert paused_groups(sql) == ["f.b"]
    run(sql, PauseFlow("f", False))
    assert paused_groups(sql) == []
