"""A process that has imported the command line and forks for each command: the imports are paid for once.

A command is still a process of its own, with its arguments, environment, folder, streams and exit code.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import BinaryIO

# These start processes that run the main module again, or take so long that imports do not matter.
_NOT_FORKED = {"archive", "backfill", "bench", "demo", "run", "up"}
_LENGTH = struct.Struct("!I")


class Preloaded:
    """The process, as tests see it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._replies = ours.makefile("rb")
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()

    def run(
        self,
        arguments: tuple[str, ...],
        environment: dict[str, str],
        folder: str,
        streams: tuple[BinaryIO, BinaryIO, BinaryIO],
        timeout: float,
    ) -> int | None:
        """Run a command to its end and return its exit code, or None if it has to be run in another way."""
        request = json.dumps([arguments, environment, folder]).encode()
        if not _NOT_FORKED.isdisjoint(arguments) or not self._lock.acquire(blocking=False):
            return None
        try:
            socket.send_fds(self._socket, [_LENGTH.pack(len(request))], [stream.fileno() for stream in streams])
            self._socket.sendall(request)
            child = int(self._replies.readline())
            guard = threading.Timer(timeout, os.kill, (child, 9))
            guard.start()
            try:
                return int(self._replies.readline())
            finally:
                guard.cancel()
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the process."""
        self._replies.close()
        self._socket.close()
        self._process.wait()


def _serve(requests: socket.socket) -> tuple[str, ...] | None:
    """Fork for each request; returns in the child, with its arguments, and at the end with None."""
    while True:
        length, streams, _, _ = socket.recv_fds(requests, _LENGTH.size, 3)
        if not length:
            return None
        request = requests.recv(_LENGTH.unpack(length)[0], socket.MSG_WAITALL)
        child = os.fork()
        if child == 0:
            requests.close()
            arguments, environment, folder = json.loads(request)
            for target, stream in enumerate(streams):
                os.dup2(stream, target)
                os.close(stream)
            os.environ.clear()
            os.environ.update(environment)
            time.tzset()
            os.chdir(folder)
            return tuple(arguments)
        for stream in streams:
            os.close(stream)
        requests.sendall(b"%d\n" % child)
        _, status = os.waitpid(child, 0)
        requests.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    # What commands import, so that a fork has it.
    import click.shell_completion  # noqa: F401
    import rich.console
    import rich.table  # noqa: F401

    from penstock.cli import main
    from penstock.client.client import Client  # noqa: F401
    from penstock.operations import checks, envelopes, groups  # noqa: F401

    found = _serve(socket.socket(fileno=int(sys.argv[1])))
    if found is not None:
        sys.argv = ["penstock", *found]
        main()
