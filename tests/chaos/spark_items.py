"""Kills the executors of workers on Spark while they handle items, and checks that nothing is lost or pushed twice.

`make chaos-spark-workers ITEMS=20000` runs it, on local-cluster and on a standalone cluster.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from chaos.items import APP, clear, run
from penstock import Client
from spark.standalone import Standalone

LOCAL_CLUSTER = "local-cluster[2,1,1024]"
_TASKS = 2
_TO_START = 600.0


class Executors:
    """The command that runs workers on Spark, whose executors are killed; Spark and the command replace them."""

    def __init__(self, master: str, say: Callable[[str], None], dsn: str, notes: Path) -> None:
        self._client = Client(dsn)
        self._notes = notes
        self._log = notes.with_name("driver")
        environment = {**os.environ, "PENSTOCK_URL": dsn, "SPARK_LOCAL_IP": "127.0.0.1"}
        options = ["--engine", "spark", "--master", master, "--tasks", str(_TASKS)]
        settings = [f"spark.executorEnv.PENSTOCK_CHAOS_NOTES={notes}", "spark.executor.memory=512m"]
        command = [sys.executable, "-m", "penstock.cli", "worker", str(APP), *options]
        command += [word for setting in settings for word in ("--conf", setting)]
        with self._log.open("wb") as log:
            self._driver = subprocess.Popen(command, env=environment, stderr=log, stdout=log)
        self.kills = 0
        say(f"{master}: started in {self._started():.0f} s")

    def kill_one(self, chance: random.Random) -> None:
        """Kill an executor; half of the time with its Python, which gets no chance to give back what it has."""
        executors = self._executors()
        if not executors:
            return
        chosen = chance.choice(executors)
        victims = [chosen, *_descendants(chosen)] if chance.random() < 0.5 else [chosen]
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        self.kills += 1

    def end(self) -> None:
        """Stop the command as an operator does."""
        self._driver.terminate()
        try:
            code = self._driver.wait(120)
        except subprocess.TimeoutExpired:
            self._driver.kill()
            code = self._driver.wait()
        self._client.close()
        said = self._log.read_text()
        if code != 0 or "handled" not in said:
            raise AssertionError(f"the driver ended with {code}: {said[-3000:]}")
        if self.kills and "is started anew" not in said:
            raise AssertionError(f"no worker was started anew: {said[-3000:]}")

    def _started(self) -> float:
        """Wait until workers have begun, and return how long that took."""
        begun = time.monotonic()
        while time.monotonic() - begun < _TO_START:
            if any(each.consumer for each in self._client.claims("entered")):
                return time.monotonic() - begun
            if self._driver.poll() is not None:
                break
            time.sleep(0.05)
        self._driver.terminate()
        self._driver.wait()
        raise AssertionError(f"no worker has begun: {self._log.read_text()[-3000:]}")

    def _executors(self) -> list[int]:
        """Return the ids of the executors' Java processes; the clusters run below this process."""
        application = re.search(r"working as (\S+) in", self._log.read_text())
        assert application is not None
        return [pid for pid in _descendants(os.getpid()) if _is_executor(pid, application[1])]


def _is_executor(pid: int, application: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    backend = any(word.endswith(b"CoarseGrainedExecutorBackend") for word in words)
    return backend and b"java" in words[0] and application.encode() in words


def _descendants(pid: int) -> list[int]:
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                children[parent].append(int(entry.name))

    def below(process: int) -> Iterator[int]:
        for child in children[process]:
            yield child
            yield from below(child)

    return list(below(pid))


def main() -> None:
    """Run it on an embedded server, or that of PENSTOCK_URL."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=6, help="how many kills there are on each cluster, about")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--on", choices=["local-cluster", "standalone", "both"], default="both")
    given = parser.parse_args()

    def say(line: str) -> None:
        print(line, flush=True)  # noqa: T201

    with Client() as client, ExitStack() as stack:
        masters = [] if given.on == "standalone" else [LOCAL_CLUSTER]
        if given.on != "local-cluster":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            masters.append(stack.enter_context(Standalone(folder)).master)
        for master in masters:
            clear(client)
            begun = time.monotonic()
            kills = run(client.dsn, given.items, given.kills, given.seed, say, partial(Executors, master, say))
            seconds = time.monotonic() - begun
            say(f"{master}: {given.items} items came through once, with {kills} killed executors, in {seconds:.0f} s")


if __name__ == "__main__":
    main()
