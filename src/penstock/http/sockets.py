"""Connections of a synchronous client: open, send, receive, each until a moment of the monotonic clock."""

import contextlib
import select
import socket
import threading
import time

from penstock.http.address import GatewayAddress
from penstock.http.failures import broken, timed_out, unreachable

_PIECE = 1 << 18


class Stream:
    """A connection to a gateway."""

    def __init__(self, address: GatewayAddress, connection: socket.socket) -> None:
        self._address = address
        self._connection = connection
        self.used_at = time.monotonic()

    @property
    def alive(self) -> bool:
        """Whether it can be used again: the other side has neither closed it nor said anything unasked."""
        try:
            return not select.select([self._connection], (), (), 0)[0]
        except (OSError, ValueError):
            return False

    def send(self, data: bytes, until: float) -> None:
        """Send all of it."""
        try:
            self._connection.settimeout(max(0.001, until - time.monotonic()))
            self._connection.sendall(data)
        except TimeoutError:
            raise timed_out(self._address, until - self.used_at) from None
        except OSError as error:
            raise broken(self._address, error) from error

    def receive(self, until: float) -> bytes:
        """Return what has arrived; nothing at the end."""
        try:
            self._connection.settimeout(max(0.001, until - time.monotonic()))
            return self._connection.recv(_PIECE)
        except TimeoutError:
            raise timed_out(self._address, until - self.used_at) from None
        except OSError as error:
            raise broken(self._address, error) from error

    def close(self) -> None:
        """Close it, without waiting for the other side."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def let_go(self) -> None:
        """Give up this process's copy of a connection of its parent."""
        self._connection.close()


def connect(address: GatewayAddress, until: float) -> Stream:
    """Open a connection."""
    try:
        connection = socket.create_connection((address.host, address.port), max(0.001, until - time.monotonic()))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls is not None:
            connection = address.tls.wrap_socket(connection, server_hostname=address.host)
    except OSError as error:
        raise unreachable(address, error) from error
    return Stream(address, connection)


class Slots:
    """So many at a time."""

    def __init__(self, size: int) -> None:
        self._free = threading.Semaphore(size)

    def take(self, within: float) -> bool:
        """Wait for a slot; say whether there was one in time."""
        return self._free.acquire(timeout=within)

    def give(self) -> None:
        """Give a slot back."""
        self._free.release()
