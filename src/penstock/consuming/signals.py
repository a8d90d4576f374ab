"""Ctrl-C and SIGTERM while messages are handled: the first one asks for an end, and the work in hand is put in order.

Signals are handled in the main thread only, and only those that nobody else handles: a program, or a server like
uvicorn, that has its own way to end keeps it. When all is in order the signal is handed on to whatever would have got
it: Ctrl-C raises KeyboardInterrupt (or cancels the main task, under `asyncio.run`), SIGTERM ends the program with 0.
"""

import asyncio
import functools
import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from penstock import forks

log = logging.getLogger("penstock.consumer")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Catcher:
    """Within its block, signals call a function instead of ending the program; several may be open at a time."""

    def __init__(self, interrupt: Callable[[], object], *, wanted: bool) -> None:
        self._interrupt = interrupt
        self._wanted = wanted and threading.current_thread() is threading.main_thread()
        self._caught: signal.Signals | None = None

    def __enter__(self) -> Self:
        if self._wanted:
            _catchers.append(self)
            _install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._wanted and self in _catchers:
            _catchers.remove(self)
            if not _catchers:
                _before.update(_restore())

    def catch(self, number: signal.Signals) -> None:
        """Ask for the end, for a signal that came."""
        self._caught = number
        self._interrupt()

    def hand_on(self) -> None:
        """Let a signal do what it would have done, once everybody who caught it is done."""
        if self._caught is None or _catchers:
            return
        if self._caught == signal.SIGINT and callable(before := _before.get(signal.SIGINT)):
            before(signal.SIGINT, None)
        elif self._caught == signal.SIGTERM:
            raise SystemExit(0)


_catchers: list[Catcher] = []
# What was there before, by signal.
_before: dict[int, Any] = {}


_forking = threading.local()


def _install() -> None:
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if handler is not _on_signal and _is_default(handler):
            _before[number] = handler
            signal.signal(number, _on_signal)


def _is_default(handler: Any) -> bool:
    if isinstance(handler, functools.partial):
        # What `asyncio.run` puts in the place of Python's own.
        return isinstance(getattr(handler.func, "__self__", None), asyncio.Runner)
    return handler in (signal.default_int_handler, signal.SIG_DFL)


def _restore() -> dict[int, Any]:
    """Put back what was there before, where nobody has replaced ours meanwhile."""
    for number, handler in _before.items():
        if signal.getsignal(number) is _on_signal:
            signal.signal(number, handler)
    return _before


def _on_signal(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGINT and any(catcher._caught for catcher in _catchers):
        log.warning("interrupted again: what is in hand comes again when its lease ends")
        _restore()
        raise KeyboardInterrupt
    for catcher in list(_catchers):
        if catcher._caught is None:
            catcher.catch(signal.Signals(number))


@forks.reset_in_children
def _begin() -> None:
    """Let a child be ended as it would be without us."""
    if _catchers:
        _catchers.clear()
        _restore()


def _hold() -> None:
    """Let signals wait during a fork: a child forgets those that come before it has put the handlers back."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS) if _catchers else None


def _let_come() -> None:
    if getattr(_forking, "mask", None) is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)
        _forking.mask = None


if hasattr(os, "register_at_fork"):
    # After what `forks` does, which was registered first.
    os.register_at_fork(before=_hold, after_in_parent=_let_come, after_in_child=_let_come)
