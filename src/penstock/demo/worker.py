"""One consumer of the demo: `python -m penstock.demo.worker QUEUE GROUP`.

It is a process of its own, as consumers are. It reports every message that it handles, before it acknowledges it, as a
line of JSON on standard output. It ends when its standard input does: when it is told to, and when whoever started it
is gone.
"""

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from penstock.broker.messages import StoredMessage
from penstock.client.client import Client

BATCH = 20
HELD_FROM = "customer-0"
LEASE = 1.0
# Seconds after which a process that does not stop is killed.
_STOP_TIMEOUT = 10.0


class Report(msgspec.Struct, frozen=True):
    """What became of a message in the hands of a consumer."""

    process: int
    partition: str
    order: int
    outcome: str
    at: int


def main() -> None:
    """Consume until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("queue")
    parser.add_argument("group")
    parser.add_argument("--hold", action="store_true", help="take a batch and do nothing with it")
    parser.add_argument("--mended", action="store_true", help="take amounts that are texts, too")
    plan = parser.parse_args()
    stop = threading.Event()
    threading.Thread(target=_end_with_input, args=(stop,), daemon=True).start()
    with Client() as client:
        if plan.hold:
            hold(client, plan.queue, plan.group)
            stop.wait()
        else:
            handle = handler(plan.group, plan.mended)
            client.process(plan.queue, handle, group=plan.group, max_messages=BATCH, stop=stop)


def hold(client: Client, queue: str, group: str) -> None:
    """Take a batch, like a consumer that hangs."""
    batch = client.pop(queue, group, partition=HELD_FROM, max_messages=BATCH, lease=LEASE, wait=_STOP_TIMEOUT)
    for message in batch.messages if batch else ():
        report(message, "held")


def handler(group: str, mended: bool) -> Callable[[StoredMessage], None]:
    """Return what handles a message of a group, and reports what becomes of it."""

    def handle(message: StoredMessage) -> None:
        cents = message.json()["cents"]
        if group == "billing" and not mended and not isinstance(cents, int):
            report(message, "failed")
            raise ValueError(f"{cents!r} is no amount")
        report(message, "done")

    return handle


def report(message: StoredMessage, outcome: str) -> None:
    """Write a line about a message."""
    line = Report(os.getpid(), message.partition, message.json()["order"], outcome, time.monotonic_ns())
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_input(stop: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stop.set()
    time.sleep(_STOP_TIMEOUT)
    os._exit(1)


if __name__ == "__main__":
    main()
