"""What a process that was forked does about all that it has from its parent.

A child has copies of its parent's clients: the same identity, the same sockets, locks that nobody will release, and
none of the threads. So whatever belongs to one process registers here and is made anew in the child, at once and
without touching the network. What the parent has open stays the parent's: the child lets go of it unsaid.
"""

import os
import weakref
from collections.abc import Callable
from typing import Any

import psycopg

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


def let_go(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
    """Give up this process's copy of a connection of its parent.

    To close it would say goodbye to the server in the parent's name. So its descriptor is made to lead nowhere: nothing
    that this process does with it reaches the server, and the server notices the parent's end although the child lives.
    """
    try:
        descriptor = connection.fileno()
    except psycopg.Error:
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(nowhere, descriptor, inheritable=False)
    finally:
        os.close(nowhere)


def _in_child() -> None:
    for function in _functions:
        function()
    for known in list(_methods):
        method = known()
        if method is not None:
            method()


# There is no fork on Windows.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
