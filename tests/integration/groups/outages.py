"""A TCP proxy before PostgreSQL, through which the database goes away and comes back when a test says so."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Line:
    """The way to the database: it is open, cut (nobody can connect), or silent (nothing passes any more)."""

    def __init__(self, dsn: str) -> None:
        values = conninfo_to_dict(dsn)
        self._target = str(values["host"]), int(str(values["port"]))
        self._links: list[tuple[socket.socket, socket.socket]] = []
        self._passing = threading.Event()
        self._passing.set()
        self._is_cut = False
        self._server = socket.create_server(("127.0.0.1", 0))
        self.dsn = make_conninfo(dsn, host="127.0.0.1", port=self._server.getsockname()[1], sslmode="disable")
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and every new one."""
        self._is_cut = True
        for link in self._links:
            _end(*link)

    def silence(self) -> None:
        """Pass nothing on."""
        self._passing.clear()

    def open(self) -> None:
        """Let the database be there again."""
        self._is_cut = False
        self._passing.set()

    def close(self) -> None:
        """End it."""
        self.cut()
        self._passing.set()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for near, far in self._links:
            near.close()
            far.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                if self._is_cut:
                    near.close()
                    continue
                far = socket.create_connection(self._target)
                self._links.append((near, far))
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._passing.wait()
                target.sendall(data)
        _end(source, target)


def _end(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def line(dsn: str) -> Iterator[Line]:
    """Return a way to the database that can be cut."""
    opened = Line(dsn)
    try:
        yield opened
    finally:
        opened.close()
