"""The schema, roles and maintenance from the command line."""

import shutil
import signal
import subprocess
from collections.abc import Callable

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from acceptance.commandline import CommandLine
from penstock import Client, sql


def test_an_empty_database_is_migrated(command: Callable[..., CommandLine], empty_dsn: str) -> None:
    penstock = command(PENSTOCK_URL=empty_dsn)
    assert "run `penstock migrate`" in penstock("migrate", "--check", code=5).stderr
    checks = {check["check"]: check["found"] for check in penstock("doctor", "--json").objects}
    assert checks["schema"] == "not installed"
    [done] = penstock("migrate", "--json").objects
    assert done == {"before": None, "after": sql.version(), "partitions": 0, "partitions_with_messages": 0}


def test_migrating_again_changes_nothing_and_counts_partitions(penstock: CommandLine, client: Client) -> None:
    client.push("q", b"a", partition="p")
    client.create("q", partition="empty")
    version = str(sql.version())
    assert penstock("migrate").rows == [
        ["before", version],
        ["after", version],
        ["partitions", "2"],
        ["partitions_with_messages", "1"],
    ]
    assert client.read("q", "p")[0].value == b"a"


def test_a_schema_that_is_too_new_is_refused(command: Callable[..., CommandLine], penstock_dsn: str) -> None:
    with psycopg.connect(penstock_dsn) as connection:
        connection.execute("UPDATE penstock.migrations SET number = number + 1000")
    penstock = command(PENSTOCK_URL=penstock_dsn)
    assert "upgrade penstock" in penstock("queues", code=5).stderr
    schema = next(check for check in penstock("doctor", "--json", code=5).objects if check["check"] == "schema")
    assert schema["outcome"] == "fail"


@pytest.mark.skipif(shutil.which("psql") is None, reason="needs psql")
def test_psql_can_make_the_schema(command: Callable[..., CommandLine], empty_dsn: str) -> None:
    penstock = command(PENSTOCK_URL=empty_dsn)
    script = penstock("sql", PENSTOCK_URL="postgresql://nobody@127.0.0.1:1/none").stdout
    subprocess.run(["psql", "-q", empty_dsn], input=script, check=True, capture_output=True, timeout=60)
    assert penstock("migrate", "--check", "--json").objects == [{"version": sql.version(), "up_to_date": True}]
    penstock("push", "orders", "hello")


def test_a_producer_may_push_and_nothing_else(
    command: Callable[..., CommandLine], penstock_dsn: str, user: str
) -> None:
    owner = command(PENSTOCK_URL=penstock_dsn)
    theirs = command(PENSTOCK_URL=make_conninfo(penstock_dsn, user=user, password="secret"))
    assert "penstock grant" in theirs("push", "orders", "a", code=5).stderr
    assert owner("grant", "producer", user).text == f"{user} is now a producer\n"
    theirs("push", "orders", "a")
    theirs("read", "orders", "0", code=5)
    doctor = theirs("doctor", "--json")
    assert doctor.objects[-1]["found"] == f"{user} has penstock_producer"
    assert "secret" not in doctor.text


def test_a_user_without_any_role_is_told_who_can_give_one_and_who_can_migrate(
    command: Callable[..., CommandLine], penstock_dsn: str, empty_dsn: str, user: str
) -> None:
    theirs = command(PENSTOCK_URL=make_conninfo(penstock_dsn, user=user, password="secret"))
    said = theirs("grant", "producer", "somebody", code=5).stderr
    assert "given by a superuser, or by the owner of the schema penstock" in said
    assert "for a role" not in said
    assert "migrated by its owner or a superuser" in theirs("migrate", code=5).stderr
    empty = command(PENSTOCK_URL=make_conninfo(empty_dsn, user=user, password="secret"))
    for arguments in (("migrate",), ("queues",)):
        assert "made by a user with CREATE on the database" in empty(*arguments, code=5).stderr


def test_a_grant_can_be_printed(command: Callable[..., CommandLine]) -> None:
    penstock = command(PENSTOCK_URL="postgresql://nobody@127.0.0.1:1/none")
    script = penstock("grant", "admin", 'o"brien', "--sql").text
    assert script.endswith('GRANT "penstock_admin" TO "o""brien";\n')
    assert "CREATE ROLE" in script


def test_a_user_who_does_not_exist_is_not_found(penstock: CommandLine) -> None:
    assert "does not exist" in penstock("grant", "consumer", "nobody-of-this-name", code=3).stderr
    assert "'owner'" in penstock("grant", "owner", "somebody", code=2).stderr


def test_one_pass_of_maintenance_merges_small_segments(penstock: CommandLine, client: Client) -> None:
    pushed = [client.push("q", b"%d" % number, partition="p").ids[0] for number in range(100)]
    [done] = penstock("maintain", "--once", "--json").objects
    assert (done["visited"], done["merged_segments"]) == (1, 99)
    assert [message.id for message in client.read("q", "p")] == pushed
    assert penstock("maintain", "--once").rows[0][1:] == ["1", "0", "0", "0"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_maintenance_goes_on_until_a_signal(penstock: CommandLine, client: Client, number: signal.Signals) -> None:
    client.push("q", b"a")
    with penstock.running("maintain", "--every", "0.01") as running:
        assert running.line().split("\t")[1:] == ["1", "0", "0", "0"]
        assert running.line()
        result = running.end(number)
    assert (result.code, result.stderr) == (0, "")


def test_a_second_maintainer_says_that_another_is_at_it(penstock: CommandLine, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(penstock.queue_lock_class(), 0)")
        assert penstock("maintain", "--once").stderr == "another process is running maintenance\n"
