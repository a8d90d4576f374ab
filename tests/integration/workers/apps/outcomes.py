"""An action for every outcome. Handlers that are called more than once say so in the queue `calls`."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from penstock import Client, DeadLetter, Discard, Item, Message, Retry, Snooze, action, middleware, resource


class _Bare(Snooze):
    def __init__(self) -> None:
        pass


def _changed(outcome: Any, **attributes: Any) -> object:
    for name, value in attributes.items():
        setattr(outcome, name, value)
    return outcome


@resource
def calls() -> Iterator[Client]:
    with Client() as client:
        yield client


def call(calls: Client, item: Item) -> None:
    calls.push("calls", {"action": item.action, "value": item.json(), "attempt": item.attempt}, partition=item.action)


@action(queue="values", to="given", flow="outcomes")
async def give(item: Item) -> object:
    match item.json():
        case "one":
            return {"attempt": item.attempt, "queue": item.queue, "flow": item.flow, "action": item.action}
        case "several":
            return ["a", "b", "c"]
        case "nothing":
            return None
        case "elsewhere":
            return Message("there", key="other", headers={"mine": "yes"}, partition="elsewhere")
        case "not json":
            return object()
        case other:
            return other


@action(queue="given", flow="outcomes", to="chained", name="chain")
async def chain(item: Item) -> object:
    return {"did": str(item.did), "id": str(item.id), "source": item.data_source, "value": item.json()}


@action(queue="raise", flow="outcomes", name="raise", max_attempts=3, backoff=0.01)
def fail(item: Item, calls: Client) -> None:
    call(calls, item)
    raise ValueError("no such customer")


@action(queue="retry", flow="outcomes", backoff=60)
async def retry(item: Item, calls: Client) -> object:
    call(calls, item)
    if item.attempt == 1:
        raise Retry(after=0.05, reason="not yet")
    return Retry(0.05) if item.attempt == 2 else None


snoozed: Counter[str] = Counter()


@action(queue="snooze", flow="outcomes", max_attempts=2)
def snooze(item: Item, calls: Client) -> None:
    call(calls, item)
    snoozed[item.json()] += 1
    if snoozed[item.json()] < 4:
        raise Snooze(0.01)


@action(queue="discard", to="discarded", flow="outcomes")
async def discard(item: Item) -> object:
    if item.json() == "returned":
        return Discard("nobody wants it")
    raise Discard


@action(queue="dead", flow="outcomes", max_attempts=9)
async def dead(item: Item) -> None:
    raise DeadLetter("the address is wrong")


@action(queue="slow", flow="outcomes", timeout=0.2, max_attempts=1)
async def slow(item: Item) -> None:
    if item.json() == "slow":
        await asyncio.sleep(60)


@action(queue="slow-thread", flow="outcomes", timeout=0.2, max_attempts=1, to="fast-threads")
def slow_thread(item: Item) -> object:
    if item.json() == "slow":
        time.sleep(60)
    return item.json()


@action(queue="slow-child", flow="outcomes", timeout=1, max_attempts=1, run_in="process", to="fast-children")
def slow_child(item: Item) -> object:
    if item.json() == "slow":
        time.sleep(60)
    return os.getpid()


@action(queue="deaf", flow="outcomes", timeout=0.1, max_attempts=1, to="heard", concurrency=1)
async def deaf(item: Item) -> object:
    if item.json() == "deaf":
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(60)
    return item.json()


@action(queue="deadly", flow="outcomes", max_attempts=2, backoff=0.01, run_in="process", to="survived")
def deadly(item: Item) -> object:
    if item.json() == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    return item.json()


@action(queue="exit", flow="outcomes", max_attempts=1, to="stayed")
async def leave(item: Item) -> object:
    if item.json() == "exit":
        raise SystemExit(3)
    return item.json()


@action(queue="large", to="small", flow="outcomes", max_attempts=1)
async def large(item: Item) -> object:
    return "x" * item.json()


def charge() -> dict[str, str]:
    return {"receipt": uuid4().hex}


async def charge_async() -> dict[str, str]:
    return charge()


@action(queue="steps-task", to="stepped", flow="outcomes", backoff=0.01)
async def step_task(item: Item) -> object:
    receipt = await item.step("charge", charge_async)
    seen = await item.checkpoint() or []
    await item.checkpoint([*seen, receipt])
    if item.attempt < 3:
        raise ValueError("try again")
    return [Message([receipt, seen], partition="task")]


@action(queue="steps-thread", to="stepped", flow="outcomes", backoff=0.01)
def step_thread(item: Item) -> object:
    receipt = item.step("charge", charge)
    seen = item.checkpoint() or []
    item.checkpoint([*seen, receipt])
    if item.attempt < 3:
        raise ValueError("try again")
    return [Message([receipt, seen], partition="thread")]


@action(queue="steps-child", to="stepped", flow="outcomes", backoff=0.01, run_in="process", concurrency=1)
def step_child(item: Item) -> object:
    receipt = item.step("charge", charge)
    seen = item.checkpoint() or []
    item.checkpoint([*seen, receipt])
    if item.attempt == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if item.attempt == 1:
        raise ValueError("try again")
    return [Message([receipt, seen], partition="child")]


def charge_slowly(calls: list[int], number: int) -> int:
    calls.append(number)
    time.sleep(0.05)
    return number


def charge_under_a_bad_name(item: Item) -> object:
    """Say what refuses the name of a step, and whether the step ran nevertheless."""
    calls: list[int] = []
    try:
        item.step("\udc80", charge_slowly, calls, 1)
    except Exception as error:
        return [type(error).__name__, len(calls)]
    return ["nothing", len(calls)]


@action(queue="bad-name-thread", to="bad-name", flow="outcomes", max_attempts=1)
def bad_name_thread(item: Item) -> object:
    return [Message(charge_under_a_bad_name(item), partition="thread")]


@action(queue="bad-name-child", to="bad-name", flow="outcomes", max_attempts=1, run_in="process", concurrency=1)
def bad_name_child(item: Item) -> object:
    return [Message(charge_under_a_bad_name(item), partition="child")]


def charge_at_once(item: Item) -> object:
    """Ask for one step, and for one each, by several threads of the handler's own."""
    calls: list[int] = []
    with ThreadPoolExecutor(4) as threads:
        same = list(threads.map(lambda n: item.step("same", charge_slowly, calls, n), range(4)))
        each = list(threads.map(lambda n: item.step(f"number {n}", charge_slowly, [], n), range(4)))
    return [[len(calls), len(set(same)), each]]


