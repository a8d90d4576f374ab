"""A TCP proxy before PostgreSQL that breaks connections at a chosen moment of a push.

It reads just enough of the protocol to know what passes by: a request that pushes names a function of ours, and the
answer to it has ended, and its transaction with it, when the server says that it is ready again.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_READY = b"Z\x00\x00\x00\x05I"
_ROWS = b"SELECT "
# What the sockets of one connection do with the request or the answer of a push.
PASS, CUT_ANSWER, HOLD_ANSWER, CUT_REQUEST, HOLD_REQUEST = range(5)


@dataclass(eq=False)
class Link:
    """One connection through the proxy."""

    near: socket.socket
    far: socket.socket
    plan: int = PASS
    request: bytes = b""
    answer: bytes = b""

    def cut(self) -> None:
        for end in (self.near, self.far):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Proxy:
    """Forwards to PostgreSQL, and follows a list of plans, one for each push that comes by."""

    def __init__(self, dsn: str) -> None:
        values = conninfo_to_dict(dsn)
        host, port = str(values.get("host", "localhost")), int(values.get("port") or 5432)
        self._target = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
        self._plans: list[int] = []
        self._links: list[Link] = []
        self._lock = threading.Lock()
        self.followed: list[int] = []
        self.answered_late = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.dsn = make_conninfo(dsn, host="127.0.0.1", port=self._server.getsockname()[1], sslmode="disable")
        threading.Thread(target=self._accept, daemon=True).start()

    def plan(self, *plans: int) -> None:
        """Say what happens to the next pushes."""
        self._plans += plans

    def release(self) -> None:
        """Give the server the requests that are held; their answers go nowhere."""
        for link in self._links:
            if link.plan == HOLD_REQUEST:
                link.far.sendall(link.request)

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for link in self._links:
            link.cut()
            link.near.close()
            link.far.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.socket(socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET)
                far.connect(self._target)
                link = Link(near, far)
                self._links.append(link)
                for source, pump in ((near, self._to_server), (far, self._to_client)):
                    threading.Thread(target=self._pump, args=(link, source, pump), daemon=True).start()

    def _pump(self, link: Link, source: socket.socket, pump: Callable[[Link, bytes], None]) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                pump(link, data)
            if link.plan != HOLD_REQUEST:
                link.cut()

    def _to_server(self, link: Link, data: bytes) -> None:
        if link.plan == PASS and self._executes_a_push(data):
            with self._lock:
                link.plan = self._plans.pop(0) if self._plans else PASS
                if link.plan != PASS:
                    self.followed.append(link.plan)
        if link.plan == CUT_REQUEST:
            link.cut()
        elif link.plan == HOLD_REQUEST:
            link.request += data
        else:
            link.far.sendall(data)

    def _executes_a_push(self, data: bytes) -> bool:
        # The first few times a client sends the text of a statement with its values; later it would send a name.
        return b"penstock.push" in data

    def _to_client(self, link: Link, data: bytes) -> None:
        if link.plan == PASS:
            link.near.sendall(data)
            return
        link.answer += data
        if _ROWS in link.answer and link.answer.endswith(_READY):
            # The transaction has committed, and nobody hears of it.
            if link.plan == CUT_ANSWER:
                link.cut()
            self.answered_late.set()
