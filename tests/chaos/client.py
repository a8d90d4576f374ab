"""A client process of the chaos test: pushes or consumes until it is killed, and writes down what it did.

Each line of its file is one JSON array, appended with a single write: a kill leaves it whole, or not there.
A push is written down when it has returned; a delivery before the handler begins; that a claim is being settled,
before; and how, after. So of a process that died it is known what it may have done, and what it cannot.
"""

import json
import logging
import os
import random
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

from penstock import Batch, Client, LeaseLost, Message, PenstockError, StoredMessage, Unavailable

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


def produce_once(client: Client, notes: Notes, me: str) -> NoReturn:
    """Push each message under an id, and again until an answer comes, and now and then once more."""
    number = 0
    while True:
        partition, value = f"p{random.randrange(PARTITIONS)}", f"{me}/{number}"
        number += 1
        again = random.random() < 0.3
        while True:
            try:
                client.push(QUEUE, [Message(value, dedupe_id=value)], partition=partition)
            except PenstockError:
                continue
            if not again:
                break
            again = False
        notes.write("stored", partition, value)
        time.sleep(random.uniform(0, 0.05))


def produce_later(client: Client, notes: Notes, me: str) -> NoReturn:
    """Push messages that are due in a moment, and say so in their values."""
    number = 0
    while True:
        due = datetime.now(UTC) + timedelta(seconds=random.uniform(0.05, 3))
        partition, value = f"p{random.randrange(PARTITIONS)}", f"{me}/{number}@{due.timestamp()}"
        number += 1
        try:
            client.push(QUEUE, value, partition=partition, at=due)
        except PenstockError:
            continue
        notes.write("stored", partition, value)
        time.sleep(random.uniform(0, 0.05))


def maintain(client: Client) -> NoReturn:
    """Merge, retain and sweep, as `penstock maintain` does, without a rest."""
    while True:
        try:
            for _ in client.maintain(min_segments=16):
                pass
            client.sweep()
        except PenstockError:
            continue
        time.sleep(0.1)


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


def consume_ahead(client: Client, notes: Notes, group: str) -> NoReturn:
    """Consume what was claimed ahead; acks are sent in the background, so nobody knows when they are."""
    while True:
        try:
            for batch in client.consume(QUEUE, group, prefetch=30, max_messages=random.randint(1, 10), lease=LEASE):
                delivered(batch, notes)
                settled(batch, notes, "settling", None)
                with batch:
                    time.sleep(random.uniform(0, 0.01))
        except PenstockError:
            continue


def handle(batch: Batch, notes: Notes, *, calm: bool = False) -> None:
    """Take note, think a little, and settle in one of the ways there are."""
    delivered(batch, notes)
    chance = 1.0 if calm else random.random()
    if not calm:
        time.sleep(random.uniform(0, 0.02))
    settled(batch, notes, "settling", None)
    try:
        if chance < 0.15:
            fail_at(batch, notes, random.choice(batch.messages))
        elif chance < 0.17:
            batch.nack(reason="somewhere", delay=random.choice([0, 0.05]))
            settled(batch, notes, "failed", None)
        elif chance < 0.20:
            batch.release()
            settled(batch, notes, "released", None)
        elif chance < 0.21:
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


def delivered(batch: Batch, notes: Notes) -> None:
    for claim in batch.claims:
        offsets = [message.offset for message in claim.messages]
        texts = [message.json() for message in claim.messages]
        until = claim.lease_until.timestamp() if claim.lease_until else 0.0
        attempt = claim.messages[0].attempt
        where = (claim.partition, str(claim.lease_id), until, claim.start, claim.stop)
        notes.write("delivered", *where, attempt, time.time(), offsets, texts)


def fail_at(batch: Batch, notes: Notes, failed: StoredMessage) -> None:
    """Fail as `process` does: claims before the one of the failing message are done, those after it are given back."""
    batch.nack_message(failed, RuntimeError("at random"))
    how = "acked"
    for claim in batch.claims:
        if claim.partition_id == failed.partition_id and claim.start <= failed.offset < claim.stop:
            notes.write("failed", claim.partition, str(claim.lease_id), failed.offset)
            how = "released"
        else:
            notes.write(how, claim.partition, str(claim.lease_id), None)


def settled(batch: Batch, notes: Notes, how: str, failed: int | None) -> None:
    for claim in batch.claims:
        notes.write(how, claim.partition, str(claim.lease_id), failed)


def connected(dsn: str) -> Client:
    """Open a client, however long the server takes to come back."""
    while True:
        try:
            return Client(dsn, pool_size=2, connect_timeout=30)
        except Unavailable:
            time.sleep(0.05)


def main(role: str, dsn: str, path: str, me: str) -> NoReturn:
    # That the server is gone now and then is no news here.
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    random.seed(me)
    with connected(dsn) as client:
        notes = Notes(Path(path))
        match role:
            case "produce":
                produce(client, notes, me)
            case "once":
                produce_once(client, notes, me)
            case "later":
                produce_later(client, notes, me)
            case "maintenance":
                maintain(client)
            case "ahead":
                consume_ahead(client, notes, role)
            case _:
                consume(client, notes, role)
