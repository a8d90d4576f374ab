"""Pushes go on through the death of the server: none fails, and each is in the log once."""

import threading
from pathlib import Path

from penstock import Client
from penstock.embedded import attach, status

from .processes import eventually, kill


def more_pushes(pushed: list[int], failures: list[BaseException]) -> None:
    reached = len(pushed) + 40
    eventually(lambda: len(pushed) >= reached or failures, "pushes go on", 60)


def restart(home: Path) -> None:
    before = status(home).postgres
    kill(before)
    eventually(lambda: status(home).postgres not in (None, before), "a new server", 60)


def test_a_server_that_is_killed_again_and_again_costs_no_push_and_doubles_none(home: Path) -> None:
    pushed: list[int] = []
    failures: list[BaseException] = []
    stop = threading.Event()

    def work(first: int) -> None:
        try:
            # A server on a busy machine may take longer to come back than a client waits by itself.
            with Client(home=home, connect_timeout=60) as client:
                number = first
                while not stop.is_set():
                    client.push("q", number, partition="p")
                    pushed.append(number)
                    number += 4
        except BaseException as error:
            failures.append(error)

    with attach(home), Client(home=home) as client:
        client.push("q", -1, partition="p")
        threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            more_pushes(pushed, failures)
            restart(home)
        more_pushes(pushed, failures)
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []
        found = [message.json() for message in client.scan("q", "p")]
        assert sorted(found) == sorted([-1, *pushed])
        for first in range(4):
            own = [number for number in found if number >= 0 and number % 4 == first]
            assert own == sorted(own)
