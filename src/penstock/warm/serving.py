"""Dispatchers where they run: in a command of their own, or in a thread beside a worker or an embedded server."""

import asyncio
import logging
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError, SetupError
from penstock.postgres.async_database import AsyncDatabase
from penstock.settings import Settings
from penstock.valkey.address import find
from penstock.warm.dispatcher import Dispatcher
from penstock.warm.kept import Terms
from penstock.warm.links import AsyncLink

log = logging.getLogger("penstock.warm")

# How long a thread may take to give its windows back, beyond the time that workers have.
_LAST_MOMENT = 5.0


async def dispatch(
    settings: Settings,
    stop: asyncio.Event,
    *,
    groups: Collection[tuple[str, str]] | None = None,
    terms: Terms | None = None,
) -> None:
    """Keep the windows of groups, all or those named by queue and group, until told to stop."""
    address = find(settings)
    if address is None:
        raise SetupError(
            "there is no Valkey to keep windows in; set PENSTOCK_VALKEY_URL, or install penstock[warm,embedded] for "
            "the one beside the embedded server"
        )
    database = AsyncDatabase(settings)
    try:
        await Dispatcher(database, AsyncLink(address, starting=True), groups=groups, terms=terms).run(stop)
    finally:
        await database.close()
        await asyncio.to_thread(address.close)


@contextmanager
def dispatching(settings: Settings, terms: Terms | None = None) -> Iterator[None]:
    """Keep windows beside the body, in a thread of its own; without a Valkey, do nothing.

    What handlers do to the event loop of a worker must not hold up a dispatcher.
    """
    if find(settings) is None:
        yield
        return
    begun = threading.Event()
    ending: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def work() -> None:
        stop = asyncio.Event()
        ending.append((asyncio.get_running_loop(), stop))
        begun.set()
        try:
            await dispatch(settings, stop, terms=terms)
        except PenstockError as error:
            log.warning("no windows are kept here: %s", error)

    thread = threading.Thread(target=lambda: asyncio.run(work()), name="penstock-dispatcher", daemon=True)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        loop, stop = ending[0]
        if not loop.is_closed():
            try:
                loop.call_soon_threadsafe(stop.set)
            except RuntimeError:
                log.debug("the dispatcher has ended by itself")
        thread.join((terms or Terms()).leave_within + _LAST_MOMENT)
