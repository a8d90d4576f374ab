"""What all requests of a gateway share: its client, who may do what, its limits, and whether it is ending."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.client.async_client import AsyncClient
from penstock.errors import Unavailable
from penstock.gateway.access.authority import Doorkeeper
from penstock.gateway.monitoring.background import Background
from penstock.gateway.monitoring.feed import Feed
from penstock.gateway.monitoring.instruments import Instruments
from penstock.gateway.monitoring.monitor import Monitor
from penstock.gateway.slots import Slots
from penstock.gateway.stamping import stamped

log = logging.getLogger("penstock.gateway")

_GRACE = 10.0
# A client in another process holds one stream of hints.
_MOST_HINTED = 10_000
_MOST_HINTED_OF_ONE_KEY = 2_000


@dataclass(frozen=True)
class Limits:
    """What a request may take, in bytes and seconds."""

    body_bytes: int = 16 << 20
    # For the whole of a body to arrive.
    body_seconds: float = 30.0
    # For the answer, on top of how long a request says that it waits.
    answer_seconds: float = 60.0
    longest_wait: float = 60.0


@dataclass
class Gateway:
    """One gateway of one penstock, in one process."""

    client: AsyncClient
    authority: Doorkeeper = field(default_factory=Doorkeeper)
    limits: Limits = field(default_factory=Limits)
    # Set when the gateway is told to end: whoever waits answers now.
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    instruments: Instruments = field(default_factory=Instruments)
    pool_use: Callable[[], Mapping[str, int]] = dict
    # Which requests are logged: all, errors or none.
    logged: str = "errors"
    # How often state is checked against the log, in seconds; 0: never.
    verify_every: float = 0.0
    # The names that a request may have in its Host header; None for any.
    host_names: frozenset[str] | None = frozenset()
    _working: set["asyncio.Future[None]"] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.client.prepare_operations(stamped)
        self.hint_slots = Slots(_MOST_HINTED, _MOST_HINTED_OF_ONE_KEY)
        self.monitor = Monitor(self.client)
        self.feed = Feed(self.monitor, self.stopping)
        self.background = Background(self.client, self.instruments, self.pool_use, self.verify_every)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside the requests, and until the end of the gateway at most."""
        task = asyncio.ensure_future(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def open(self) -> None:
        """Connect; a gateway whose database is away starts all the same, and says so at /readyz."""
        try:
            await self.client.open()
        except Unavailable as error:
            log.warning("the gateway waits for the database: %s", error)
        self.background.begin()

    async def close(self) -> None:
        """Answer whoever waits, and let go of the database."""
        self.stopping.set()
        await self.background.end()
        if self._working:
            # A job stops after the chunk that it is at.
            await asyncio.wait(self._working, timeout=_GRACE)
            for task in self._working:
                task.cancel()
            await asyncio.gather(*self._working, return_exceptions=True)
        await self.client.close()
