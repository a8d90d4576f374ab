"""Handlers that do what their item says: note that they have begun, wait for a file, kill their process once."""

import asyncio
import os
import signal
from pathlib import Path

from penstock import Item, action

SETTINGS = {"lease_time": 5, "backoff_initial": 0.01, "backoff_max": 0.1}


@action(queue="work", to="worked", flow="spark", settings=SETTINGS)
async def handle(item: Item) -> object:
    said = item.json()
    if "begun" in said:
        note(said["begun"])
    if "kill" in said and not is_noted(said["kill"]):
        note(said["kill"])
        os.kill(os.getpid(), signal.SIGKILL)
    if "go" in said:
        await go(said["go"])
    return {"number": said["number"], "attempt": item.attempt}


@action(queue="child-work", to="child-worked", flow="spark", run_in="process", settings=SETTINGS)
def handle_in_child(item: Item) -> object:
    return {"number": item.json()["number"], "attempt": item.attempt}


def note(path: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")


def is_noted(path: str) -> bool:
    return Path(path).exists()


async def go(path: str) -> None:
    while True:
        if is_noted(path):
            return
        await asyncio.sleep(0.01)
