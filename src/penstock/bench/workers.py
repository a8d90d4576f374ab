"""Processes that write and read, started once and then controlled by pipes.

Threads would share Python's lock, and then the client that does more work in C would look better than it is. All
workers of a step open their connections and warm up first, and begin on a signal.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle, islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import psycopg

from penstock.bench.contenders import CONTENDERS, Read, Space
from penstock.bench.payloads import Payload
from penstock.errors import PenstockError

# psycopg prepares a statement when it sees it for the sixth time, and PostgreSQL settles on a plan after five more.
_WARM_UP = 12
_POOL_BYTES = 4 << 20


class Writing(NamedTuple):
    """Write batches for so many seconds."""

    contender: str
    space: Space
    payload: Payload
    batch: int
    seconds: float


class Reading(NamedTuple):
    """Read a partition from its beginning to its end, again and again for so many seconds."""

    contender: str
    space: Space
    target: str
    seconds: float


Job = Writing | Reading


class Done(NamedTuple):
    """How many messages a worker wrote or read, and how long that took."""

    messages: int
    seconds: float


class Workers:
    """Some worker processes."""

    def __init__(self, dsn: str, count: int) -> None:
        context = get_context("spawn")
        self._pipes: list[Connection[Any, Any]] = []
        self._processes = []
        for number in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, dsn, number), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.join(timeout=10)
            if process.is_alive():
                process.kill()

    def run(self, job: Job, count: int) -> float:
        """Have so many workers do a job at the same time; return messages per second of all together."""
        pipes = self._pipes[:count]
        for pipe in pipes:
            pipe.send(job)
        _answers(pipes)
        for pipe in pipes:
            pipe.send("go")
        done: list[Done] = _answers(pipes)
        return sum(one.messages / one.seconds for one in done)

    def forget(self) -> None:
        """Have the workers close what they have open: the case is over."""
        for pipe in self._pipes:
            pipe.send(None)
        _answers(self._pipes)


def _answers(pipes: Sequence["Connection[Any, Any]"]) -> list[Any]:
    answers = []
    for pipe in pipes:
        try:
            answer = pipe.recv()
        except EOFError:
            raise PenstockError("a worker process of the benchmark ended; its output says why") from None
        if isinstance(answer, str):
            raise PenstockError(f"a worker process of the benchmark failed: {answer}")
        answers.append(answer)
    return answers


def _work(pipe: "Connection[Any, Any]", dsn: str, number: int) -> None:
    """Do what the pipe says until its other end is closed."""
    opened: dict[Job, Read] = {}
    with ExitStack() as stack, suppress(EOFError, ConnectionError, KeyboardInterrupt):
        while True:
            try:
                match pipe.recv():
                    case None:
                        stack.close()
                        opened.clear()
                        pipe.send(None)
                    case job:
                        step = opened.get(job) or opened.setdefault(job, _open(stack, job, dsn, number))
                        pipe.send(None)
                        pipe.recv()
                        pipe.send(_run(step, job.seconds))
            except (PenstockError, psycopg.Error) as error:
                pipe.send(f"{type(error).__name__}: {error}")


def _open(stack: ExitStack, job: Job, dsn: str, number: int) -> Read:
    """Return what does one step of a job and says how many messages that were."""
    contender = CONTENDERS[job.contender]
    if isinstance(job, Reading):
        read = stack.enter_context(contextmanager(contender.reader)(dsn, job.space, 0, job.target))
        read()
        return read
    write = stack.enter_context(contextmanager(contender.writer)(dsn, job.space, number))
    batches = job.payload.batches(max(_POOL_BYTES // job.payload.size, job.batch), job.batch, number)
    turn = cycle(batches)
    for batch in islice(turn, _WARM_UP):
        write(batch)

    def step() -> int:
        batch = next(turn)
        write(batch)
        return len(batch)

    return step


def _run(step: Read, seconds: float) -> Done:
    messages, passed = 0, 0.0
    begun = time.perf_counter()
    while passed < seconds:
        messages += step()
        passed = time.perf_counter() - begun
    return Done(messages, passed)
