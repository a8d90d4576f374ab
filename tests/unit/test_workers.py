"""The parts of a worker that need no database: claims at hand, how much is taken, backoff, middleware, resources."""

import asyncio
import queue
import select
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from penstock import (
    DeadLetter,
    Discard,
    InvalidInput,
    Item,
    Message,
    Retry,
    SetupError,
    Snooze,
    action,
    middleware,
    resource,
)
from penstock.broker.claims import Claim
from penstock.broker.items import ItemOutcome
from penstock.broker.messages import StoredMessage
from penstock.broker.operations.claiming import Pop
from penstock.workers import frames
from penstock.workers.appetite import Appetite
from penstock.workers.backoff import JITTER, Backoff
from penstock.workers.held import HeldClaim
from penstock.workers.items import Place
from penstock.workers.middleware import around, around_async
from penstock.workers.pools import CANCEL, TIMEOUT, Job
from penstock.workers.process_pool import ProcessPool
from penstock.workers.resources import AsyncResources, Resources, in_order
from penstock.workers.thread_pool import ThreadPool
from penstock.workers.verdicts import DONE, FAILED, GIVEN_BACK, SNOOZED, Verdict, raised, returned

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class NoMemory:
    is_async = False

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def message(offset: int = 0, partition: str = "p", **more: Any) -> StoredMessage:
    return StoredMessage(b"1", offset, NOW, "q", partition, 7, attempt=1, **more)


def held(count: int, *, shared: bool = False) -> HeldClaim:
    messages = [message(10 + number) for number in range(count)]
    return HeldClaim(Claim(1, 7, "p", UUID(int=1), NOW, 1, 10, 10 + count, 1, 1, shared, 60.0, messages))


def item(**more: Any) -> Item:
    return Item(message(**more), Place("f", "a", NoMemory()), None)


def take(claim: HeldClaim, start: int, stop: int, verdict: Verdict | None = None) -> None:
    claim.take(start, stop, verdict, 0.0, lambda attempt: 5.0)


def test_a_claim_that_is_done_is_settled_as_a_whole() -> None:
    claim = held(3)
    take(claim, 0, 2)
    assert (claim.left, claim.part().settled_claim(claim.claim).done) == (1, [(10, 12)])
    take(claim, 2, 3)
    # What was sent is sent again as it was, until somebody knows what came of it.
    assert claim.part().settled_claim(claim.claim).done == [(10, 12)]
    claim.settled()
    assert not claim.over
    assert (claim.left, claim.part().settled_claim(claim.claim).whole) == (0, True)
    claim.settled()
    assert claim.finished


def test_an_ordered_claim_ends_with_what_failed_and_nothing_behind_it_counts() -> None:
    claim = held(4)
    take(claim, 0, 1)
    take(claim, 1, 2, Verdict(FAILED, error="oops"))
    take(claim, 2, 4, GIVEN_BACK)
    settled = claim.part().settled_claim(claim.claim)
    assert claim.complete
    assert (settled.done, settled.release_rest) == ([(10, 11)], False)
    assert settled.outcomes == (ItemOutcome(11, "failed", 5.0, "oops"),)


def test_a_shared_claim_has_any_mix_of_outcomes() -> None:
    claim = held(5, shared=True)
    take(claim, 4, 5)
    take(claim, 2, 3, Verdict(SNOOZED, 9.0))
    take(claim, 0, 1)
    take(claim, 1, 2)
    take(claim, 3, 4, GIVEN_BACK)
    settled = claim.part().settled_claim(claim.claim)
    assert settled.done == [(10, 12), (14, 15)]
    assert settled.outcomes == (ItemOutcome(12, "snoozed", 9.0),)
    assert settled.release_rest


@pytest.mark.parametrize(
    ("error", "kind", "wait", "reason"),
    [
        (ValueError("x"), FAILED, None, "ValueError"),
        (Retry(3, "later"), FAILED, 3.0, "later"),
        (Snooze(4), SNOOZED, 4.0, None),
        (Discard("why"), DONE, None, "why"),
        (DeadLetter("bad"), "dead", None, "bad"),
        (DeadLetter("x" * 5_000_000), "dead", None, "x" * 2000),
        (SystemExit(1), FAILED, None, "SystemExit"),
    ],
)
def test_every_exception_has_its_verdict(error: BaseException, kind: str, wait: float, reason: str) -> None:
    verdict = raised(item(), error)
    assert (verdict.kind, verdict.wait, verdict.reason) == (kind, wait, reason)


def test_nothing_is_remembered_of_a_handler_that_returns_nothing() -> None:
    assert returned(item(), None, pushes=True) is None
    assert returned(item(), "ignored", pushes=False) is None


