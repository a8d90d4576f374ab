"""The sink against SIGKILL, SIGSTOP, dead executors and speculation: every message once, whoever dies and when."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from penstock import Client

from .conftest import connect_port, kept
from .faults import STEPS
from .standalone import Standalone

pytestmark = pytest.mark.timeout(400)
TESTS = Path(__file__).parent.parent


class Drivers:
    """Starts drivers, each in a process group of its own, and ends what is left of them."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._dsn, self._folder = dsn, folder
        self.running: list[subprocess.Popen[str]] = []

    def start(self, master: str = "local[2]", **options: str) -> "subprocess.Popen[str]":
        environment = {
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        words = [f"{name.replace('__', '.')}={value}" for name, value in options.items()]
        log = (self._folder / f"driver-{len(self.running)}.log").open("w")
        process = subprocess.Popen(
            [sys.executable, "-m", "spark.driver", self._dsn, str(self._folder), master, *words],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=TESTS,
            start_new_session=True,
            text=True,
        )
        log.close()
        self.running.append(process)
        return process

    def log(self, process: "subprocess.Popen[str]") -> str:
        return (self._folder / f"driver-{self.running.index(process)}.log").read_text()

    def wait(self, process: "subprocess.Popen[str]", seconds: float = 150) -> int:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver did not end:\n{self.log(process)[-3000:]}") from None

    def finish(self, master: str = "local[2]", **options: str) -> None:
        process = self.start(master, **options)
        assert self.wait(process) == 0, self.log(process)[-3000:]


@pytest.fixture
def drivers(dsn: str, folder: Path) -> Iterator[Drivers]:
    started = Drivers(dsn, folder)
    yield started
    for process in started.running:
        for send in (signal.SIGCONT, signal.SIGKILL):
            try:
                os.killpg(process.pid, send)
            except ProcessLookupError:
                break
        process.wait()


def until(what: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


def push(client: Client, low: int, high: int) -> Counter[bytes]:
    client.push_many("in", [(f"p{number % 3}", b"%d" % number) for number in range(low, high)])
    return Counter(b"%d" % number for number in range(low, high))


def stages_begun(client: Client) -> int:
    """Return how many stages there ever were."""
    with psycopg.connect(client.dsn) as connection:
        row = connection.execute(
            "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM penstock.stages_stage_id_seq"
        ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.timeout(900)
def test_drivers_that_are_killed_or_stopped_at_any_step_neither_lose_nor_repeat(
    client: Client, drivers: Drivers, folder: Path
) -> None:
    """One query goes through all of it, a driver after the other, since each takes long to start."""
    expected = push(client, 0, 150)
    stopped = drivers.start(step="after_staging", marker=str(folder / "after_staging"), stop="driver")
    until((folder / "after_staging").exists)
    os.killpg(stopped.pid, signal.SIGSTOP)
    for step in ("before_staging", "before_publish", "after_publish"):
        driver = drivers.start(step=step, marker=str(folder / step), kill="driver")
        assert drivers.wait(driver) == -signal.SIGKILL, drivers.log(driver)[-3000:]
    assert {path.name for path in folder.iterdir()} >= set(STEPS)
    # The last one runs unchanged on Spark Connect.
    with connect_port():
        drivers.finish("sc:local[2]")
    assert Counter(kept(client, "out")) == expected
    assert client.lag("in", "g") == 0
    # The first one goes on, after four that replaced it, and changes nothing.
    (folder / "go").touch()
    os.killpg(stopped.pid, signal.SIGCONT)
    assert drivers.wait(stopped) != 0
    assert "StreamingQueryException" in drivers.log(stopped)
    assert Counter(kept(client, "out")) == expected
    assert all(check.violations == 0 for check in client.verify())


def test_an_executor_that_is_killed_in_a_task_neither_loses_nor_repeats(
    client: Client, drivers: Drivers, folder: Path
) -> None:
    expected = push(client, 0, 40)
    drivers.finish("local-cluster[2,1,1024]", step="after_staging", marker=str(folder / "killed"), kill="executor")
    assert (folder / "killed").exists()
    assert Counter(kept(client, "out")) == expected


def test_two_attempts_of_one_task_write_once(client: Client, drivers: Drivers, folder: Path) -> None:
    expected = push(client, 0, 60)
    before = stages_begun(client)
    speculation = {
        "spark__speculation": "true",
        "spark__speculation__interval": "100ms",
        "spark__speculation__multiplier": "1.1",
        "spark__speculation__quantile": "0.5",
        "spark__speculation__minTaskRuntime": "100ms",
        "spark__executor__memory": "512m",
        "spark__cores__max": "2",
    }
    marker = folder / "slow"
    with Standalone(folder) as cluster:
        # The first attempt of one task has staged its rows and stays until it is killed; another one does the work.
        driver = drivers.start(
            cluster.master, step="after_staging", marker=str(marker), slow="yes", limit="60", **speculation
        )
        assert drivers.wait(driver, 300) == 0, drivers.log(driver)[-3000:]
    assert marker.exists()
    assert Counter(kept(client, "out")) == expected
    # Three stages were begun for the two tasks, and none is left.
    assert stages_begun(client) - before >= 3
    with psycopg.connect(client.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM penstock.stages").fetchone() == (0,)
