"""The shop of the live demo: actions that `penstock worker` runs. Some orders cannot be paid, and packing is slow."""

import os
import random
import time

from penstock import DeadLetter, Item, action, every

# The demo's own names, so that it meets nobody else's queues.
PREFIX = os.environ.get("PENSTOCK_DEMO_PREFIX", "")
FLOW = f"{PREFIX}shop"


@action(queue=f"{PREFIX}orders", to=f"{PREFIX}paid", flow=FLOW, name="payment", max_attempts=2, backoff=0.2)
def pay(item: Item) -> object:
    """Charge a card; some are declined."""
    order = item.json()
    if order["amount"] > 480:
        raise ConnectionError(f"the bank did not answer for order {order['id']}")
    if order["card"] == "expired":
        raise DeadLetter("card expired")
    return {**order, "receipt": f"r-{order['id'] % 100_000}"}


@action(queue=f"{PREFIX}paid", to=f"{PREFIX}shipped", flow=FLOW, name="shipping", concurrency=2)
def ship(item: Item) -> object:
    """Pack it, which takes longer than paying: what waits here grows."""
    time.sleep(0.1)
    return {**item.json(), "parcel": random.randrange(10**6)}  # noqa: S311


@action(queue=f"{PREFIX}shipped", flow=FLOW, name="mail", mode="shared")
async def mail(item: Item) -> None:
    """Write a mail, in any order."""


@action(queue=f"{PREFIX}reports", flow=f"{PREFIX}office", name="render", timeout=3600)
def render(item: Item) -> None:
    """Make a report, which takes minutes."""
    pages = item.json().get("pages", 400)
    for page in range(pages):
        item.progress(100 * page / pages, f"page {page} of {pages}")
        time.sleep(0.5)


@action(queue=f"{PREFIX}stocktaking", flow=f"{PREFIX}office", name="stocktaking")
async def take_stock(item: Item) -> None:
    """Count what is left, whenever the schedule says so."""


every("15 seconds", queue=f"{PREFIX}stocktaking", name=f"{PREFIX}stocktaking", value={"shelf": "all"})
