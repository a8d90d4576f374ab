"""What a gateway does for monitoring by itself: the scheduled check of state against log, and counts for others."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from penstock.client.async_client import AsyncClient
from penstock.errors import PenstockError
from penstock.gateway.monitoring.instruments import Instruments

log = logging.getLogger("penstock.gateway")

# A scrape that reaches another process finds counts of this age.
_NOTE_EVERY = 5.0
# The first check comes when the gateway has begun its work.
_FIRST_CHECK = 10.0
_LOOK_EVERY = 60.0


class Background:
    """The tasks of one process, from its start to its end."""

    def __init__(
        self,
        client: AsyncClient,
        instruments: Instruments,
        pool_use: Callable[[], Mapping[str, int]],
        verify_every: float,
    ) -> None:
        self._client = client
        self._instruments = instruments
        self._pool_use = pool_use
        self._verify_every = verify_every
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Start."""
        self._tasks = [asyncio.create_task(self._note_always())]
        if self._verify_every > 0:
            self._tasks.append(asyncio.create_task(self._verify_always()))

    async def end(self) -> None:
        """Stop."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._instruments.close()

    def note(self) -> None:
        """Take over what the client of this process has counted."""
        self._instruments.note_client(self._client.stats(), self._pool_use())

    async def _note_always(self) -> None:
        while True:
            self.note()
            await asyncio.sleep(_NOTE_EVERY)

    async def _verify_always(self) -> None:
        """Check state against log when that is due; of several gateways one does it."""
        pause = min(_FIRST_CHECK, self._verify_every)
        while True:
            await asyncio.sleep(pause)
            pause = min(_LOOK_EVERY, self._verify_every)
            try:
                found = await self._client.differences(max_age=self._verify_every)
            except PenstockError as error:
                # Where it cannot be done now, as on a standby or with a database that is too large for the timeout, it
                # is not tried again at once.
                log.warning("the check of state against log failed: %s", error)
                pause = self._verify_every
                continue
            wrong = {difference.check: difference.violations for difference in found if difference.violations}
            if wrong:
                log.error("state and log differ: run `penstock verify`", extra={"fields": wrong})
