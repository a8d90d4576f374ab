"""Roles of least privilege: each may do its part through the functions, and none touches a table."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from databases import Connection
from penstock import Client, SetupError
from penstock import sql as schema
from penstock.postgres.migrate import grant

Open = Callable[[str | None], Client]

PUSH = "push"
ACTS: dict[str, Callable[[Client], Any]] = {
    "push": lambda c: c.push("q", 1),
    "push to several": lambda c: c.push_many("q", [("a", 1), ("b", 2)]),
    "push for later": lambda c: c.push("q", 1, delay=3600),
    "push once": lambda c: c.push("once", 1, dedupe_id="x"),
    "cancel": lambda c: c.cancel(1),
    "scheduled": lambda c: c.scheduled("q"),
    "read": lambda c: c.read("q", "0"),
    "table": lambda c: c.read_arrow("q", "0"),
    "list": lambda c: c.queues(),
    "partitions": lambda c: c.partitions("q"),
    "tail": lambda c: list(c.tail("q", follow=False)),
    "create": lambda c: c.create(f"made {uuid4()}"),
    "configure": lambda c: c.configure("q", lease_time=1),
    "purge": lambda c: c.purge("q"),
    "maintain": lambda c: list(c.maintain()),
    "delete": lambda c: c.delete("q"),
}
PRODUCER = ["push", "push to several", "push for later", "push once", "cancel", "scheduled"]
CONSUMER = ["scheduled", "read", "table", "list", "partitions", "tail"]


@pytest.fixture
def admin(penstock_dsn: str) -> Iterator[Connection]:
    with psycopg.connect(penstock_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def as_user(penstock_dsn: str, admin: Connection) -> Iterator[Open]:
    """Opens a client as a new database user, who was granted one of the roles or none."""
    names: list[str] = []
    clients: list[Client] = []

    def open_as(role: str | None) -> Client:
        names.append(f"penstock_user_{uuid4().hex[:12]}")
        admin.execute(SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(Identifier(names[-1])))
        if role is not None:
            grant(admin, role, names[-1])
        clients.append(Client(make_conninfo(penstock_dsn, user=names[-1], password="secret")))
        return clients[-1]

    yield open_as
    for client in clients:
        client.close()
    for name in names:
        admin.execute(SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(Identifier(name)))


def allowed(client: Client) -> list[str]:
    """Return what this user may do; all else must be refused as a lack of rights."""
    done: list[str] = []
    refusals: list[str] = []
    for what, act in ACTS.items():
        try:
            act(client)
        except SetupError as error:
            refusals.append(str(error))
        else:
            done.append(what)
    assert all("permission denied" in said and "penstock grant" in said for said in refusals)
    return done


def test_each_role_may_do_its_part_and_no_more(penstock_dsn: str, as_user: Open) -> None:
    with Client(penstock_dsn) as owner:
        owner.push("q", 0)
        owner.create("once", dedupe_window=60)
    assert allowed(as_user("producer")) == PRODUCER
    assert allowed(as_user("consumer")) == CONSUMER
    assert allowed(as_user("admin")) == list(ACTS)


def test_a_consumer_finds_a_message_by_its_id_and_sees_the_views(penstock_dsn: str, as_user: Open) -> None:
    with Client(penstock_dsn) as owner:
        (message_id,) = owner.push("q", 7).ids
    consumer = as_user("consumer")
    assert consumer.get(message_id).json() == 7
    with consumer.transaction() as tx:
        for view in ("messages", "partition_lookup", "log_counter"):
            assert len(tx.connection.execute(f"SELECT * FROM penstock.{view}").fetchall()) == 1


def test_a_producer_pushes_in_a_transaction_of_its_own(as_user: Open) -> None:
    with as_user("producer").transaction() as tx:
        pending = tx.push("q", 1, key="k")
    assert pending.result.first_offset == 0


def test_nobody_gets_in_without_a_role_and_is_told_what_to_do(as_user: Open) -> None:
    with pytest.raises(SetupError, match=r"permission denied .* `penstock grant producer\|consumer\|admin"):
        as_user(None)


@pytest.mark.parametrize("role", schema.ROLES)
def test_no_role_touches_a_table(as_user: Open, admin: Connection, role: str) -> None:
    client = as_user(role)
    tables = admin.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'penstock' AND tablename <> 'migrations'"
    ).fetchall()
    assert len(tables) >= 3
    for (table,) in tables:
        for statement in (f"SELECT FROM penstock.{table}", f"DELETE FROM penstock.{table}"):
            with pytest.raises(errors.InsufficientPrivilege), client.transaction() as tx:
                tx.connection.execute(statement)
    with pytest.raises(errors.InsufficientPrivilege), client.transaction() as tx:
        tx.connection.execute("DELETE FROM penstock.migrations")


def test_everybody_else_has_nothing(admin: Connection) -> None:
    granted = admin.execute(
        "SELECT 'schema' WHERE has_schema_privilege('public', 'penstock', 'USAGE')"
        " UNION ALL SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'penstock'::regnamespace"
        " AND has_function_privilege('public', oid, 'EXECUTE')"
        " UNION ALL SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'penstock'::regnamespace"
        " AND relkind IN ('r', 'v') AND has_table_privilege('public', oid, 'SELECT, INSERT, UPDATE, DELETE')"
    ).fetchall()
    assert granted == []


def test_functions_that_run_as_their_owner_pin_the_search_path(admin: Connection) -> None:
    unpinned = admin.execute(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'penstock'::regnamespace AND prosecdef"
        " AND NOT coalesce(proconfig::text LIKE '%search_path=pg_catalog, pg_temp%', false)"
    ).fetchall()
    assert unpinned == []


def test_the_owners_functions_cannot_be_led_astray(as_user: Open) -> None:
    producer = as_user("producer")
    with producer.transaction() as tx:
        tx.connection.execute("CREATE TEMP TABLE segments (LIKE pg_class)")
        tx.connection.execute("SET search_path = pg_temp, public")
        tx.push("q", 1)


def test_a_consumer_reads_nothing_that_is_staged(as_user: Open, admin: Connection) -> None:
    admin.execute("SELECT penstock.begin_stage('w', 'r', 0)")
    admin.execute(
        "SELECT penstock.stage_segments(stage_id, 0, '{q}', '{p}', '{1}', 'x', '\\x01000000') FROM penstock.stages"
    )
    with as_user("consumer").transaction() as tx:
        for query in (
            "SELECT * FROM generate_series(1, 9) s, penstock.read_ranges(ARRAY[-s::bigint], '{0}', '{9}')",
            "SELECT * FROM generate_series(1, 9) s, penstock.plan_ranges(ARRAY[-s::bigint], '{0}', '{9}')",
            "SELECT * FROM generate_series(1, 9) s, penstock.backlog_by_time(ARRAY[-s::bigint], '{0}', '{9}', 9, 9) b"
            " WHERE b.range_positions IS NOT NULL",
            "SELECT * FROM generate_series(1, 9) s, penstock.spend_bytes(ARRAY[-s::bigint], '{0}', '{9}', 9) b"
            " WHERE b.bytes > 0",
            "SELECT * FROM generate_series(1, 9) s, penstock.offsets_at(ARRAY[-s::bigint], 'infinity') b"
            " WHERE b <> '{0}'",
        ):
            assert tx.connection.execute(query).fetchall() == []


@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_only_an_admin_takes_a_claim_from_whoever_holds_it(penstock_dsn: str, as_user: Open, mode: str) -> None:
    with Client(penstock_dsn) as owner:
        owner.create_group("q", "g", mode=mode)
        owner.push("q", 1)
        batch = owner.pop("q", "g")
        assert batch is not None
        (claim,) = owner.claims("q")
        consumer = as_user("consumer")
        for query in ("SELECT penstock.release_claim(%s, %s, NULL)", "SELECT penstock.release_claim(%s, %s)"):
            with pytest.raises(errors.InsufficientPrivilege), consumer.transaction() as tx:
                tx.connection.execute(query, (claim.group_id, claim.partition_id))
        (seen,) = consumer.claims("q")
        with pytest.raises(SetupError, match="needs the admin role"):
            consumer.release_claim(seen)
        assert len(owner.claims("q")) == 1
        assert as_user("admin").release_claim(claim)
        assert owner.claims("q") == []


@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_only_admins_are_told_lease_ids_as_whoever_knows_one_can_settle_the_claim(
    penstock_dsn: str, as_user: Open, mode: str
) -> None:
    with Client(penstock_dsn) as owner:
        owner.create_group("q", "g", mode=mode)
        owner.push("q", 1)
        batch = owner.pop("q", "g")
        assert batch is not None

        def told(client: Client) -> set[bool]:
            claims = {claim.lease_id is not None for claim in client.claims("q")}
            # A claim of a shared group is not in its journal.
            steps = {step.lease_id is not None for step in client.history("q", "g", "0") if step.state == "claimed"}
            return claims | steps

        assert told(as_user("consumer")) == {False}
        assert told(as_user("admin")) == told(owner) == {True}


def test_a_consumer_releases_its_own_claim(penstock_dsn: str, as_user: Open) -> None:
    with Client(penstock_dsn) as owner:
        owner.push("q", 1)
    consumer = as_user("consumer")
    batch = consumer.pop("q", "g")
    assert batch is not None
    batch.release()
    assert consumer.claims("q") == []


def test_a_consumer_does_not_publish_for_a_flow(as_user: Open) -> None:
    with pytest.raises(errors.InsufficientPrivilege), as_user("consumer").transaction() as tx:
        tx.connection.execute("SELECT penstock.publish_epoch('flow', 'mine', 'r', 0, '{}', '{}')")


def test_a_producer_does_not_retire_the_run_of_another_ones_query(as_user: Open) -> None:
    mine, other, admin = as_user("producer"), as_user("producer"), as_user("admin")

    def begin(client: Client, run: str) -> None:
        with client.transaction() as tx:
            tx.connection.execute("SELECT penstock.begin_stage('w', %s, 0)", (run,))

    def publish(client: Client, run: str) -> Any:
        with client.transaction() as tx:
            answer = tx.connection.execute("SELECT * FROM penstock.publish_stages('w', %s, 0, '{}', '{}')", (run,))
            return answer.fetchall()

    def stage(client: Client, run: str) -> None:
        with client.transaction() as tx:
            tx.connection.execute(
                "SELECT penstock.stage_segments(1, 0, '{q}', '{p}', '{1}', %s, '\\x01000000')", (run[:1].encode(),)
            )

    def abort(client: Client, run: str) -> None:
        with client.transaction() as tx:
            tx.connection.execute("SELECT penstock.abort_stages('w', %s, '{1}')", (run,))

    begin(mine, "first")
    for attempt in (begin, publish, stage, abort):
        for run in ("first", "second"):
            with pytest.raises(errors.InsufficientPrivilege, match="is written by user"):
                attempt(other, run)
    stage(mine, "first")
    abort(mine, "first")
    assert publish(mine, "first")[0][0] == "published"
    begin(admin, "third")


def test_no_login_keeps_the_sweep_from_its_work(penstock_dsn: str, admin: Connection) -> None:
    with psycopg.connect(penstock_dsn) as nosy, Client(penstock_dsn) as client:
        nosy.execute("SELECT pg_advisory_lock(penstock.queue_lock_class(), -1)")
        client.push("q", 1, delay=0.001)
        assert admin.execute("SELECT woken FROM penstock.sweep()").fetchall() == [(1,)]


def test_only_one_sweeps_at_a_time(penstock_dsn: str, admin: Connection) -> None:
    with psycopg.connect(penstock_dsn) as first:
        assert len(first.execute("SELECT * FROM penstock.sweep()").fetchall()) == 1
        assert admin.execute("SELECT * FROM penstock.sweep()").fetchall() == []
    assert len(admin.execute("SELECT * FROM penstock.sweep()").fetchall()) == 1


def test_a_lack_of_rights_names_the_role_that_is_missing(as_user: Open) -> None:
    producer, consumer = as_user("producer"), as_user("consumer")
    with pytest.raises(SetupError, match="`penstock grant consumer USER`"):
        producer.pop("q", "g")
    with pytest.raises(SetupError, match="`penstock grant producer USER`"):
        consumer.push("q", 1, partition="p")
    with pytest.raises(SetupError, match="`penstock grant admin USER`"):
        consumer.purge("q")


def test_who_may_not_grant_is_told_what_it_takes_and_not_to_grant(penstock_dsn: str, as_user: Open) -> None:
    user = psycopg.conninfo.conninfo_to_dict(as_user("admin").dsn)["user"]
    with (
        psycopg.connect(make_conninfo(penstock_dsn, user=user, password="secret"), autocommit=True) as connection,
        pytest.raises(SetupError, match=r"CREATEROLE.*penstock grant producer \w+ --sql") as raised,
    ):
        grant(connection, "producer", str(user))
    assert "for a role" not in str(raised.value)


def test_no_role_may_call_an_internal_function_and_each_may_call_what_headers_say(
    penstock_dsn: str, as_user: Open, admin: Connection
) -> None:
    as_user("admin")
    for role in schema.ROLES:
        rows = admin.execute(
            "SELECT p.proname, p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'penstock'::regnamespace"
            " AND has_function_privilege(%s, p.oid, 'EXECUTE')",
            (f"penstock_{role}",),
        ).fetchall()
        allowed = {name for name, roles in schema.granted().items() if role in roles or role == "admin"}
        assert {name for name, _ in rows} == allowed


def test_a_consumer_can_select_from_every_view_and_a_producer_from_none(penstock_dsn: str, as_user: Open) -> None:
    with Client(penstock_dsn) as owner:
        owner.push("q", 1)
        assert owner.pop("q", "g") is not None
    consumer, producer = as_user("consumer"), as_user("producer")
    for view in schema.views():
        query = SQL("SELECT * FROM penstock.{}").format(Identifier(view))
        with consumer.transaction() as tx:
            # Without an action nothing waits for one.
            assert len(tx.connection.execute(query).fetchall()) == (view != "cold_queue_entries")
        with pytest.raises(errors.InsufficientPrivilege), producer.transaction() as tx:
            tx.connection.execute(query)
