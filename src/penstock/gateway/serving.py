"""Serves the gateway: one process or several, on one address, until SIGTERM.

At SIGTERM no new connection is accepted, whoever waits for messages is answered that there are none, and requests
under way are answered before the process ends.
"""

import asyncio
import errno
import os
import socket
import tempfile
from dataclasses import dataclass, field
from functools import partial
from types import FrameType

import uvicorn

from penstock.client.async_client import AsyncClient
from penstock.client.transports import with_windows
from penstock.errors import SetupError
from penstock.gateway import processes
from penstock.gateway.access.settings import Access
from penstock.gateway.app import create_app
from penstock.gateway.gateway import Gateway, Limits
from penstock.gateway.monitoring import logs, requests
from penstock.gateway.monitoring.instruments import SHARED, Instruments
from penstock.gateway.monitoring.measured import Measured
from penstock.gateway.protocol import LimitedProtocol
from penstock.postgres.async_database import AsyncDatabase
from penstock.settings import resolve

# How long requests under way may take once the gateway is told to end.
_GRACE = 30
_KEEP_ALIVE = 75
_BACKLOG = 4096


@dataclass(frozen=True)
class Serving:
    """How a gateway is served."""

    url: str | None = None
    home: str | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    max_body: int = Limits.body_bytes
    timeout: float | None = None
    access: Access = field(default_factory=Access)
    valkey_url: str | None = None
    log_format: str = logs.TEXT
    log_level: str = "info"
    log_requests: str = requests.ERRORS
    verify_every: float = 3600.0

    def gateway(self) -> Gateway:
        """Return the gateway of one process."""
        # A standby takes no reports either.
        metrics = False if self.access.read_only else None
        instruments = Instruments()
        settings = resolve({"url": self.url, "home": self.home, "valkey_url": self.valkey_url, "timeout": self.timeout})
        database = AsyncDatabase(settings)
        transport = Measured(with_windows(database, settings), instruments)
        client = AsyncClient(
            self.url,
            home=self.home,
            valkey_url=self.valkey_url,
            timeout=self.timeout,
            metrics=metrics,
            transport=transport,
        )
        return Gateway(
            client,
            self.access.doorkeeper(client),
            Limits(body_bytes=self.max_body),
            host_names=self.access.host_names(self.host),
            instruments=instruments,
            pool_use=database.pool_use,
            logged=self.log_requests,
            verify_every=self.verify_every,
        )


class Server(uvicorn.Server):
    """A server of one process, which ends its long polls when it is told to end."""

    def __init__(self, config: uvicorn.Config, serving: Serving) -> None:
        super().__init__(config)
        self._serving = serving
        self.gateway: Gateway | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to end; in this process, whichever that is."""
        self.gateway = self._serving.gateway()
        self.config.app = create_app(self.gateway)
        super().run(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Answer those who wait, then end as uvicorn does."""
        if self.gateway is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self.gateway.stopping.set)
        super().handle_exit(sig, frame)


def bind(serving: Serving) -> socket.socket:
    """Bind the address; refuse one that others can reach where the gateway does not ask who calls."""
    serving.access.check(serving.host)
    try:
        family, _, _, _, address = socket.getaddrinfo(
            serving.host or "127.0.0.1", serving.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # With the protocol named: asyncio turns Nagle's algorithm off only where it sees that it is TCP.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        # From here on callers wait for an answer, and are not refused while processes start.
        bound.listen(_BACKLOG)
    except OSError as error:
        taken = "; use another --port, or --port 0 for any free one" if error.errno == errno.EADDRINUSE else ""
        why = error.strerror or str(error)
        raise SetupError(f"cannot listen at {serving.host}:{serving.port}: {why}{taken}") from None
    bound.set_inheritable(True)
    return bound


def address_of(bound: socket.socket, scheme: str = "http") -> str:
    """Return where a bound socket is reached."""
    host, port = bound.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def config_for(serving: Serving) -> uvicorn.Config:
    """Return how uvicorn is to serve; the application is made in the process that runs it."""
    return uvicorn.Config(
        _not_yet,
        loop="uvloop",
        http=LimitedProtocol,
        ws="none",
        lifespan="on",
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_GRACE,
        log_config=None,
        access_log=False,
        server_header=False,
        ssl_certfile=serving.access.tls_cert,
        ssl_keyfile=serving.access.tls_key,
    )


def serve(serving: Serving, bound: socket.socket) -> None:
    """Serve at a bound socket until SIGTERM or Ctrl-C."""
    if serving.workers > 1:
        # Each process counts by itself; whichever is asked for metrics adds up what all have written here.
        with tempfile.TemporaryDirectory(prefix="penstock-metrics-") as shared:
            os.environ[SHARED] = shared
            processes.run(serving.workers, partial(run_server, serving, bound))
    else:
        run_server(serving, bound)


def run_server(serving: Serving, bound: socket.socket) -> None:
    """Serve in this process."""
    logs.configure(serving.log_format, serving.log_level)
    Server(config_for(serving), serving).run([bound])


async def _not_yet(scope: object, receive: object, send: object) -> None:
    raise RuntimeError("the application is made when the server runs")
