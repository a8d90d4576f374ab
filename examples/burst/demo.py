"""A burst on a small window in Valkey, which is killed on the way: every message is handled, in order."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from penstock import Client, LeaseLost
from penstock.embedded.binaries import installed_valkey

QUEUE, GROUP = "burst", "handle"
MESSAGES, PARTITIONS, WINDOW, WORKERS = 3000, 10, 200, 2


def wait_until(what: str, done: Callable[[], object], seconds: float = 15) -> None:
    """Wait for something that others do."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            raise SystemExit(f"{what} did not happen within {seconds:g} s")
        time.sleep(0.02)


def start_valkey(folder: Path) -> "subprocess.Popen[bytes]":
    """Start a Valkey that nobody else uses."""
    socket = folder / "s"
    socket.unlink(missing_ok=True)
    command = [str(installed_valkey().path), "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", folder]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    wait_until("Valkey's start", socket.exists)
    return process


def run(client: Client, folder: Path) -> None:
    """Push more than the window holds, and handle it."""
    handled: defaultdict[str, list[int]] = defaultdict(list)
    lock, stop = threading.Lock(), threading.Event()

    def work() -> None:
        for batch in client.consume(QUEUE, GROUP, max_messages=10, stop=stop):
            time.sleep(0.001 * len(batch))
            numbers = [message.json() for message in batch]
            try:
                batch.ack()
            except LeaseLost:
                continue  # Valkey died with it: it comes again
            with lock:
                handled[batch.partition] += numbers

    def done() -> int:
        with lock:
            return sum(len(numbers) for numbers in handled.values())

    client.create_group(QUEUE, GROUP, warm=True, in_memory_queue_size=WINDOW, lease_time=1)
    valkey = start_valkey(folder)
    environment = {**os.environ, "PENSTOCK_URL": client.dsn, "PENSTOCK_VALKEY_URL": f"unix://{folder}/s"}
    command = [sys.executable, "-m", "penstock.cli", "dispatch", "--groups", f"{QUEUE}/{GROUP}"]
    dispatcher = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    workers = [threading.Thread(target=work) for _ in range(WORKERS)]
    try:
        wait_until("a window", lambda: client.windows()[0].live)
        for partition in range(PARTITIONS):
            client.push(QUEUE, list(range(MESSAGES // PARTITIONS)), partition=f"p{partition}")
        wait_until("a cold window", lambda: client.windows()[0].state == "cold" and client.windows()[0].items)
        warm = client.windows()[0].items or 0
        print(f"{MESSAGES} messages: {warm} are in the window of {WINDOW}, {MESSAGES - warm} wait cold", flush=True)
        for worker in workers:
            worker.start()
        wait_until("a third", lambda: done() >= MESSAGES // 3)
        valkey.kill()
        valkey.wait()
        print(f"Valkey is killed after {done()} messages; PostgreSQL serves alone", flush=True)
        time.sleep(1)
        valkey = start_valkey(folder)
        wait_until("all of them", lambda: client.lag(QUEUE, GROUP) == 0)
        stop.set()
        wait_until("a warm window", lambda: client.windows()[0].live and client.windows()[0].state == "warm")
        print("Valkey is back, the window is warm again, and nothing waits", flush=True)
    finally:
        stop.set()
        for worker in workers:
            if worker.ident is not None:
                worker.join()
        dispatcher.terminate()
        dispatcher.wait()
        valkey.kill()
        valkey.wait()
    check(handled)


def check(handled: dict[str, list[int]]) -> None:
    """Check that each message was handled, and none before one that precedes it."""
    again = 0
    for partition in range(PARTITIONS):
        first = list(dict.fromkeys(handled[f"p{partition}"]))
        again += len(handled[f"p{partition}"]) - len(first)
        assert first == list(range(MESSAGES // PARTITIONS)), f"p{partition}: {first}"  # noqa: S101
    print(f"all {MESSAGES} were handled, in the order of their partitions; {again} of them twice", flush=True)


def main() -> None:
    """Run it, and leave nothing behind."""
    folder = Path(tempfile.mkdtemp(prefix="pkburst"))
    try:
        with Client() as plain, Client(plain.dsn, valkey_url=f"unix://{folder}/s") as client:
            try:
                run(client, folder)
            finally:
                client.delete(QUEUE)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