@action(queue="at-once-thread", to="at-once", flow="outcomes", max_attempts=1)
def at_once_thread(item: Item) -> object:
    return [Message(charge_at_once(item), partition="thread")]


@action(queue="at-once-child", to="at-once", flow="outcomes", max_attempts=1, run_in="process", concurrency=1)
def at_once_child(item: Item) -> object:
    return [Message(charge_at_once(item), partition="child")]


@action(queue="at-once-task", to="at-once", flow="outcomes", max_attempts=1)
async def at_once_task(item: Item) -> object:
    calls: list[int] = []

    async def charge_later(number: int) -> int:
        calls.append(number)
        await asyncio.sleep(0.05)
        return number

    same = await asyncio.gather(*(item.step("same", charge_later, n) for n in range(4)))
    each = await asyncio.gather(*(item.step(f"number {n}", charge_later, n) for n in range(4)))
    return [Message([[len(calls) - 4, len(set(same)), each]], partition="task")]


def end_without_a_look(item: Item) -> None:
    """End a second attempt without a look at what the first one noted."""
    match item.json():
        case "discard":
            raise Discard
        case "dead":
            raise DeadLetter("nothing helps")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)


@action(queue="left-task", flow="outcomes", mode="shared", backoff=0.01, max_attempts=2)
async def left_task(item: Item) -> None:
    if item.attempt > 1:
        return end_without_a_look(item)
    await item.step("charge", charge_async)
    await item.checkpoint("half")
    raise ValueError("try again")


def leave_notes(item: Item) -> None:
    if item.attempt > 1:
        return end_without_a_look(item)
    item.step("charge", charge)
    item.checkpoint("half")
    raise ValueError("try again")


@action(queue="left-thread", flow="outcomes", mode="shared", backoff=0.01, max_attempts=2)
def left_thread(item: Item) -> None:
    leave_notes(item)


@action(queue="left-child", flow="outcomes", mode="shared", backoff=0.01, max_attempts=2, run_in="process")
def left_child(item: Item) -> None:
    leave_notes(item)


@action(queue="sleep", to="woken", flow="outcomes", max_attempts=1)
def sleep(item: Item) -> object:
    began = item.step("began", time.time)
    item.sleep_until(datetime.fromtimestamp(began + 0.3, UTC))
    return {"slept": time.time() - began, "attempt": item.attempt}


@action(queue="ask", flow="outcomes", max_attempts=1)
async def answer(item: Item) -> object:
    if item.json() == "raise":
        raise ValueError("no answer")
    return {"bytes": b"abc", "nothing": None}.get(item.json(), {"asked": item.json()})


LONE: Any = "\ud800"
ANY: Any = Message
# What no queue takes, and no outcome can say.
BAD: dict[str, Any] = {
    "number as reason": lambda: Retry(0, reason=ANY(5).value),
    "bytes as reason": lambda: Discard(ANY(b"x").value),
    "text as seconds": lambda: Snooze(ANY("soon").value),
    "reason set later": lambda: _changed(Retry(0), reason=5),
    "wait set later": lambda: _changed(Retry(0), after=float("inf")),
    "outcome without attributes": _Bare,
    "lone surrogate said": lambda: ValueError(LONE),
    "NUL in key": lambda: ANY(1, key="\0"),
    "float as key": lambda: ANY(1, key=1.5),
    "bytes as key": lambda: ANY(1, key=b"k"),
    "number as header": lambda: ANY(1, headers={"a": 1}),
    "number as name of a header": lambda: ANY(1, headers={1: "x"}),
    "headers that are none": lambda: ANY(1, headers="x"),
    "empty partition": lambda: ANY(1, partition=""),
    "private partition": lambda: ANY(1, partition="~x"),
    "long partition": lambda: ANY(1, partition="x" * 300),
    "lone surrogate in key": lambda: ANY(1, key=LONE),
    "lone surrogate in header": lambda: ANY(1, headers={"a": LONE}),
    "lone surrogate in partition": lambda: ANY(1, partition=LONE),
    "lone surrogate in dedupe_id": lambda: ANY(1, dedupe_id=LONE),
    "number as dedupe_id": lambda: ANY(1, dedupe_id=5),
    "unique key": lambda: ANY(1, unique_key="u"),
}


