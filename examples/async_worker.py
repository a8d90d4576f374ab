"""Handle messages with asyncio: slow calls overlap, and each partition stays in order."""

import asyncio

from penstock import AsyncClient, StoredMessage


async def main() -> None:
    """Push a few messages to two partitions and handle them."""
    async with AsyncClient() as client:
        await client.push_many("mails", [("ada", "welcome"), ("bob", "welcome"), ("ada", "receipt")])

        async def send(message: StoredMessage) -> None:
            await asyncio.sleep(0.01)  # the slow call
            print(f"to {message.partition}: {message.json()}")

        sent = await client.process("mails", send, group="mailer", concurrency=8, idle_timeout=1)
        print(sent, "sent")


asyncio.run(main())
