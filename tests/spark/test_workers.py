"""Workers in the executors of the shared Spark: what they handle, and how they are stopped, replaced and lost."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import Client
from penstock.errors import InvalidInput
from penstock.settings import resolve
from penstock.spark_workers.running import SparkWorkers
from penstock.workers.loading import load

from .conftest import Lab, kept

APP = str(Path(__file__).parent / "apps" / "items_on_spark.py")
LONGEST = 240.0
pytestmark = pytest.mark.timeout(600)


class Run:
    """Workers that run in a thread, as those of the command do in its main one."""

    def __init__(self, lab: Lab, actions: tuple[str, ...], **options: Any) -> None:
        self.said: list[str] = []
        self._workers = SparkWorkers(
            load(APP).only(actions=actions), lab.spark, resolve({"url": lab.dsn}), echo=self.said.append, **options
        )
        self.stop = self._workers.stop
        self.handled: int | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> int:
        """Wait for the end, and return how many items were handled."""
        self._thread.join(LONGEST)
        assert not self._thread.is_alive(), self.said
        if self._error is not None:
            raise self._error
        assert self.handled is not None
        return self.handled

    def _run(self) -> None:
        try:
            self.handled = self._workers.run()
        except BaseException as error:
            self._error = error


@contextmanager
def working(lab: Lab, *actions: str, **options: Any) -> Iterator[Run]:
    run = Run(lab, actions or ("handle",), **options)
    try:
        yield run
    finally:
        run.stop()
        run.stop()
        run.end()


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONGEST
    while not what():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


def outputs(client: Client, queue: str = "worked") -> list[tuple[int, int]]:
    """Return the numbers that were handled, with the attempt."""
    if queue not in {info.name for info in client.queues()}:
        return []
    found = [message.json() for each in client.partitions(queue) for message in client.scan(queue, each.name)]
    return sorted((value["number"], value["attempt"]) for value in found)


def _has(client: Client, queue: str, count: int) -> bool:
    return len(kept(client, queue)) == count


def given_back(client: Client) -> list[tuple[int, int]]:
    """Take what was given back as another worker would: numbers and attempts."""
    batch = client.pop("work", "spark.handle", wait=20)
    assert batch is not None
    return [(message.json()["number"], message.attempt) for message in batch]


def test_items_are_handled_once_while_a_query_of_the_same_spark_goes_on(lab: Lab, folder: Path) -> None:
    lab.client.push_many("work", [(f"p{number % 5}", {"number": number}) for number in range(200)])
    lab.client.push("child-work", [{"number": 7}])
    lab.client.push("work", {"number": 200, "begun": str(folder / "begun"), "go": str(folder / "go")}, partition="slow")
    lab.client.push("in", [0], partition="p")
    query = lab.start(lab.stream(), now=False)
    try:
        with working(lab, "handle", "handle_in_child") as run:
            until((folder / "begun").exists)
            # A worker holds a slot, and the query has the other.
            for count in (2, 3):
                lab.client.push("in", [count], partition="p")
                until(partial(_has, lab.client, "out", count))
            until(lambda: len(outputs(lab.client)) == 200 and outputs(lab.client, "child-worked"))
            until(lambda: lab.client.tasks("spark"))
            (task,) = lab.client.tasks("spark")
            assert task.worker.startswith(f"{lab.spark.sparkContext.applicationId}/driver/")
            (folder / "go").touch()
            until(lambda: lab.client.lag("work", "spark.handle") == 0)
            run.stop()
            assert run.end() == 202
        assert query.isActive
    finally:
        query.stop()
    assert outputs(lab.client) == [(number, 1) for number in range(201)]
    assert outputs(lab.client, "child-worked") == [(7, 1)]
    assert kept(lab.client, "out") == [b"0", b"2", b"3"]
    assert "the worker runs" in run.said


def test_a_stop_lets_handlers_finish_and_a_second_one_gives_all_back_without_an_attempt(lab: Lab, folder: Path) -> None:
    first = {"number": 1, "begun": str(folder / "begun"), "go": str(folder / "go")}
    lab.client.push("work", first, partition="p")
    with working(lab, tasks=1) as run:
        until((folder / "begun").exists)
        run.stop()
        until(lambda: any("stopping" in line for line in run.said))
        (folder / "go").touch()
        assert run.end() == 1
    assert outputs(lab.client) == [(1, 1)]
    lab.client.push(
        "work", [{"number": 2, "begun": str(folder / "begun again"), "go": "never"}, {"number": 3}], partition="p"
    )
    with working(lab, tasks=1) as run:
        until((folder / "begun again").exists)
        run.stop()
        run.stop()
        assert run.end() == 0
    assert lab.client.claims("work") == []
    assert given_back(lab.client) == [(2, 1), (3, 1)]


def test_a_worker_whose_process_is_killed_is_started_anew_and_its_item_comes_again(lab: Lab, folder: Path) -> None:
    lab.client.push("work", [{"number": 1, "kill": str(folder / "killed")}, {"number": 2}], partition="p")
    with working(lab, tasks=1, drain=True) as run:
        assert run.end() == 2
    # The second was in hand as well, of the same claim.
    assert outputs(lab.client) == [(1, 2), (2, 2)]
    assert any("worker 1 has ended and is started anew" in line for line in run.said)


def test_a_worker_whose_executor_is_gone_gives_back_what_it_has_without_an_attempt(lab: Lab, folder: Path) -> None:
    begun = folder / "begun"
    lab.client.push("work", {"number": 1, "begun": str(begun), "go": str(folder / "go")}, partition="p")
    with working(lab, tasks=1) as run:
        until(lambda: begun.exists() and begun.read_text())
        # PySpark's daemon sends it to all its processes when the executor has closed their pipe.
        os.kill(int(begun.read_text().split()[0]), signal.SIGHUP)
        until(lambda: len(begun.read_text().split()) == 2)
        (folder / "go").touch()
        until(lambda: lab.client.lag("work", "spark.handle") == 0)
        run.stop()
        run.end()
    assert outputs(lab.client) == [(1, 1)]


def test_a_shift_that_is_over_waits_for_its_handlers_and_another_one_begins(lab: Lab, folder: Path) -> None:
    slow = {"number": 1, "begun": str(folder / "begun"), "go": str(folder / "go")}
    lab.client.push("work", slow, partition="slow")
    with working(lab, tasks=1, shift=0.5, grace=0.1) as run:
        until((folder / "begun").exists)
        # The shift is over when its worker takes nothing any more.
        lab.client.push("work", {"number": 2}, partition="p")
        time.sleep(2)
        lab.client.push("work", {"number": 3}, partition="p")
        (folder / "go").touch()
        until(lambda: lab.client.lag("work", "spark.handle") == 0)
        run.stop()
        run.end()
    assert outputs(lab.client) == [(1, 1), (2, 1), (3, 1)]
    assert len({each.consumer_id for each in lab.client.consumers() if "/driver/" in each.consumer_id}) > 1


def test_what_a_worker_refuses_ends_the_run_with_its_error(lab: Lab) -> None:
    lab.client.create_group("work", "spark.handle", mode="shared")
    with pytest.raises(InvalidInput, match="handle is ordered"), working(lab, tasks=2) as run:
        run.end()


def test_a_shift_of_no_time_is_refused(lab: Lab) -> None:
    with pytest.raises(InvalidInput, match="a shift is 0 s"):
        SparkWorkers(load(APP), lab.spark, resolve({"url": lab.dsn}), shift=0)
