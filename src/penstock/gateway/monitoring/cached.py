"""A value that is asked of the database and used by all who want it for some seconds."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from penstock.errors import PenstockError, Unavailable

T = TypeVar("T")
# While the database cannot be reached, it is asked so often and not by everybody.
_FAILED_FOR = 1.0
# A client waits for a database that is away for as long as a call may take. Whoever watches wants to know sooner.
_PATIENCE = 5.0


class Cached(Generic[T]):
    """Asks when what it has is too old; of several who want it at the same time one asks."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[T]],
        patience: float = _PATIENCE,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._patience = patience
        self._now = now
        self._lock = asyncio.Lock()
        self._known: tuple[float, T] | None = None
        self._failed: tuple[float, PenstockError] | None = None

    async def get(self, max_age: float) -> T:
        """Return a value that is at most so many seconds old; raises what the database did."""
        asked_at = self._now()
        async with self._lock:
            # Whatever came while this one waited is young enough.
            if self._known is not None and self._known[0] > min(asked_at, self._now() - max_age):
                return self._known[1]
            if self._failed is not None and self._failed[0] > self._now() - _FAILED_FOR:
                raise self._failed[1]
            began = self._now()
            try:
                value = await self._ask_in_time()
            except PenstockError as error:
                self._failed = (self._now(), error)
                raise
            self._known, self._failed = (began, value), None
            return value

    async def _ask_in_time(self) -> T:
        try:
            async with asyncio.timeout(self._patience):
                return await self._ask()
        except TimeoutError as error:
            if isinstance(error, PenstockError):
                raise
            raise Unavailable(f"the database has not answered within {self._patience:g} s") from None
