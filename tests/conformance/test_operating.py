"""What Spark's flows and archives leave in the database is seen, and flows are paused, by every client."""

from typing import Any

import pytest

from databases import Connection
from penstock import NotFound


def test_a_flow_is_listed_paused_resumed_and_forgotten(api: Any, sql: Connection) -> None:
    sql.execute(
        "SELECT penstock.register_flow('f', 'TRANSFORM', '{in}', '{out}', 'one', '/c', '{a}', '{m.a}', '{p:1}')"
    )
    (found,) = api.flows()
    assert (found.name, found.state, found.sources, found.outputs) == ("f", "stopped", ["in"], ["out"])
    assert [(each.flow, each.action) for each in api.actions("f")] == [("f", "a")]
    api.pause_flow("f")
    assert [each.state for each in api.flows()] == ["paused"]
    api.resume_flow("f")
    assert [each.state for each in api.flows()] == ["stopped"]
    api.forget_flow("f")
    assert (api.flows(), api.actions()) == ([], [])
    with pytest.raises(NotFound, match='no flow "f"'):
        api.pause_flow("f")


def test_an_archive_is_listed_once_it_is_recorded(api: Any, sql: Connection) -> None:
    api.push("q", 1)
    ((run,),) = sql.execute("SELECT run FROM penstock.begin_archive('q', '/somewhere')").fetchall()
    assert api.archives() == []
    sql.execute(
        "SELECT penstock.record_archive(%s, ARRAY['a.parquet'], ARRAY[10]::bigint[], ARRAY['sum'],"
        " ARRAY[penstock.find_partition('q', '0')], ARRAY[0]::bigint[], ARRAY[1]::bigint[], ARRAY[1], ARRAY[0],"
        " ARRAY[0]::bigint[], ARRAY[100]::bigint[], ARRAY[now()], ARRAY[now()])",
        (run,),
    )
    (found,) = api.archives("q")
    assert (found.queue, found.messages) == ("q", 1)


def test_running_tasks_are_seen_by_every_client(api: Any, sql: Connection) -> None:
    sql.execute(
        "SELECT penstock.report_tasks('w', jsonb_build_array(jsonb_build_object('action_class', 'm.a', 'flow', 'f', "
        "'action', 'a', 'did', gen_random_uuid(), 'message_id', gen_random_uuid(), 'started_at', now(), 'attempt', 2)))"
    )
    (found,) = api.tasks()
    assert (found.worker, found.flow, found.flow_type, found.attempt) == ("w", "f", "UNKNOWN", 2)
    assert ([task.did for task in api.tasks("f")], api.tasks("other")) == ([found.did], [])
