"""A client process of the chaos test: pushes or consumes until it is killed, and writes down what it did.

Each line of its file is one JSON array, appended with a single write: a kill leaves it whole, or not there.
A push is written down when it has returned; a delivery before the handler begins; that a claim is being settled,
before; and how, after. So of a process that died it is known what it may have done, and what it cannot.
"""

import json
import os
import random
import time
from pathlib import Path
from typing import Any, NoReturn

from penstock import Batch, Client, LeaseLost, PenstockError

PARTITIONS = 12
QUEUE = "chaos"
# Short, so that the leases of the killed expire while the test runs.
LEASE = 1.0


class Notes:
    """The file of one process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def write(self, *what: Any) -> None:
        os.write(self._file, json.dumps(what).encode() + b"\n")


def produce(client: Client, notes: Notes, me: str) -> NoReturn:
    number = 0
    while True:
        partition = f"p{random.randrange(PARTITIONS)}"
        values = []
        for _ in range(random.randint(1, 5)):
            values.append(f"{me}/{number}")
            number += 1
        try:
            pushed = client.push(QUEUE, values, partition=partition)
        except PenstockError:
            # Whether it was stored is unknown, so nothing is promised of it.
            continue
        notes.write("pushed", pushed.partition, pushed.first_offset, values)
        time.sleep(random.uniform(0, 0.05))


def consume(client: Client, notes: Notes, group: str) -> NoReturn:
    while True:
        try:
            batch = client.pop(
                QUEUE,
                group,
                max_messages=random.randint(1, 20),
                max_partitions=random.randint(1, 3),
                lease=LEASE,
                wait=1,
            )
            if batch is not None:
                handle(batch, notes)
        except PenstockError:
            continue


def handle(batch: Batch, notes: Notes) -> None:
    """Take note, think a little, and settle in one of the ways there are."""
    for claim in batch.claims:
        offsets = [message.offset for message in claim.messages]
        texts = [message.json() for message in claim.messages]
        until = claim.lease_until.timestamp() if claim.lease_until else 0.0
        notes.write("delivered", claim.partition, str(claim.lease_id), until, claim.start, claim.stop, offsets, texts)
    time.sleep(random.uniform(0, 0.02))
    chance = random.random()
    settled(batch, notes, "settling", None)
    try:
        if chance < 0.05:
            failed = random.choice(batch.messages).offset if len(batch.claims) == 1 else None
            batch.nack(failed, reason="at random", delay=random.choice([0, 0.05]))
            settled(batch, notes, "failed", failed)
        elif chance < 0.08:
            batch.release()
            settled(batch, notes, "released", None)
        elif chance < 0.09:
            # Asleep past its deadline: the lease must be refused.
            time.sleep(LEASE * 1.1)
            batch.ack()
            settled(batch, notes, "acked", None)
        else:
            batch.ack()
            settled(batch, notes, "acked", None)
    except LeaseLost:
        # Of several claims, it may be another one's lease that is gone.
        if len(batch.claims) == 1:
            settled(batch, notes, "lost", None)


def settled(batch: Batch, notes: Notes, how: str, failed: int | None) -> None:
    for claim in batch.claims:
        notes.write(how, claim.partition, str(claim.lease_id), failed)


def main(role: str, dsn: str, path: str, me: str) -> NoReturn:
    random.seed(me)
    with Client(dsn, pool_size=2) as client:
        notes = Notes(Path(path))
        if role == "produce":
            produce(client, notes, me)
        consume(client, notes, role)
