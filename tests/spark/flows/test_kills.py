"""`penstock run` as an operator knows it: killed in the middle of an epoch, interrupted, and with ten flows at once."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import psycopg
import pytest

from penstock import Client
from spark.conftest import connect_port
from spark.test_streaming import until

pytestmark = pytest.mark.timeout(900)
HERE = Path(__file__).parent


class Runs:
    """Starts `penstock run`, each in a process group of its own, and ends what is left."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._environment = {**os.environ, "PENSTOCK_URL": dsn, "PENSTOCK_HOME": str(folder)}
        self._log = folder / "run.log"
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, file: str, *options: str, terminal: bool = False) -> "subprocess.Popen[bytes]":
        """Start it; with a terminal, as a person would, and what that shows is in the log."""
        command = [str(Path(sys.executable).with_name("penstock")), "run", str(HERE / file), *options]
        with self._log.open("ab") as log:
            screen, output = os.openpty() if terminal else (None, log.fileno())
            process = subprocess.Popen(
                command, env=self._environment, stdout=output, stderr=output, start_new_session=True
            )
        if screen is not None:
            os.close(output)
            threading.Thread(target=self._watch, args=(screen,), daemon=True).start()
        self.started.append(process)
        return process

    def _watch(self, screen: int) -> None:
        with self._log.open("ab", buffering=0) as log, contextlib.suppress(OSError), open(screen, "rb", 0) as shown:
            while some := shown.read(4096):
                log.write(some)

    def finish(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.wait(300) == 0, self.log()[-3000:]

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill the driver, its JVM and every Python of it."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def runs(dsn: str, folder: Path) -> Iterator[Runs]:
    started = Runs(dsn, folder)
    yield started
    for process in started.started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        process.wait()


def values(client: Client, queue: str) -> list[int]:
    if queue not in [info.name for info in client.queues()]:
        return []
    return [
        message.json()["id"] for partition in client.partitions(queue) for message in client.scan(queue, partition.name)
    ]


def dead(client: Client, queue: str, reason: str, field: str) -> list[int]:
    letters = client.dead_letters(queue, reason=reason, limit=10_000)
    return [msgspec.json.decode(letter.value or b"")[field] for letter in letters]


def test_a_flow_that_is_killed_in_the_middle_of_epochs_loses_nothing_and_repeats_nothing(
    client: Client, dsn: str, runs: Runs, request: pytest.FixtureRequest
) -> None:
    # One kill shows it; `make chaos-flows` kills more often, each time a run that goes on where another one was killed.
    rounds: int = request.config.getoption("--kills")
    orders = 100 + 100 * rounds
    amounts = {number: float(number % 100) for number in range(orders)}
    unpaid = {number for number in amounts if number % 9 == 0 and amounts[number]}
    for low in range(0, orders, 100):
        ids = range(low, low + 100)
        client.push("orders", [{"id": n, "customer": f"c{n % 5}", "amount": amounts[n]} for n in ids], partition="p")
        client.push("orders", b"{", partition="bad")
        payments = [{"order": n, "paid": 0.0 if n in unpaid else amounts[n]} for n in ids]
        client.push("payments", payments, partition="p")

    def epochs(connection: "psycopg.Connection[tuple[int]]") -> int:
        row = connection.execute(
            "SELECT count(*) FROM penstock.sink_commits c JOIN penstock.flows f USING (writer) WHERE f.name = 'paid'"
        ).fetchone()
        return row[0] if row else 0

    def more_epochs(connection: "psycopg.Connection[tuple[int]]", before: int) -> bool:
        return epochs(connection) > before

    def staged(connection: "psycopg.Connection[tuple[int]]", run: int) -> bool:
        # Of this run: something is written that is not published.
        row = connection.execute(
            "SELECT count(*) FROM penstock.stages s JOIN penstock.flows f USING (writer)"
            " WHERE f.name = 'paid' AND (SELECT count(*) FROM penstock.sink_runs r WHERE r.writer = f.writer) > %s"
            " AND NOT EXISTS (SELECT 1 FROM penstock.sink_commits c WHERE c.writer = s.writer AND c.epoch >= s.epoch)",
            (run,),
        ).fetchone()
        return row is not None and row[0] > 0

    with psycopg.connect(dsn, autocommit=True) as connection:
        for round_ in range(rounds):
            process = runs.start("killed_flows.py")
            until(partial(more_epochs, connection, epochs(connection)), 240)
            until(partial(staged, connection, round_), 240)
            runs.kill(process)
            # There is something left for the next one.
            assert 40 * epochs(connection) < 2 * orders
    # An order far above all others ends every window.
    client.push("orders", {"id": 9999, "customer": "c1", "amount": 1.0}, partition="p")
    client.push("payments", {"order": 9999, "paid": 1.0}, partition="p")
    runs.finish(runs.start("killed_flows.py", "--once"))

    full = [number for number in amounts if number not in unpaid]
    assert Counter(values(client, "out")) == Counter([*full, 9999])
    windows = [message.json() for message in client.scan("totals", "all")]
    assert sorted((window["id"], window["count"]) for window in windows) == sorted(
        Counter(number // 100 * 100 for number in full).items()
    )
    assert Counter(values(client, "large")) == Counter(number for number in full if amounts[number] > 50)
    assert Counter(dead(client, "orders", "paid: paid in full", "id")) == Counter(unpaid)
    assert Counter(dead(client, "payments", "paid: paid in full", "order")) == Counter(unpaid)
    assert len(client.dead_letters("orders", reason="paid: malformed")) == orders // 100
    assert [client.lag(queue, "paid") for queue in ("orders", "payments")] == [0, 0]
    assert all(check.violations == 0 for check in client.verify())


def test_a_flow_runs_unchanged_on_spark_connect(client: Client, runs: Runs) -> None:
    client.push("in0", [*({"id": n} for n in range(150)), b"{"], partition="p")
    run_f0 = ("many_flows.py", "--flow", "f0", "--once", "--remote", "local[2]")
    with connect_port():
        with socket.create_server(("127.0.0.1", 15002)):
            assert runs.start(*run_f0).wait(60) == 5
        assert "use that server with --remote sc://localhost:15002" in runs.log()
        runs.finish(runs.start(*run_f0))
    assert values(client, "out0") == list(range(150))
    assert [letter.reason for letter in client.dead_letters("in0")] == ["f0: malformed"]
    (info,) = client.flows()
    assert (info.state, info.epoch, client.lag("in0", "f0")) == ("finished", 1, 0)


def test_ten_flows_share_two_cores_and_ctrl_c_ends_them_in_the_middle(client: Client, dsn: str, runs: Runs) -> None:
    flows = range(10)
    for number in flows:
        client.push(f"in{number}", [{"id": n} for n in range(10_000)], partition="p")
    process = runs.start("many_flows.py", "--master", "local[2]", terminal=True)
    with psycopg.connect(dsn, autocommit=True) as connection:

        def published() -> dict[int, int]:
            rows = connection.execute(
                "SELECT f.name, count(*) FROM penstock.flows f JOIN penstock.sink_commits c USING (writer) GROUP BY 1"
            ).fetchall()
            return {int(name[1:]): count for name, count in rows}

        until(lambda: len(published()) == 10, 480)
        before = published()
        # Long enough for many epochs of everybody, and not so long that somebody has read all.
        until(lambda: sum(published().values()) - sum(before.values()) >= 60, 180)
        now = published()
    # As a terminal does, to everybody who belongs to it.
    os.killpg(process.pid, signal.SIGINT)
    runs.finish(process)
    share = {number: now[number] - before[number] for number in flows}
    fair = sum(share.values()) / len(share)
    assert all(epochs >= 0.5 * fair for epochs in share.values()), share
    assert {info.state for info in client.flows()} == {"stopped"}
    # The screen showed their status.
    assert "rows/s" in runs.log()
    # Whatever was interrupted is whole: each output is the beginning of its input.
    for number in flows:
        found = values(client, f"out{number}")
        assert len(found) % 100 == 0
        assert found == list(range(len(found)))


def test_a_signal_to_the_whole_group_ends_a_run_in_order_and_nobody_starts_spark_in_vain(
    client: Client, folder: Path, runs: Runs
) -> None:
    client.push("in0", [{"id": n} for n in range(100)], partition="p")
    process = runs.start("many_flows.py", "--flow", "f0")
    until(lambda: values(client, "out0"), 240)
    # It is refused before it could find out that there is no such Spark.
    second = runs.start("many_flows.py", "--flow", "f0", "--master", "nowhere://")
    assert second.wait(60) != 0
    assert "flow f0 is already run by" in runs.log()
    # What systemd does: Spark's Java gets it, too.
    os.killpg(process.pid, signal.SIGTERM)
    runs.finish(process)
    assert "Traceback" not in runs.log()
    assert "py4j" not in runs.log()
    assert [info.state for info in client.flows()] == ["stopped"]
    # What is wrong with flows is told in a line each, without Java's stack.
    wrong = folder / "wrong_flows.py"
    source = "Flow('{0}', source='in', schema='id long').expect('e', 'colour = 1').to('{0}')"
    wrong.write_text(
        "from penstock.pipeline import Flow\n"
        f"one = {source.format('one')}\ntwo = {source.format('two')}\n"
        "one.step(lambda df: df.select('nothing'))\n"
    )
    before = len(runs.log())
    assert runs.start(str(wrong)).wait(240) == 2
    told = runs.log()[before:]
    assert "java:" not in told
    assert sum(line.removeprefix("penstock: ").startswith(str(wrong)) for line in told.splitlines()) == 2


def commands(group: int) -> list[str]:
    """Return what the processes of a group run."""
    listed = subprocess.run(["ps", "-A", "-o", "pgid=,stat=,comm="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return [row[2] for row in rows if int(row[0]) == group and not row[1].startswith("Z")]


@pytest.mark.parametrize(
    ("number", "send"), [(signal.SIGTERM, os.killpg), (signal.SIGINT, os.kill)], ids=["SIGTERM to all", "SIGINT"]
)
def test_a_signal_while_spark_starts_ends_a_run_in_order(
    client: Client, runs: Runs, number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    process = runs.start("many_flows.py", "--flow", "f0")
    until(lambda: any(name.endswith("java") for name in commands(process.pid)), 240)
    send(process.pid, number)
    runs.finish(process)
    assert "Traceback" not in runs.log()
    assert runs.log().count("stopping") == 1
    assert client.flows() == []
    # Java goes with it.
    until(lambda: not commands(process.pid), 240)
