"""What a process that was forked does about all that it has from its parent.

A child has copies of its parent's clients: the same identity, the same sockets, locks that nobody will release, and
none of the threads. So whatever belongs to one process registers here and is made anew in the child, at once and
without touching the network. What the parent has open stays the parent's: the child lets go of it unsaid.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

# How long a fork waits for connections that are being opened. A child that is forked all the same has copies that
# nobody lets go of, and the server notices the parent's end when the child ends.
_OPENED_WITHIN = 1.0

_opening: set[object] = set()
_changing = threading.Condition()
_connections: "weakref.WeakSet[psycopg.Connection[Any] | psycopg.AsyncConnection[Any]]" = weakref.WeakSet()
_methods: "list[weakref.WeakMethod[Callable[[], None]]]" = []
_functions: list[Callable[[], None]] = []


def renew_in_children(method: Callable[[], None]) -> None:
    """Call a bound method in every process that is forked from this one, for as long as its object lives."""
    _methods[:] = [known for known in _methods if known() is not None]
    _methods.append(weakref.WeakMethod(method))


def reset_in_children(function: Callable[[], None]) -> Callable[[], None]:
    """Call a function of a module in every process that is forked from this one, before all methods."""
    _functions.append(function)
    return function


@contextmanager
def opening() -> Iterator[None]:
    """Let forks wait during the body, which opens a connection and then tells of it by `opened`."""
    this = object()
    with _changing:
        _opening.add(this)
    try:
        yield
    finally:
        with _changing:
            _opening.discard(this)
            _changing.notify_all()


def opened(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
    """Take note of a connection of this process, which its children let go of."""
    _connections.add(connection)


def _let_go(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
    """Give up this process's copy of a connection of its parent.

    To close it would say goodbye to the server in the parent's name. So its descriptor is made to lead nowhere: nothing
    that this process does with it reaches the server, and the server notices the parent's end although the child lives.
    """
    try:
        descriptor = connection.fileno()
    except psycopg.Error:
        return
    let_go_of(descriptor)


def let_go_of(descriptor: int) -> None:
    """Do the same to any socket, if it is open."""
    if descriptor < 0:
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(nowhere, descriptor, inheritable=False)
    finally:
        os.close(nowhere)


def _before() -> None:
    _changing.acquire()
    _changing.wait_for(lambda: not _opening, _OPENED_WITHIN)


def _in_parent() -> None:
    _changing.release()


def _in_child() -> None:
    global _changing
    _changing = threading.Condition()
    _opening.clear()
    for connection in list(_connections):
        _let_go(connection)
    _connections.clear()
    for function in _functions:
        function()
    for known in list(_methods):
        method = known()
        if method is not None:
            method()


# There is no fork on Windows.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
