"""An action whose handler heeds no cancellation at all."""

import asyncio
from contextlib import suppress

from penstock import Client, Item, action


@action(queue="deaf", flow="deaf", max_attempts=1)
async def hear(item: Item) -> None:
    with Client() as client:
        client.push("heard", item.json())
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
