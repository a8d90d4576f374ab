"""A web shop: an order is paid, shipped and confirmed by mail. Each of these is an action, and a message leads on."""

from collections.abc import Iterator
from pathlib import Path

from penstock import Item, Message, action, every, resource

# The bank takes 50 payments a second, of all workers together.
LIMITS = {"rate_limit": 50, "rate_period": 1, "rate_by": "group"}
# After three failures in a row nobody is sent to the bank for half a second; then one order tries.
BREAKER = {"breaker_errors": 3, "breaker_pause": 0.5, "breaker_pause_max": 1}


class Bank:
    """A bank that is closed for the first calls, as banks are."""

    def __init__(self, closed: Path) -> None:
        self._closed = closed

    def charge(self, order: int, amount: float) -> str:
        """Take money, and return the number of the receipt."""
        if self._closed.exists():
            raise ConnectionError("the bank is closed")
        return f"receipt-{order}"


@resource
def bank() -> Iterator[Bank]:
    """Open the connection to the bank once per worker process."""
    yield Bank(Path("bank-is-closed"))


@action(queue="orders", to="paid", flow="shop", name="payment", backoff=0.1, max_attempts=50, settings=LIMITS | BREAKER)
def pay(item: Item, bank: Bank) -> object:
    """Charge the card, once: what `step` has done is not done again."""
    order = item.json()
    receipt = item.step("charge", bank.charge, order["id"], order["amount"])
    return {**order, "receipt": receipt}


@action(queue="paid", to="shipped", flow="shop", name="shipping")
async def ship(item: Item) -> object:
    """Pack it. Orders of one customer are shipped in the order in which they were placed."""
    return [item.json()]


@action(queue="shipped", to="outbox", flow="shop", name="mail", mode="shared")
async def mail(item: Item) -> object:
    """Write a mail, in any order."""
    order = item.json()
    return Message({"to": order["customer"], "text": f"order {order['id']} is on its way"}, key=order["customer"])


@action(queue="stocktaking", to="stock", flow="shop")
async def take_stock(item: Item) -> object:
    """Count what is left, whenever the schedule says so."""
    return {"counted": True}


every("1 second", queue="stocktaking")
