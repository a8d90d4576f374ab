"""The embedded server, settings, the doctor and the demo from the command line."""

import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from acceptance.commandline import CommandLine
from penstock import Client, embedded
from valkeys import valkey_server

NOWHERE = "postgresql://me:secret@127.0.0.1:1/none"


def test_up_serves_until_interrupted_and_leaves_nothing_behind(embedded_penstock: CommandLine, home: Path) -> None:
    with embedded_penstock.running("up", "--show-password") as running:
        with Client(running.line()) as client:
            client.push("q", b"a")
        result = running.end(signal.SIGINT)
    assert (result.code, result.text) == (0, "")
    status = embedded.status(home)
    assert (status.running, status.keeper, status.in_use) == (False, None, False)


def test_up_hides_the_password_and_ends_with_sigterm(embedded_penstock: CommandLine) -> None:
    with embedded_penstock.running("up", "--home", embedded_penstock.environment["PENSTOCK_HOME"]) as running:
        assert running.line().startswith("postgresql://postgres:***@127.0.0.1:")
        assert running.end(signal.SIGTERM).code == 0


def test_down_ends_up(embedded_penstock: CommandLine) -> None:
    with embedded_penstock.running("up") as running:
        running.line()
        assert embedded_penstock("down").text == "stopped\n"
        result = running.wait()
    assert result.code == 0
    assert "the embedded server was stopped" in result.stderr


def test_a_detached_server_stays_until_down(embedded_penstock: CommandLine, home: Path) -> None:
    [detached] = embedded_penstock("up", "--detach", "--json").objects
    with Client(detached["dsn"]) as client:
        client.queues()
    assert embedded.status(home).pinned
    server = embedded_penstock("doctor", "--json").objects[3]
    assert (server["check"], server["outcome"]) == ("embedded server", "ok")
    assert str(detached["port"]) in server["found"]
    assert embedded_penstock("down").text == "stopped\n"
    assert embedded_penstock("down").text == f"no embedded server was running in {home}\n"
    assert not embedded.status(home).running


def test_up_is_for_the_embedded_server(command: Callable[..., CommandLine]) -> None:
    assert "PENSTOCK_URL" in command(PENSTOCK_URL=NOWHERE)("up", code=2).stderr


def test_the_doctor_starts_nothing_unless_asked(embedded_penstock: CommandLine, home: Path) -> None:
    checks = {check["check"]: check for check in embedded_penstock("doctor", "--json").objects}
    assert checks["embedded server"]["outcome"] == "info"
    assert "not checked" in checks["database"]["found"]
    assert not embedded.status(home).running
    checks = {check["check"]: check for check in embedded_penstock("doctor", "--start", "--json").objects}
    assert checks["privileges"]["outcome"] == "ok"


def test_the_doctor_looks_at_everything(penstock: CommandLine) -> None:
    rows = penstock("doctor").rows
    assert [row[0] for row in rows] == [
        "python",
        "extras",
        "database",
        "valkey",
        "waking",
        "postgresql",
        "schema",
        "pooler",
        "compression",
        "isolation",
        "long transactions",
        "prepared transactions",
        "autovacuum",
        "stuck groups",
        "expired claims",
        "overdue messages",
        "failing timers",
        "held sweep",
        "dead letters",
        "abandoned stages",
        "flows",
        "disk",
        "privileges",
    ]
    assert {row[1] for row in rows} <= {"ok", "info", "warn"}


def test_the_doctor_says_how_waiting_consumers_are_woken(
    command: Callable[..., CommandLine], penstock_dsn: str
) -> None:
    def waking(**environ: str) -> str:
        checks = command(PENSTOCK_URL=penstock_dsn, **environ)("doctor", "--json").objects
        return next(str(check["found"]) for check in checks if check["check"] == "waking")

    assert waking() == "by LISTEN and NOTIFY"
    assert waking(PENSTOCK_NOTIFY="off") == "by polling: notify is off"
    with valkey_server() as server:
        assert waking(PENSTOCK_VALKEY_URL=server.url()) == "through Valkey, by pub/sub"
    assert waking(PENSTOCK_VALKEY_URL=server.url()) == "by LISTEN and NOTIFY"


def test_the_doctor_sees_a_database_that_is_down(command: Callable[..., CommandLine]) -> None:
    result = command(PENSTOCK_URL=NOWHERE)("doctor", code=4)
    assert result.rows[-1][:2] == ["database", "fail"]
    assert "secret" not in result.text + result.stderr


def test_the_doctor_sees_an_address_that_is_none(command: Callable[..., CommandLine]) -> None:
    assert command(PENSTOCK_URL="nonsense")("doctor", code=5).rows[-1][:2] == ["database", "fail"]