def test_an_output_stays_where_its_item_was_unless_it_says_otherwise() -> None:
    verdict = returned(item(key="k"), ["plain", Message("keyed", key=7), Message("there", partition=8)], pushes=True)
    assert verdict is not None
    assert [(each.value, each.key, each.partition) for each in verdict.outputs] == [
        (b'"plain"', "k", "p"),
        (b'"keyed"', "7", None),
        (b'"there"', "k", "8"),
    ]


def test_an_output_of_a_redriven_item_goes_to_no_private_lane() -> None:
    verdict = returned(item(partition="~g/p", key="k"), 1, pushes=True)
    assert verdict is not None
    assert verdict.outputs[0].partition is None


def test_a_bad_origin_in_the_headers_is_not_believed() -> None:
    made = item(headers={"penstock-did": "nonsense"})
    assert made.did == made.id


def test_slow_handlers_take_little_and_fast_ones_much() -> None:
    appetite, wanted = Appetite(), Pop("q", "g")
    first = appetite.pop(wanted, slots=10, pending=0)
    assert first is not None
    assert first.max_messages * first.max_partitions <= 20
    appetite.handled(10, 0.0)
    appetite.handled(1000, 0.1)
    second = appetite.pop(wanted, slots=10, pending=0)
    assert second is not None
    assert second.max_messages == 400
    assert appetite.pop(wanted, slots=10, pending=3900) is None
    for second_of_work in range(1, 20):
        appetite.handled(1, float(second_of_work))
    third = appetite.pop(wanted, slots=10, pending=0)
    assert third is not None
    assert third.max_messages == 2


def test_a_backoff_grows_to_its_longest_and_is_spread() -> None:
    backoff = Backoff({"backoff_initial": 1, "backoff_factor": 2, "backoff_max": 60})
    for attempt, expected in ((1, 1), (3, 4), (10, 60), (10_000, 60)):
        pauses = {backoff.after(attempt) for _ in range(50)}
        assert len(pauses) > 1
        assert all(abs(pause - expected) <= JITTER * expected for pause in pauses)


def test_middleware_sees_what_the_handler_returns_and_raises_the_first_one_outermost() -> None:
    seen: list[str] = []

    def make(name: str) -> Any:
        @middleware
        def one(item: Item) -> Generator[None, Any, Any]:
            seen.append(f"{name} begins")
            try:
                result = yield
            except ValueError:
                raise Discard(name) from None
            return f"{name}({result})"

        return one

    handler = around(lambda item: "done", [make("outer"), make("inner")])
    assert handler(item()) == "outer(inner(done))"
    assert seen == ["outer begins", "inner begins"]

    def fail(item: Item) -> None:
        raise ValueError("x")

    with pytest.raises(Discard, match="only"):
        around(fail, [make("only")])(item())


async def test_asynchronous_middleware_is_around_asynchronous_handlers_only() -> None:
    seen: list[object] = []

    @middleware
    async def one(item: Item) -> AsyncIterator[None]:
        seen.append("begins")
        yield
        seen.append("ends")

    async def handler(item: Item) -> str:
        await asyncio.sleep(0)
        return "done"

    assert await around_async(handler, [one])(item()) == "done"
    assert around(lambda item: "sync", [one])(item()) == "sync"
    assert seen == ["begins", "ends"]


async def test_resources_are_opened_once_after_those_that_they_need_and_closed_in_reverse() -> None:
    seen: list[str] = []

    @resource
    def first() -> Iterator[str]:
        seen.append("open first")
        yield "1"
        seen.append("close first")

    @resource
    async def second(first: str) -> AsyncIterator[str]:
        seen.append("open second")
        yield f"2 of {first}"
        seen.append("close second")

    known = {"first": first, "second": second}
    opened = AsyncResources()
    assert await opened.get(["second"], known, "a") == {"second": "2 of 1"}
    assert await opened.get(["first", "second"], known, "b") == {"first": "1", "second": "2 of 1"}
    await opened.close()
    assert seen == ["open first", "open second", "close second", "close first"]


async def test_a_resource_that_cannot_be_opened_is_named() -> None:
    @resource
    def shelf() -> object:
        raise OSError("it is away")

    said = "resource shelf, which action a needs, cannot be opened: OSError: it is away"
    with pytest.raises(SetupError, match=said):
        await AsyncResources().get(["shelf"], {"shelf": shelf}, "action a")
    with pytest.raises(SetupError, match=said):
        Resources().get(["shelf"], {"shelf": shelf}, "action a")


def test_progress_that_nobody_could_show_is_refused() -> None:
    given = item()
    for percent, text in ((101, None), (float("nan"), None), (5, 7)):
        with pytest.raises(InvalidInput, match="progress"):
            given.progress(percent, text)  # type: ignore[arg-type]
    assert (given.percent, given.text) == (None, None)
    given.progress(5, "half of \ud800")
    assert given.text == "half of \\ud800"


