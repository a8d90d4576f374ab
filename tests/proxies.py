"""A server that freezes, answers late or cannot be reached, as clients see it: a proxy in front of it."""

import socket
import threading
from contextlib import suppress

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Proxy:
    """A TCP proxy that can stop forwarding: what a frozen server or a lost network looks like."""

    def __init__(self, dsn: str) -> None:
        values = conninfo_to_dict(dsn)
        host, port = str(values.get("host", "localhost")), int(values.get("port") or 5432)
        self._target = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
        self._flowing = threading.Event()
        self._flowing.set()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.accepted = 0
        self._held: tuple[int, float] | None = None
        self._server = socket.create_server(("127.0.0.1", 0))
        self.dsn = make_conninfo(dsn, host="127.0.0.1", port=self._server.getsockname()[1], sslmode="disable")
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        self._flowing.clear()

    def hold(self, number: int, seconds: float) -> None:
        """Answer the connection of this number, and those after it, so many seconds late."""
        self._held = number, seconds

    def leave(self, seconds: float) -> None:
        """Break all connections and take no new ones, until so many seconds have passed."""
        host, port = self._server.getsockname()
        self.close()

        def come_back() -> None:
            self._server = socket.create_server((host, port))
            self._accept()

        timer = threading.Timer(seconds, come_back)
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        self._flowing.set()
        with self._lock:
            for one in [self._server, *self._sockets]:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            self._sockets.clear()

    def _accept(self) -> None:
        server = self._server
        with suppress(OSError):
            while True:
                near, _ = server.accept()
                self.accepted += 1
                if self._held is not None and self.accepted == self._held[0]:
                    # Those that come meanwhile wait to be accepted.
                    threading.Event().wait(self._held[1])
                family = socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET
                far = socket.socket(family)
                far.connect(self._target)
                with self._lock:
                    if server.fileno() == -1:
                        # Closed meanwhile, and these two with it.
                        near.close()
                        far.close()
                        return
                    self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)
