"""Ctrl-C and SIGTERM for a command that holds claims: they wait while one is taken or settled.

An interruption in the middle of a pop could leave a claim behind that nobody knows of, until its lease ends. So it only
sets a flag then, and interrupts at once only where nothing can get lost: while messages are written out, and while a
command works. The second Ctrl-C interrupts anyway.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Within its block signals are seen, and at its end they interrupt."""

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
        """Let the body be interrupted."""
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
