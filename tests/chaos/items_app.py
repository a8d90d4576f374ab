"""The app whose workers and children are killed: two actions in a row, the second one in child processes."""

import os

from penstock import Item, action

# A kill counts an attempt, and none of the items is to blame.
SETTINGS = {"lease_time": 1, "backoff_initial": 0.01, "backoff_max": 0.1, "max_attempts": 1000}


def note(line: str) -> None:
    """Append a line to a file that all processes write to; each line is written at once."""
    with open(os.environ["PENSTOCK_CHAOS_NOTES"], "ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


@action(queue="entered", to="doubled", flow="chaos", settings=SETTINGS)
async def double(item: Item) -> object:
    return {"number": item.json()["number"], "doubled": 2 * item.json()["number"]}


@action(queue="doubled", to="charged", flow="chaos", run_in="process", settings=SETTINGS)
def charge(item: Item) -> object:
    number = item.json()["number"]
    receipt = item.step("charge", charged, number)
    note(f"past {number}")
    return {"number": number, "receipt": receipt}


def charged(number: int) -> str:
    note(f"charge {number}")
    return f"receipt {number}"