def be_bad(item: Item) -> object:
    made = BAD.get(item.json(), item.json)()
    if isinstance(made, Exception) and not isinstance(made, Retry | Discard | Snooze):
        raise made
    return made


@action(queue="bad-task", to="good", flow="outcomes", max_attempts=1, settings={"breaker_errors": 0})
async def bad_task(item: Item) -> object:
    return be_bad(item)


@action(queue="bad-thread", to="good", flow="outcomes", max_attempts=1, settings={"breaker_errors": 0})
def bad_thread(item: Item) -> object:
    return be_bad(item)


@action(queue="bad-child", to="good", flow="outcomes", max_attempts=1, run_in="process", settings={"breaker_errors": 0})
def bad_child(item: Item) -> object:
    return be_bad(item)


@action(queue="cancel-slow-thread", to="ended-thread", flow="outcomes", timeout=2.5, max_attempts=1)
def cancel_slow_thread(item: Item, calls: Client) -> object:
    call(calls, item)
    if item.json() == "deaf":
        time.sleep(60)
    return item.json()


@action(queue="cancel-slow-child", to="ended-child", flow="outcomes", timeout=2.5, max_attempts=1, run_in="process")
def cancel_slow_child(item: Item, calls: Client) -> object:
    call(calls, item)
    if item.json() == "deaf":
        time.sleep(60)
    return item.json()


def too_large(item: Item) -> str:
    """Try to remember more than is kept; say how that is refused."""
    try:
        item.step("large", lambda: "x" * 2_000_000)
    except Exception as error:
        return type(error).__name__
    return "kept"


@action(queue="large-thread", to="refused-thread", flow="outcomes", max_attempts=1)
def large_thread(item: Item) -> object:
    return too_large(item)


@action(queue="large-child", to="refused-child", flow="outcomes", max_attempts=1, run_in="process")
def large_child(item: Item) -> object:
    return too_large(item)


@action(queue="fork", to="forked", flow="outcomes", timeout=1, max_attempts=1, run_in="process", concurrency=1)
def fork(item: Item, calls: Client) -> object:
    """Start a process that has all that this one has, and end before it; say who it is."""
    if item.json() == "fine":
        return "fine"
    own, other = os.pipe()
    pid = os.fork()
    if pid == 0:
        if item.json() == "daemon":
            os.setsid()
        os.write(other, b"x")
        time.sleep(60)
        os._exit(0)
    os.read(own, 1)
    calls.push("forks", pid, partition=item.json())
    if item.json() == "hang":
        time.sleep(60)
    os._exit(7)


@action(queue="cancel", to="not-cancelled", flow="outcomes")
async def cancel_task(item: Item, calls: Client) -> object:
    call(calls, item)
    if item.json() == "endless":
        await asyncio.sleep(60)
    return item.json()


@action(queue="cancel-thread", to="not-cancelled-thread", flow="outcomes")
def cancel_thread(item: Item, calls: Client) -> object:
    call(calls, item)
    while item.json() == "endless" and not item.cancelled:
        time.sleep(0.01)
    return item.json()


@action(queue="cancel-child", to="not-cancelled-child", flow="outcomes", run_in="process", concurrency=1)
def cancel_child(item: Item, calls: Client) -> object:
    call(calls, item)
    while item.json() == "endless" and not item.cancelled:
        time.sleep(0.01)
    return item.json()


# What a handler may say that sees that its item was cancelled.
ENDS: dict[str, Any] = {
    "raise": lambda: RuntimeError("cancelled"),
    "retry": lambda: Retry(60),
    "snooze": lambda: Snooze(60),
}


@action(queue="cancel-end", to="after-cancel", flow="outcomes", run_in="process", concurrency=1)
def cancel_end(item: Item, calls: Client) -> object:
    call(calls, item)
    if item.json() not in ENDS:
        return item.json()
    while not item.cancelled:
        time.sleep(0.01)
    raise ENDS[item.json()]()


@action(queue="around", to="rounded", flow="outcomes", max_attempts=1)
async def inner(item: Item) -> object:
    if item.json() == "raise":
        raise KeyError("inner")
    return ["inner"]


@middleware
def outer(item: Item) -> Generator[None, Any, Any]:
    if item.queue != "around":
        yield
        return None
    try:
        result = yield
    except KeyError:
        raise DeadLetter("translated by a middleware") from None
    return ["before", *result, "after"]
