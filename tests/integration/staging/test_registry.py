"""The registry of flows: who holds one, in which state it is shown, and what a changed flow may not overwrite."""

from databases import Connection
from penstock import Client

from .steps import value


def register(sql: Connection, shape: str = "one", outputs: str = "{out}") -> tuple[str, str]:
    ((kept, checkpoint, _, _),) = sql.execute(
        "SELECT * FROM penstock.register_flow('f', 'TRANSFORM', '{in}', %s, %s, '/c', '{a}', '{m.a}', '{p:1}')",
        (outputs, shape),
    ).fetchall()
    return kept, checkpoint


def tell(sql: Connection, supervisor: str, state: str) -> str:
    return str(value(sql, "SELECT holder FROM penstock.heartbeat_flow('f', %s, %s)", supervisor, state))


def silence(sql: Connection) -> None:
    sql.execute("UPDATE penstock.flow_states SET heartbeat_at = heartbeat_at - interval '1 minute'")


def state(client: Client) -> str:
    (info,) = client.flows()
    return info.state


def test_the_first_one_holds_a_flow_until_it_is_over_or_silent(sql: Connection) -> None:
    assert tell(sql, "a", "starting") == "a"
    assert tell(sql, "b", "starting") == "a"
    for over in ("stopped", "finished", "failed"):
        assert tell(sql, "a", over) == "a"
        assert tell(sql, "b", "running") == "b"
        assert tell(sql, "a", "running") == "b"
        assert tell(sql, "b", "stopped") == "b"
        assert tell(sql, "a", "running") == "a"
    silence(sql)
    assert tell(sql, "b", "running") == "b"


def test_a_state_that_lasts_is_shown_when_its_supervisor_is_gone(sql: Connection, client: Client) -> None:
    register(sql)
    assert state(client) == "stopped"
    for told, shown in (("running", "lost"), ("failed", "failed"), ("finished", "finished"), ("backing off", "lost")):
        tell(sql, "a", told)
        assert state(client) == told
        silence(sql)
        assert state(client) == shown


def test_a_flow_that_shall_pause_is_shown_so_where_nobody_runs_it(sql: Connection, client: Client) -> None:
    register(sql)
    client.pause_flow("f")
    assert state(client) == "paused"
    tell(sql, "a", "running")
    # Its supervisor has not heard of it yet.
    assert state(client) == "running"
    silence(sql)
    assert state(client) == "paused"
    client.resume_flow("f")
    assert state(client) == "lost"


def test_a_flow_of_another_shape_is_not_written_over_one_that_has_published(sql: Connection, client: Client) -> None:
    assert register(sql) == ("one", "/c")
    assert register(sql, "two", "{other}") == ("two", "/c")
    sql.execute("UPDATE penstock.flows SET writer = 'query'")
    assert register(sql, "three", "{third}") == ("two", "/c")
    assert [info.outputs for info in client.flows()] == [["other"]]
    assert register(sql, "two", "{third}") == ("two", "/c")
    assert [info.outputs for info in client.flows()] == [["third"]]


def test_old_poison_is_swept_away(sql: Connection) -> None:
    sql.execute("SELECT penstock.add_poison('f', '{1,1}', '{2,3}', 'why', '{a,b}')")
    sql.execute("UPDATE penstock.poison SET found_at = found_at - interval '31 days' WHERE message_offset = 2")
    sql.execute("SELECT penstock.sweep_stages()")
    found = sql.execute("SELECT message_offset FROM penstock.find_poison('f', '{1}', '{0}', '{9}')").fetchall()
    assert found == [(3,)]
