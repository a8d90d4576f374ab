"""Runs the flows beside this file on orders that it makes, some of them bad, and prints what came out beside the truth.

It has a penstock of its own, in a folder that is removed at the end.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock import Client

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
ORDERS = 3_000
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def make_orders():
    """Return orders, two a second; some without a customer, some with nothing to pay, some that are no orders."""
    orders, malformed = [], [b"{", b'{"id": "one"}', b"[1, 2]", b""]
    for number in range(ORDERS):
        at = BEGIN + timedelta(seconds=number / 2)
        order = {"id": number, "customer": f"customer-{number % 20}", "amount": number % 1500, "at": at.isoformat()}
        if number % 500 == 3:
            del order["customer"]
        orders.append(order)
    return orders, malformed


def truth(orders, malformed):
    """Compute what must come out."""
    good = [order for order in orders if order["amount"] > 0 and "customer" in order]
    euros = {order["id"]: round(order["amount"] * 1.08, 2) for order in good}
    minutes = defaultdict(float)
    for order in good:
        minutes[datetime.fromisoformat(order["at"]).replace(second=0, microsecond=0)] += euros[order["id"]]
    # A minute is complete when an order has come that is a minute younger than its end.
    newest = max(datetime.fromisoformat(order["at"]) for order in good)
    complete = {
        at: total for at, total in minutes.items() if at + timedelta(minutes=1) <= newest - timedelta(minutes=1)
    }
    return {
        "clean orders": len(good),
        "large orders": sum(amount > 1000 for amount in euros.values()),
        "euros of all minutes": round(sum(complete.values()), 2),
        "complete minutes": len(complete),
        "dead: malformed": len(malformed),
        "dead: amount is positive": sum(order["amount"] == 0 for order in orders),
        "dead: customer is known": sum(order["amount"] > 0 and "customer" not in order for order in orders),
    }


def found(client):
    """Read what came out."""
    values = {
        queue: [m.json() for part in client.partitions(queue) for m in client.scan(queue, part.name)]
        for queue in ("orders.clean", "orders.large", "orders.per-minute")
    }
    dead = Counter(letter.reason.partition(": ")[2] for letter in client.dead_letters("orders.raw", limit=ORDERS))
    return {
        "clean orders": len(values["orders.clean"]),
        "large orders": len(values["orders.large"]),
        "euros of all minutes": round(sum(minute["amount"] for minute in values["orders.per-minute"]), 2),
        "complete minutes": len({minute["start"] for minute in values["orders.per-minute"]}),
        **{f"dead: {reason}": dead[reason] for reason in ("malformed", "amount is positive", "customer is known")},
    }


def main():
    """Run the demo; a number that is not the true one is an error."""
    home = Path(tempfile.mkdtemp(prefix="penstock-orders-"))
    home.chmod(0o755)
    os.environ.pop("PENSTOCK_URL", None)
    os.environ["PENSTOCK_HOME"] = str(home)
    orders, malformed = make_orders()
    try:
        with Client() as client:
            for order in orders:
                order["partition"] = f"shop-{order['id'] % 3}"
            client.push_many("orders.raw", [(order.pop("partition"), order) for order in orders])
            client.push("orders.raw", malformed, partition="shop-0")
            print(
                f"Flows: {len(orders) + len(malformed):,} orders through raw → clean → large and per minute, on Spark"
            )
            command = [PENSTOCK, "run", "--once", "flows.py"]
            subprocess.run(command, cwd=Path(__file__).parent, check=True, stderr=subprocess.PIPE)
            wanted, got = truth(orders, malformed), found(client)
        print(f"   {'':<28}{'found':>14}{'truth':>14}")
        for name, value in wanted.items():
            print(f"   {name:<28}{got[name]:>14,}{value:>14,} {'✓' if got[name] == value else '✗'}")
        if got != wanted:
            sys.exit("the flows made something wrong")
    except subprocess.CalledProcessError as error:
        sys.exit(error.stderr.decode())
    finally:
        subprocess.run([PENSTOCK, "down"], check=False, stdout=subprocess.DEVNULL)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
