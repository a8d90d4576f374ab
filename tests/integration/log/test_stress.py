"""Eight producers, random batches, partitions and rollbacks: in the end the log is whole."""

import random
import threading
from collections import defaultdict

from databases import Connection
from penstock import Client, Message, Retryable

from .interleaving import gapless

PRODUCERS, ROUNDS, PARTITIONS = 8, 60, 5


class Changed(Exception):
    """A producer changed its mind."""


def produce(client: Client, producer: int, committed: dict[tuple[str, int], list[int]]) -> None:
    chance = random.Random(producer)
    number = 0
    for _ in range(ROUNDS):
        batch: list[Message] = []
        for _ in range(chance.randint(1, 30)):
            batch.append(Message({"from": producer, "number": number}, partition=str(chance.randrange(PARTITIONS))))
            number += 1
        try:
            if chance.random() < 0.5:
                client.push_many("q", batch)
            else:
                with client.transaction() as tx:
                    for message in batch:
                        tx.push("q", message)
                    if chance.random() < 0.4:
                        raise Changed
        except Changed:
            continue
        for message in batch:
            committed[str(message.partition), producer].append(message.value["number"])


def test_all_that_was_committed_is_there_once_in_each_producers_order(
    client: Client, sql: Connection, dsn: str
) -> None:
    committed: dict[tuple[str, int], list[int]] = defaultdict(list)
    failures: list[BaseException] = []

    def run(producer: int) -> None:
        try:
            with Client(dsn, pool_size=1) as own:
                produce(own, producer, committed)
        except BaseException as error:
            failures.append(error)

    stop = threading.Event()

    def maintain() -> None:
        while not stop.is_set():
            try:
                list(client.maintain(min_segments=4))
            except Retryable:
                continue
            except BaseException as error:
                failures.append(error)
                return

    maintainer = threading.Thread(target=maintain)
    maintainer.start()
    threads = [threading.Thread(target=run, args=(producer,)) for producer in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    maintainer.join()

    assert not failures
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for partition in client.partitions("q"):
        messages = client.read("q", partition.name)
        assert [message.offset for message in messages] == list(range(partition.head))
        assert [message.timestamp for message in messages] == sorted(message.timestamp for message in messages)
        for message in messages:
            value = message.json()
            found[partition.name, value["from"]].append(value["number"])
    assert found == committed
    assert len(found) == PRODUCERS * PARTITIONS
    assert gapless(sql)