def test_the_doctor_sees_a_home_that_cannot_be_used(command: Callable[..., CommandLine], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    checks = command(PENSTOCK_HOME=str(tmp_path / "file"))("doctor", code=5).rows
    assert checks[2][:2] == ["home", "fail"]


def test_the_doctor_warns_of_isolation(penstock: CommandLine) -> None:
    result = penstock("doctor", "--json", PGOPTIONS="-c default_transaction_isolation=serializable")
    [isolation] = [check for check in result.objects if check["check"] == "isolation"]
    assert (isolation["outcome"], isolation["found"]) == ("warn", "serializable")


def test_a_database_that_is_away_exits_with_4(command: Callable[..., CommandLine]) -> None:
    result = command(PENSTOCK_URL=NOWHERE)("queues", code=4)
    assert result.stderr.startswith("penstock: postgresql://me:***@127.0.0.1:1/none cannot be reached")
    assert result.stderr.count("\n") == 1


def test_a_partition_that_is_locked_exits_with_4(penstock: CommandLine, client: Client, dsn: str) -> None:
    client.push("q", b"a", partition="p")
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT FROM penstock.partitions FOR NO KEY UPDATE")
        result = penstock("push", "q", "b", "--partition", "p", code=4, PGOPTIONS="-c penstock.lock_timeout=10ms")
    assert "held a partition's lock too long" in result.stderr


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"PENSTOCK_URL": "nonsense"}, "the address cannot be read"),
        ({"PENSTOCK_URL": "http://127.0.0.1:1/?key=1"}, "the address of the gateway is not of the form"),
        ({"PENSTOCK_TIMEOUT": "soon"}, "PENSTOCK_TIMEOUT='soon' is invalid"),
    ],
)
def test_a_wrong_set_up_exits_with_5(
    command: Callable[..., CommandLine], environment: dict[str, str], complaint: str
) -> None:
    result = command(**environment)("queues", code=5)
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_gateway_that_is_away_exits_with_4_and_what_needs_the_database_with_5(
    command: Callable[..., CommandLine],
) -> None:
    penstock = command(PENSTOCK_URL="http://127.0.0.1:1", PENSTOCK_TIMEOUT="1")
    assert "penstock serve" in penstock("queues", code=4).stderr
    assert "this needs the database itself" in penstock("migrate", code=5).stderr


def test_config_says_where_each_value_comes_from(command: Callable[..., CommandLine]) -> None:
    penstock = command(PENSTOCK_URL=NOWHERE, PENSTOCK_TIMEOUT="7")
    settings = {setting["name"]: setting for setting in penstock("--home", "here", "config", "--json").objects}
    assert (settings["url"]["value"], settings["url"]["source"]) == (NOWHERE.replace("secret", "***"), "PENSTOCK_URL")
    assert (settings["timeout"]["value"], settings["timeout"]["source"]) == (7.0, "PENSTOCK_TIMEOUT")
    assert (settings["home"]["value"], settings["home"]["source"]) == ("here", "argument")
    assert (settings["pool_size"]["source"], settings["pool_size"]["variable"]) == ("default", "PENSTOCK_POOL_SIZE")


def test_global_options_may_come_before_and_after_the_command(penstock: CommandLine) -> None:
    for arguments in (("--timeout", "3", "config"), ("config", "--timeout", "3")):
        assert ["timeout", "3.0", "argument"] in [row[:3] for row in penstock(*arguments).rows]


def test_the_demo_serves_on_a_terminal_until_interrupted(penstock: CommandLine, client: Client) -> None:
    shown = penstock.on_terminal("demo", "--no-spark", until=b"Ctrl-C to stop")
    assert "serving at " in shown
    assert "Spark" not in shown
    assert client.queues() == []


def test_the_demo_ends_with_the_address_of_a_page_on_which_data_moves(penstock: CommandLine, client: Client) -> None:
    with penstock.running("demo", "--no-spark", "--stay") as running:
        while "The page, " not in (line := running.line()):
            assert line, "the demo has ended"
        address = line.partition(": ")[2].partition(";")[0]
        with urllib.request.urlopen(f"{address}/", timeout=60) as page:
            assert b'<div id="app">' in page.read()
        seen = {queue.name: queue.messages for queue in client.queues() if queue.name.endswith("-orders")}
        deadline = time.monotonic() + 60
        while sum(queue.messages for queue in client.queues() if queue.name in seen) <= sum(seen.values()):
            assert time.monotonic() < deadline, "nothing moves"
        result = running.end(signal.SIGINT)
    assert result.code == 0
    assert client.queues() == []
