"""A child process of a worker: it handles the items that it is given, and says what came of each.

It ends when the worker does, and leaves signals to it. What its handlers remember goes through the worker, which has
the lease.
"""

import argparse
import os
import queue
import signal
import socket
import threading
from functools import partial
from typing import Any

import msgspec

from penstock import errors, tracing
from penstock.consuming.failures import describe
from penstock.errors import PenstockError
from penstock.settings import resolve
from penstock.workers import frames, loading
from penstock.workers.items import Item, Place
from penstock.workers.middleware import Handler, around, with_tracing
from penstock.workers.resources import Resources
from penstock.workers.verdicts import FAILED, RELEASED, RESULT, SNOOZED, Skipped, Verdict, raised, returned

_ENDS = (FAILED, SNOOZED, RELEASED)


class _Worker:
    """The worker, as its child sees it."""

    is_async = False

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.runs: queue.SimpleQueue[frames.Run | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[frames.Answer] = queue.SimpleQueue()
        # A handler may have threads of its own: a frame is sent in one piece, and an answer is for whoever asked.
        self._sending = threading.Lock()
        self._asking = threading.Lock()
        self._item: Item | None = None
        self._index = -1
        self.halted = False
        self.skipped: set[int] = set()
        threading.Thread(target=self._read, daemon=True, name="penstock-worker").start()

    def begin(self, item: Item | None, index: int) -> None:
        """Take note which item is handled now, if any."""
        self._index = index
        self._item = item

    def send(self, frame: frames.FromChild) -> None:
        """Send a frame."""
        packed = frames.packed(frame)
        try:
            with self._sending:
                self._connection.sendall(packed)
        except OSError:
            os._exit(1)

    def load_steps(self, item: Item) -> dict[str, bytes]:
        """Ask for the steps that are done."""
        found: dict[str, bytes] = self._ask(frames.Ask("load_steps"), dict[str, bytes])
        return found

    def save_step(self, item: Item, name: str, result: bytes) -> bytes:
        """Let the worker remember a step."""
        kept: bytes = self._ask(frames.Ask("save_step", name, result), bytes)
        return kept

    def load_checkpoint(self, item: Item) -> bytes | None:
        """Ask for the last checkpoint."""
        found: bytes | None = self._ask(frames.Ask("load_checkpoint"), bytes | None)
        return found

    def save_checkpoint(self, item: Item, value: bytes) -> None:
        """Let the worker remember a checkpoint."""
        self.progressed(item)
        self._ask(frames.Ask("save_checkpoint", None, value), None)

    def progressed(self, item: Item) -> None:
        """Tell the worker how far the handler is."""
        self.send(frames.Progress(item.percent, item.text))

    def _ask(self, question: frames.Ask, kind: Any) -> Any:
        with self._asking:
            self.send(question)
            answer = self._answers.get()
        if answer.kind is not None:
            raise _error(answer.kind, answer.error)
        return msgspec.msgpack.decode(answer.value, type=kind)

    def _read(self) -> None:
        reader = frames.Frames(from_child=False)
        while data := self._received():
            for frame in reader.feed(data):
                match frame:
                    case frames.Run():
                        self.skipped = set(frame.skipped)
                        self.runs.put(frame)
                    case frames.Answer():
                        self._answers.put(frame)
                    case frames.Halt():
                        self.halted = True
                    case frames.Cancel(index=index):
                        self.skipped.add(index)
                        if index == self._index and self._item is not None:
                            self._item.cancelled = True
        if self._item is not None:
            # The worker is gone, and somebody else gets its items: what the handler has started must end, too.
            if os.getpgrp() == os.getpid():
                os.killpg(os.getpgrp(), signal.SIGKILL)
            os._exit(0)
        self.runs.put(None)

    def _received(self) -> bytes:
        try:
            return self._connection.recv(1 << 16)
        except OSError:
            return b""


def _error(kind: str, said: str) -> PenstockError:
    """Return an error of the class that it had in the worker."""
    found = getattr(errors, kind, None)
    of_class = found if isinstance(found, type) and issubclass(found, PenstockError) else PenstockError
    # Whatever its class takes to be made: what it says is all that is known of it here.
    return of_class.__new__(of_class, said)


def run(app_name: str, group: str, connection: socket.socket) -> None:
    """Handle items until the worker ends."""
    worker = _Worker(connection)
    resources = Resources()
    try:
        app = loading.load(app_name)
        action = next(each for each in app.actions if each.group == group)
        needed = resources.get(action.needs, app.resources, f"action {action.name}")
        if resolve().tracing:
            tracing.enable()
        function = partial(action.function, **needed) if needed else action.function
        handler = around(function, with_tracing(app.middleware))
    except BaseException as error:
        worker.send(frames.Broken(describe(error)))
        return
    worker.send(frames.Ready())
    place = Place(action.flow, action.name, worker)
    pushes = action.to is not None
    while (job := worker.runs.get()) is not None:
        _handle(worker, job, handler, place, pushes)
        worker.begin(None, -1)
    resources.close()


def _handle(worker: _Worker, job: frames.Run, handler: Handler, place: Place, pushes: bool) -> None:
    for index, message in enumerate(job.messages, job.start):
        if worker.halted:
            worker.send(frames.Halted(index))
            return
        item = Item(message, place, None)
        worker.begin(item, index)
        verdict: Verdict | None
        try:
            if index in worker.skipped:
                raise Skipped
            value = handler(item)
            headers = message.headers
            quiet = value is None and not item.noted and (headers is None or RESULT not in headers)
            verdict = None if quiet else returned(item, value, pushes)
        except BaseException as error:
            verdict = raised(item, error)
        worker.send(frames.Did(index, verdict))
        if verdict is not None and job.ordered and verdict.kind in _ENDS:
            return


def main() -> None:
    """Begin, with the file descriptor of the connection to the worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("app")
    parser.add_argument("group")
    parser.add_argument("descriptor", type=int)
    given = parser.parse_args()
    # Ctrl-C, and a SIGTERM to all processes, are for the worker to obey.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection = socket.socket(fileno=given.descriptor)
    # What handlers start must not keep it: by its end the worker knows of ours.
    connection.set_inheritable(False)
    os.register_at_fork(after_in_child=connection.close)
    run(given.app, given.group, connection)


if __name__ == "__main__":
    main()
