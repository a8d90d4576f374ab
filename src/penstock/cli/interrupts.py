"""Ctrl-C and SIGTERM: how a command that runs until it is stopped ends, and one that holds claims.

An interruption in the middle of a pop could leave a claim behind that nobody knows of until its lease expires. So
while a claim is taken or settled, a signal only sets a flag. It interrupts at once only where nothing can get lost:
while messages are written out, and while a shell command runs. A second Ctrl-C always interrupts.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def ends_on_signal() -> Iterator[None]:
    """End the block on Ctrl-C or SIGTERM without an error: for commands that run until they are stopped."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        sys.stdout.flush()


class Interrupts:
    """Holds back signals within its block and raises KeyboardInterrupt at its end."""

    def __init__(self) -> None:
        self.seen = threading.Event()
        self._allowed = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is None and self.seen.is_set():
            raise KeyboardInterrupt

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let signals interrupt the body."""
        self._allowed = True
        try:
            if self.seen.is_set():
                raise KeyboardInterrupt
            yield
        finally:
            self._allowed = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._allowed or self.seen.is_set():
            self.seen.set()
            raise KeyboardInterrupt
        self.seen.set()


class StopSignals:
    """For commands on Spark: the first signals, `times` of them, stop in order, also while Spark starts; more, at once.

    A start of Spark is not interrupted but stopped as soon as it is done: PySpark would leave its Java running.
    """

    def __init__(self, times: int = 1) -> None:
        self._times = times
        self._stop: Callable[[], None] | None = None
        self._has_begun = False
        self._before: dict[signal.Signals, Any] = {}
        self.count = 0

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self._install()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is None or self._has_begun or self.count > self._times:
            return False
        # A signal to all processes may have ended Spark while it started.
        return kind is KeyboardInterrupt or (self.count > 0 and issubclass(kind, Exception))

    def stop_with(self, stop: Callable[[], None]) -> None:
        """Let the first signals call a function from now on; before, they interrupt what is done."""
        self._stop = stop

    def begin(self) -> None:
        """Take Ctrl-C back from Spark, which has started."""
        self._has_begun = True
        self._install()

    def _install(self) -> None:
        for number in self._before:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self._stop is None or self.count > self._times:
            raise KeyboardInterrupt
        self._stop()
