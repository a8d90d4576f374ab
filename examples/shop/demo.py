"""Runs the shop with two workers, closes the bank for a while, kills a worker, and checks every count."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from penstock import Client

ORDERS, CUSTOMERS = 100, 10
QUEUES = ("orders", "paid", "shipped", "outbox", "stocktaking", "stock")
GROUPS = (("orders", "shop.payment"), ("paid", "shop.shipping"), ("shipped", "shop.mail"))
APP = Path(__file__).with_name("app.py")


def wait_until(what: str, done: Callable[[], object], seconds: float = 60) -> None:
    """Wait for something that workers do."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            raise SystemExit(f"{what} did not happen within {seconds:g} s")
        time.sleep(0.05)


def start(dsn: str, folder: str) -> "subprocess.Popen[bytes]":
    """Start a worker."""
    command = [sys.executable, "-m", "penstock.cli", "worker", str(APP), "--grace", "5"]
    environment = {**os.environ, "PENSTOCK_URL": dsn}
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)


def left(client: Client) -> int:
    """Return how many messages are not handled."""
    return sum(client.lag(queue, group) for queue, group in GROUPS)


def run(client: Client, folder: str) -> None:
    """Sell things."""
    for queue, group in GROUPS:
        client.create_group(queue, group, mode="shared" if group == "shop.mail" else "ordered", lease_time=3)
    closed = Path(folder) / "bank-is-closed"
    closed.touch()
    workers = [start(client.dsn, folder) for _ in range(2)]
    try:
        for number in range(ORDERS):
            client.push(
                "orders",
                {"id": number, "customer": f"c{number % CUSTOMERS}", "amount": 9.99},
                partition=f"c{number % CUSTOMERS}",
            )
        wait_until("an open breaker", lambda: any(each.state != "closed" for each in client.breakers()))
        print("the bank is closed: the breaker is open, and nobody is sent there", flush=True)
        closed.unlink()
        begun = time.monotonic()
        wait_until("the first mail", lambda: "outbox" in {queue.name for queue in client.queues()})
        workers[0].kill()
        print("the bank is open; a worker is killed", flush=True)
        wait_until("the last mail", lambda: left(client) == 0)
        print(f"{ORDERS} orders in {time.monotonic() - begun:.1f} s, at 50 payments a second at most", flush=True)
        wait_until("a count of the stock", lambda: "stock" in {queue.name for queue in client.queues()})
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
    check(client)


def check(client: Client) -> None:
    """Check that each order was paid, shipped and confirmed once, and shipped in its customer's order."""
    for customer in range(CUSTOMERS):
        shipped = [message.json()["id"] for message in client.scan("shipped", f"c{customer}")]
        expected = [number for number in range(ORDERS) if number % CUSTOMERS == customer]
        assert shipped == expected, f"customer {customer}: {shipped}"  # noqa: S101
    mails = [
        message.json()["text"] for part in client.partitions("outbox") for message in client.scan("outbox", part.name)
    ]
    assert len(set(mails)) == len(mails) == ORDERS  # noqa: S101
    assert client.dead_letters("orders") == []  # noqa: S101
    slots = sum(partition.messages for partition in client.partitions("stocktaking"))
    print(f"every order was paid, shipped and confirmed once; the schedule pushed {slots} times", flush=True)


def clean_up(client: Client) -> None:
    """Remove what the demo made."""
    for schedule in client.schedules():
        if schedule.schedule.queue in QUEUES:
            client.delete_schedule(schedule.name)
    for queue in client.queues():
        if queue.name in QUEUES:
            client.delete(queue.name)
    if any(flow.name == "shop" for flow in client.flows()):
        client.forget_flow("shop")


if __name__ == "__main__":
    with Client() as client, tempfile.TemporaryDirectory() as folder:
        clean_up(client)
        try:
            run(client, folder)
        finally:
            clean_up(client)
