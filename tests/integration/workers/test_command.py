"""The command `penstock worker`: which actions it runs, what it says when it cannot, draining, reloading, schedules."""

import re
import signal
from pathlib import Path

import pytest

from penstock import AsyncClient, Client, InvalidInput, Worker
from penstock.workers.loading import load

from .processes import WorkerProcess, running, values

APP = """
from penstock import action, every

@action(queue="in", to="out", flow="f")
def first(item):
    return "{said}"

@action(queue="out", flow="f")
async def second(item):
    print("second", item.json())

every("1 second", queue="ticks")
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(APP.format(said="one"))
    return path


def test_a_drained_worker_has_done_everything(dsn: str, app: Path) -> None:
    with Client(dsn) as client:
        client.push("in", [1, 2, 3])
        worker = WorkerProcess(dsn, app, "--drain")
        assert worker.end() == 0
        assert worker.lines[:3] == [
            "action f.first: in → out (ordered, 10 threads)",
            "action f.second: out (ordered, 10 tasks)",
            "schedule ticks: every 1 second → ticks",
        ]
        assert worker.lines[-1] == "handled 6 items"
        assert worker.lines.count("second one") == 3


def test_a_worker_that_is_reloaded_runs_the_code_that_was_changed(dsn: str, app: Path) -> None:
    with Client(dsn) as client, running(dsn, app, "--actions", "first", "--reload") as worker:
        client.push("in", 1, partition="p")
        assert values(client, "out", 1) == ["one"]
        app.write_text(APP.format(said="two"))
        worker.wait_for("reloading")
        worker.wait_for("working", times=2)
        client.push("in", 2, partition="p")
        assert values(client, "out", 1) == ["two"]
        # A schedule of the file is fired by its worker.
        assert client.pop("ticks", "test", wait=20) is not None
        worker.say(signal.SIGTERM)
        assert worker.end() == 0


def test_a_worker_whose_reloader_was_killed_stops_by_itself(dsn: str, app: Path) -> None:
    with Client(dsn) as client:
        worker = WorkerProcess(dsn, app, "--reload")
        worker.wait_for("working")
        client.push("in", 1)
        assert values(client, "out", 1) == ["one"]
        worker.say(signal.SIGKILL)
        # That is what the worker says itself, when it has stopped in good order.
        worker.wait_for("handled")
        assert worker.end() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("content", "options", "problem"),
    [
        ("x = 1", {}, "has no action"),
        ("import nowhere_at_all", {}, "No module named 'nowhere_at_all'"),
        ("1 / 0", {}, "cannot be imported: ZeroDivisionError: division by zero"),
        (APP, {"actions": ["third"]}, "has no third; it has f.first (queue in), f.second (queue out)"),
        (APP, {"queues": ["nowhere"]}, "has no nowhere"),
        ("from penstock import action\n@action(queue='q')\ndef f(item, db): ...", {}, "there is no resource"),
        (
            "from penstock import action\n@action\ndef f(item): ...\n@action(name='g')\ndef f(item): ...",
            {},
            "default.f (line 2) is replaced by default.g (line 4); give one of the functions another name",
        ),
        (
            "from penstock import action\n@action\ndef f(item): ...\n@action(name='f')\ndef g(item): ...",
            {},
            "has two actions default.f",
        ),
        ("from penstock import action\n@action(queue='q', mode='any')\ndef f(item): ...", {}, "must be one of"),
        ("from penstock import action\n@action(queue='q', settings={'x': 1})\ndef f(item): ...", {}, "unknown setting"),
    ],
)
async def test_what_cannot_be_run_is_said_before_anything_is_taken(
    dsn: str, tmp_path: Path, content: str, options: dict[str, list[str]], problem: str
) -> None:
    path = tmp_path / f"app_{abs(hash(content))}.py"
    path.write_text(content)

    async def run() -> None:
        async with AsyncClient(dsn) as client:
            app = load(str(path)).only(**options)
            await Worker(app, client, drain=True, echo=lambda line: None).run(handle_signals=False)

    with pytest.raises(InvalidInput, match=re.escape(problem)):
        await run()


def test_a_worker_that_cannot_run_exits_with_2(dsn: str, tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text("x = 1")
    worker = WorkerProcess(dsn, path)
    assert worker.end() == 2
    assert worker.lines == [f"penstock: {path} has no action: write one as `@action(queue=…)` above a function"]


def test_options_of_spark_need_its_engine(dsn: str, app: Path) -> None:
    worker = WorkerProcess(dsn, app, "--tasks", "3")
    assert worker.end() == 2
    worker.wait_for("need --engine spark")


@pytest.mark.parametrize("name", ["", "x" * 256])
async def test_a_consumer_with_a_bad_name_is_refused(dsn: str, name: str) -> None:
    async with AsyncClient(dsn) as client:
        with pytest.raises(InvalidInput, match="must have 1 to 255 bytes"):
            client.consumer_id = name
