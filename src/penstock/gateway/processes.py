"""Several processes that serve one address: started together, replaced when one dies, ended together."""

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from types import FrameType

log = logging.getLogger("penstock.gateway")

# A process that dies sooner than this is replaced after a pause.
_SOON = 5.0
_PAUSE = 1.0
_GRACE = 40.0


class Processes:
    """So many processes that run one function."""

    def __init__(self, count: int, target: Callable[[], None]) -> None:
        self._count = count
        self._target = target
        self._context = multiprocessing.get_context("spawn")
        self._running: list[tuple[BaseProcess, float]] = []
        self._start_after = 0.0

    def look(self) -> None:
        """Start those that are missing, and say so of those that died; call it now and then."""
        now = time.monotonic()
        for process, began in list(self._running):
            if not process.is_alive():
                self._running.remove((process, began))
                log.error("a process of the gateway, %s, died with exit code %s", process.pid, process.exitcode)
                self._start_after = now + _PAUSE if now - began < _SOON else now
        while len(self._running) < self._count and now >= self._start_after:
            process = self._context.Process(target=_begin, args=(self._target,))
            process.start()
            self._running.append((process, now))

    def stop(self) -> None:
        """Let all of them end, and wait for it."""
        processes = [process for process, _ in self._running]
        for process in processes:
            if process.is_alive():
                process.terminate()
        deadline = time.monotonic() + _GRACE
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self._running.clear()


def run(count: int, target: Callable[[], None]) -> None:
    """Run a function in so many processes until SIGTERM or Ctrl-C; a process that dies is replaced."""
    ending = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ending.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    processes = Processes(count, target)
    try:
        processes.look()
        while not ending.wait(0.2):
            processes.look()
    finally:
        processes.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def _begin(target: Callable[[], None]) -> None:
    # Ctrl-C of a terminal reaches all processes of it; the first one says to the others what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="penstock-parent", daemon=True).start()
    target()


def _end_with_parent() -> None:
    """End as at SIGTERM when the process that started this one is gone: nobody else would, and it has the port."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
