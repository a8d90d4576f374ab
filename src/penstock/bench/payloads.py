"""The messages that are pushed: random bytes, which nothing can compress, and JSON as applications write it.

A payload is described by a few values and made again, the same, in each process: that is cheaper than sending it.
"""

import random
from typing import Literal, NamedTuple

import msgspec

Data = Literal["json", "random"]
# fmt: off
_WORDS = (
    "order", "customer", "invoice", "shipment", "payment", "refund", "account", "address", "warehouse",
    "carrier", "delivery", "express", "standard", "pending", "confirmed", "cancelled", "returned",
    "priority", "fragile", "discount", "voucher", "basket", "checkout", "session", "mobile", "desktop",
)
# fmt: on
_CITIES = ("Lisbon", "Tallinn", "Osaka", "Toronto", "Nairobi", "Lima", "Gdańsk", "Adelaide")


class Payload(NamedTuple):
    """What kind of messages, and of what size."""

    data: Data
    size: int

    def messages(self, count: int, seed: int) -> list[bytes]:
        """Make so many messages, about `size` bytes each."""
        generator = random.Random(seed)
        if self.data == "random":
            return [generator.randbytes(self.size) for _ in range(count)]
        return [_event(generator, number, self.size) for number in range(count)]

    def batches(self, count: int, batch: int, seed: int) -> list[list[bytes]]:
        """Make about `count` messages, in batches."""
        messages = self.messages(max(count // batch, 1) * batch, seed)
        return [messages[start : start + batch] for start in range(0, len(messages), batch)]


def _event(generator: random.Random, number: int, size: int) -> bytes:
    if size < 256:
        small: dict[str, object] = {
            "id": 7_000_000 + number,
            "type": f"{generator.choice(_WORDS)}.{generator.choice(_WORDS)}",
            "user": generator.randrange(100_000),
            "amount": round(generator.uniform(1, 500), 2),
            "ok": generator.random() < 0.9,
        }
        return _padded(small, generator, size)
    large: dict[str, object] = {
        "id": f"{generator.getrandbits(128):032x}",
        "type": f"{generator.choice(_WORDS)}.{generator.choice(_WORDS)}",
        "created_at": f"2025-03-{generator.randrange(1, 29):02}T{generator.randrange(24):02}:15:{number % 60:02}Z",
        "customer": {
            "id": generator.randrange(1_000_000),
            "name": f"{generator.choice(_WORDS).title()} {generator.choice(_WORDS).title()}",
            "email": f"{generator.choice(_WORDS)}{generator.randrange(10_000)}@example.com",
            "city": generator.choice(_CITIES),
        },
        "lines": [
            {
                "sku": f"SKU-{generator.randrange(100_000):06}",
                "quantity": generator.randrange(1, 9),
                "price": round(generator.uniform(1, 500), 2),
                "tags": generator.sample(_WORDS, 2),
            }
            for _ in range(size // 170)
        ],
    }
    return _padded(large, generator, size)


def _padded(event: dict[str, object], generator: random.Random, size: int) -> bytes:
    """Add a note of words, as long as there is room."""
    left = size - len(msgspec.json.encode(event)) - len(',"note":""')
    words: list[str] = []
    while left > 0:
        words.append(generator.choice(_WORDS))
        left -= len(words[-1]) + 1
    event["note"] = " ".join(words)
    return msgspec.json.encode(event)
