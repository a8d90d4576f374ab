"""Runs synchronous handlers in child processes: one per slot. A child that dies takes nobody else down.

The item that a child was at when it died has failed, so that one which kills every child becomes a dead letter in the
end. A new child takes the place of the dead one.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from penstock.broker.arguments import storable
from penstock.broker.retries import backoff
from penstock.consuming.failures import describe
from penstock.errors import PenstockError, SetupError
from penstock.workers import frames
from penstock.workers.held import HeldClaim
from penstock.workers.items import Item, Place
from penstock.workers.pools import CANCEL, Job, Pool, Report, Slot, verdict_on_interrupted
from penstock.workers.verdicts import DONE, FAILED, GIVEN_BACK, Verdict

log = logging.getLogger("penstock.worker")

# What a child is given at once of a shared claim, where there is plenty.
_CHUNK = 20
# How long children that are idle may take to close their resources.
_CLOSING = 2.0
# How long the connection to a child may outlive it, because a process that it started has it, too.
_LAST_WORDS = 0.5
# So many children that die before they are ready are one too many, if none ever was.
_FIRST_STARTS = 3
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0


class _ChildSlot(Slot, asyncio.Protocol):
    """A child process, and the connection to it."""

    __slots__ = ("_frames", "_pool", "ended", "is_killed", "is_ready", "problem", "process", "transport")

    def __init__(self, pool: "ProcessPool", process: "subprocess.Popen[bytes]", ended: "asyncio.Future[int]") -> None:
        super().__init__()
        self._pool = pool
        self._frames = frames.Frames(from_child=True)
        self.process = process
        # Its exit code, when it has one.
        self.ended = ended
        self.is_ready = False
        # Whether it was killed here, because of the item that it was at.
        self.is_killed = False
        # Why it cannot handle anything, as it says itself.
        self.problem: str | None = None
        self.transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)  # noqa: S101 - for the type checker
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            self._pool.received(self, frame)

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.died(self)

    def send(self, frame: frames.ToChild) -> None:
        self.transport.write(frames.packed(frame))

    def kill(self) -> None:
        """Kill the process, and those that its handlers have started."""
        if not self.ended.done():
            _kill_group(self.process.pid)

    def has_ended(self, code: int) -> None:
        """Take note of its end. What it has sent is still read; then the connection ends, or is ended."""
        self.ended.set_result(code)
        asyncio.get_running_loop().call_later(_LAST_WORDS, self.transport.abort)


class ProcessPool(Pool):
    """The children of one action."""

    def __init__(
        self,
        app: str,
        group: str,
        size: int,
        timeout: float | None,
        pushes: bool,
        place: Place,
        report: Report,
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(size, timeout, pushes, place, report)
        self._app = app
        self._group = group
        # Called when children cannot start at all.
        self._fail = fail
        self._jobs: deque[Job] = deque()
        self._idle: deque[_ChildSlot] = deque()
        self._closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._starting = 0
        # Whether any child has ever been ready, and how many were not since the pool began.
        self._worked_once = False
        self._failed_starts = 0
        self._pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)

    def chunk(self, count: int) -> int:
        """Return how many items of a shared claim make a job: fewer round trips, and nobody idle meanwhile."""
        return max(1, min(_CHUNK, count // (4 * self.size)))

    def add(self, jobs: Sequence[Job]) -> None:  # noqa: D102
        self._jobs.extend(jobs)
        self._give()
        for _ in range(min(self.size - len(self.slots) - self._starting, len(self._jobs))):
            self._start()

    def take_back(self) -> list[Job]:  # noqa: D102
        jobs = list(self._jobs)
        self._jobs.clear()
        return jobs

    def waiting(self) -> int:  # noqa: D102
        return len(self._jobs)

    def stop(self) -> None:
        """Begin nothing any more: children end their runs after the item that they are at."""
        super().stop()
        for slot in self.slots:
            if slot.item is not None:
                slot.send(frames.Halt())

    def interrupt(self, slot: _ChildSlot, item: Item, why: str) -> None:  # noqa: D102
        if slot.item is not item:
            return
        slot.why = why
        item.cancelled = True
        if why == CANCEL:
            slot.send(frames.Cancel(slot.index))
        else:
            # The rest is done when the connection ends.
            slot.is_killed = True
            slot.kill()

    def cancel(self, held: HeldClaim, offsets: "set[int]") -> None:  # noqa: D102
        super().cancel(held, offsets)
        for slot in self.slots:
            if slot.held is held:
                for index in range(slot.index + 1, slot.stop):
                    if held.messages[index].offset in offsets:
                        slot.send(frames.Cancel(index))

    def close(self) -> None:  # noqa: D102
        self._closed = True
        for slot in self.slots:
            slot.transport.close()
        self._idle.clear()

    async def join(self) -> None:
        """Wait for the children's end."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSING)
        for slot in list(self.slots):
            slot.kill()

    def received(self, slot: _ChildSlot, frame: "frames.ToChild | frames.FromChild") -> None:
        """Act on what a child says."""
        match frame:
            case frames.Did(index=index, verdict=verdict):
                self._did(slot, index, verdict)
            case frames.Halted(index=index) if slot.held is not None:
                self._report(slot.held, index, slot.stop, GIVEN_BACK, 0.0)
                slot.item = slot.held = None
            case frames.Ready():
                slot.is_ready = True
                self._worked_once = True
                self._pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
                self._idle.append(slot)
                self._give()
            case frames.Broken(error=error):
                slot.problem = error
            case frames.Progress(percent=percent, text=text) if slot.item is not None:
                slot.item.percent, slot.item.text = percent, text
            case frames.Ask() if slot.item is not None:
                self._run(self._answer(slot, slot.item, frame))

    def died(self, slot: _ChildSlot) -> None:
        """Take note that a child is gone; the item that it was at has failed."""
        if not self._closed:
            # Otherwise it closes its resources.
            slot.kill()
        self._run(self._bury(slot))

    async def _bury(self, slot: _ChildSlot) -> None:
        code = await slot.ended
        if slot in self.slots:
            self.slots.remove(slot)
        item, held, why = slot.item, slot.held, slot.why
        slot.item = None
        if item is not None and held is not None:
            index = slot.index
            # Killed because of an item that it had done when the signal came, the next one is not to blame.
            if why is not None or not slot.is_killed:
                said = f"ChildDied: {_ended(code)} while it handled this item"
                verdict = (
                    verdict_on_interrupted(why, self._timeout, None, item)
                    if why is not None
                    else Verdict(FAILED, None, said, "ChildDied", noted=item.noted)
                )
                self._report(held, index, index + 1, verdict, time.monotonic() - slot.began)
                index += 1
                if why is None:
                    log.warning("a child process of %s died: %s", self._group, _ended(code))
            if index < slot.stop:
                if held.shared and not self.stopping:
                    self._jobs.appendleft(Job(held, index, slot.stop))
                else:
                    self._report(held, index, slot.stop, GIVEN_BACK, 0.0)
        if self._closed or self.stopping:
            return
        if slot.is_ready:
            self._start()
        else:
            self._start_later(slot.problem or _ended(code), certain=slot.problem is not None)

    def _did(self, slot: _ChildSlot, index: int, verdict: Verdict | None) -> None:
        held, why = slot.held, slot.why
        if held is None or slot.item is None:
            return
        # Whatever it was interrupted for, it ended before that came.
        slot.why = None
        # The child knows only its own verdict: it has ended its run if that says so, whatever it becomes here.
        run_ended = verdict is not None and held.ends_with(verdict)
        if why == CANCEL:
            verdict = verdict_on_interrupted(CANCEL, None, None, slot.item)
        elif slot.item.noted:
            # What was noted here, and not asked for by the child.
            verdict = Verdict(DONE, noted=True) if verdict is None else verdict._replace(noted=True)
        ends = verdict is not None and held.ends_with(verdict)
        self._report(held, index, index + 1, verdict, time.monotonic() - slot.began)
        if index + 1 < slot.stop:
            if not run_ended:
                self._begin(slot, index + 1)
                return
            if ends or self.stopping:
                self._report(held, index + 1, slot.stop, GIVEN_BACK, 0.0)
            else:
                # The item was cancelled, so that those behind it overtake nothing: they are a run of their own.
                self._jobs.appendleft(Job(held, index + 1, slot.stop))
        slot.item = slot.held = None
        if not slot.is_killed:
            self._idle.append(slot)
        self._give()

    def _give(self) -> None:
        """Give jobs to idle children."""
        while self._jobs and self._idle and not self.stopping:
            slot = self._idle.popleft()
            if slot not in self.slots:
                continue
            held, start, stop = self._jobs.popleft()
            if held.lost:
                self._report(held, start, stop, GIVEN_BACK, 0.0)
                self._idle.append(slot)
                continue
            slot.held, slot.stop = held, stop
            self._begin(slot, start)
            messages = held.messages[start:stop]
            skipped = [index for index in range(start, stop) if held.messages[index].offset in held.cancelled]
            slot.send(frames.Run(messages, start, not held.shared, skipped))

    def _begin(self, slot: _ChildSlot, index: int) -> None:
        assert slot.held is not None  # noqa: S101 - for the type checker
        slot.index = index
        slot.began = time.monotonic()
        slot.item = Item(slot.held.messages[index], self._place, slot.held)

    def _start(self) -> None:
        self._starting += 1
        self._run(self._started())

    async def _started(self) -> None:
        try:
            ours, process = self._new_child()
        except OSError as error:
            self._starting -= 1
            self._start_later(describe(error))
            return
        loop = asyncio.get_running_loop()
        slot = _ChildSlot(self, process, loop.create_future())
        self._starting -= 1
        self.slots.append(slot)
        await loop.create_connection(lambda: slot, sock=ours)
        threading.Thread(target=_watch, args=(slot, loop), daemon=True, name="penstock-child").start()
        if self._closed:
            slot.transport.close()

    def _new_child(self) -> "tuple[socket.socket, subprocess.Popen[bytes]]":
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "penstock.workers.child", self._app, self._group, str(theirs.fileno())]
            try:
                # With a session of its own it can be killed together with what its handlers have started.
                process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        return ours, process

    def _start_later(self, problem: str, *, certain: bool = False) -> None:
        """Start a child in the place of one that could not; fail if none ever could, and that is no accident."""
        self._failed_starts += 1
        if not self._worked_once and (certain or self._failed_starts >= _FIRST_STARTS):
            self._fail(SetupError(f"a child process of {self._group} cannot start: {problem}"))
            return
        pause = next(self._pauses)
        log.warning("a child process of %s cannot start: %s; another one is in %.1f s", self._group, problem, pause)
        self._starting += 1
        asyncio.get_running_loop().call_later(pause, self._start_now)

    def _start_now(self) -> None:
        self._starting -= 1
        if not self._closed and not self.stopping:
            self._start()

    async def _answer(self, slot: _ChildSlot, item: Item, question: frames.Ask) -> None:
        """Do what a handler asks for, and tell it."""
        memory: Any = self._place.memory
        arguments = [value for value in (question.name, question.value) if value is not None]
        try:
            value = await getattr(memory, question.what)(item, *arguments)
            item.noted = item.noted or question.what.startswith("save")
            slot.send(frames.Answer(msgspec.Raw(msgspec.msgpack.encode(value))))
        except Exception as error:
            nothing = msgspec.Raw(msgspec.msgpack.encode(None))
            kind, said = type(error).__name__, str(error)
            if not isinstance(error, PenstockError):
                kind, said = PenstockError.__name__, describe(error)
            slot.send(frames.Answer(nothing, kind, storable(said)))

    def _run(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ran)

    def _ran(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)


def _watch(slot: _ChildSlot, loop: asyncio.AbstractEventLoop) -> None:
    """Wait for the end of a child, in a thread of its own: what it started may keep its connection open."""
    process = slot.process
    if hasattr(os, "waitid"):
        # Until it is waited for, its number is that of no other process.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _kill_group(process.pid)
    code = process.wait()
    with suppress(RuntimeError):  # the worker has ended
        loop.call_soon_threadsafe(slot.has_ended, code)


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _ended(code: int) -> str:
    if code < 0:
        return f"the process was killed by {signal.Signals(-code).name}"
    return f"the process ended with exit code {code}"