def test_resources_that_are_missing_or_need_one_another_are_refused() -> None:
    @resource(name="a")
    def one(b: object) -> None: ...

    @resource(name="b")
    def other(a: object) -> None: ...

    with pytest.raises(InvalidInput, match="action x has a parameter nowhere, and there is no resource of that name"):
        in_order(["nowhere"], {}, "action x")
    with pytest.raises(InvalidInput, match="circle: a → b → a"):
        in_order(["a"], {"a": one, "b": other}, "action x")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"mode": "any"}, "mode of action handle is 'any' but must be one of ordered, shared"),
        ({"timeout": 0}, "timeout is 0 but must be more than 0 seconds"),
        ({"concurrency": 0}, "concurrency of action handle is 0"),
        ({"flow_type": "SINK"}, "flow_type of action handle is 'SINK'"),
        ({"queue": "a\0b"}, "control characters"),
    ],
)
def test_an_action_that_could_not_be_run_is_refused(options: dict[str, Any], problem: str) -> None:
    def handle(item: Item) -> None: ...

    with pytest.raises(InvalidInput, match=problem):
        action(**options)(handle)


def test_frames_arrive_whole_however_they_are_cut() -> None:
    sent: list[frames.FromChild] = [
        frames.Did(3, Verdict(DONE, error="x")),
        frames.Progress(50.0, "half"),
        frames.Ready(),
    ]
    data = b"".join(frames.packed(frame) for frame in sent)
    reader = frames.Frames(from_child=True)
    assert [frame for byte in data for frame in reader.feed(bytes([byte]))] == sent


def test_of_a_long_text_of_a_progress_the_beginning_is_kept() -> None:
    given = item()
    given.progress(5, "x" * 3_000_000)
    assert given.text == "x" * 2000


def test_a_thread_that_has_gone_on_to_the_next_item_is_not_cancelled_in_its_place() -> None:
    claim = held(2)
    may_end = [threading.Event(), threading.Event()]
    begun: queue.SimpleQueue[Item] = queue.SimpleQueue()
    reports: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def handle(item: Item) -> None:
        begun.put(item)
        assert may_end[item.offset - 10].wait(10)

    def wanted(other: HeldClaim, offset: int) -> bool:
        # The first item ends while somebody decides that it is to be cancelled.
        may_end[0].set()
        second.append(begun.get(timeout=10))
        return offset == 10

    second: list[Item] = []
    pool = ThreadPool(handle, 1, None, False, Place("f", "a", NoMemory()), lambda *report: reports.put(report))
    pool.add([Job(claim, 0, 2)])
    begun.get(timeout=10)
    pool.interrupt_items(wanted, CANCEL)
    assert not second[0].cancelled
    may_end[1].set()
    done = 0
    while done < 2:
        _, start, stop, verdict, _ = reports.get(timeout=10)
        assert verdict is None
        done += stop - start
    pool.close()


APP = """
import os, time
from penstock import Item, action

@action(queue="q", flow="f", run_in="process")
def wait(item: Item) -> None:
    while not os.path.exists(f"{os.path.dirname(__file__)}/{item.offset}"):
        time.sleep(0.001)
"""


@pytest.mark.parametrize("shared", [False, True])
async def test_a_child_that_is_killed_just_after_an_item_is_done_blames_neither_that_nor_the_next(
    tmp_path: Path, shared: bool
) -> None:
    app, claim = tmp_path / "app.py", held(2, shared=shared)
    app.write_text(APP)
    reports: asyncio.Queue[Any] = asyncio.Queue()
    failures: list[BaseException] = []
    pool = ProcessPool(
        *(str(app), "f.wait", 1, 30.0, False, Place("f", "wait", NoMemory())),
        *(lambda *report: reports.put_nowait(report[1:4]), failures.append),
    )
    pool.add([Job(claim, 0, 2)])
    while not pool.running():  # noqa: ASYNC110 - a pool tells nobody
        await asyncio.sleep(0.01)
    (slot,) = pool.slots
    # Nobody reads what the child says before it is killed.
    (tmp_path / "10").touch()
    assert select.select([slot.transport.get_extra_info("socket")], [], [], 10)[0]
    pool.interrupt(slot, slot.item, TIMEOUT)

    assert await reports.get() == (0, 1, None)
    if shared:
        # Another child goes on with it.
        (tmp_path / "11").touch()
        assert await reports.get() == (1, 2, None)
    else:
        assert await reports.get() == (1, 2, GIVEN_BACK)
    pool.stop()
    pool.close()
    await pool.join()
    assert failures == []
