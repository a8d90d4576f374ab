"""An action with a message that kills its worker, once another one is claimed ahead."""

import os
import signal
import time

from penstock import Client, Item, action

watch = Client(os.environ["PENSTOCK_URL"])


def kill(item: Item) -> None:
    if item.json() == "poison":
        while len(watch.claims(item.queue)) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


@action(queue="ordered", flow="killing", concurrency=1, max_attempts=2)
def ordered(item: Item) -> None:
    kill(item)


@action(queue="shared", flow="killing", concurrency=1, max_attempts=2, mode="shared")
def shared(item: Item) -> None:
    kill(item)
