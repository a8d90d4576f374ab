"""What came of a call of a handler, as plain data: what it returned or raised, and what is to be pushed.

A verdict is made where the handler ran, in this process or in a child, so that a value that cannot be stored is a
failure of its item. Most calls return None and want nothing to be remembered: these have no verdict at all.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.broker.arguments import as_text, delay_time, storable
from penstock.broker.items import RESULT_HEADER
from penstock.broker.messages import Message, StoredMessage, encode
from penstock.broker.places import Place
from penstock.broker.pushing import PushBatch
from penstock.client.pushes import require_names
from penstock.consuming.failures import describe, trace_of
from penstock.errors import InvalidInput
from penstock.workers.items import DID, PARENT, SOURCE, Item
from penstock.workers.outcomes import DeadLetter, Discard, Outcome, Retry, Snooze

DONE, FAILED, SNOOZED, DEAD, RELEASED, CANCELLED = "done", "failed", "snoozed", "dead", "released", "cancelled"
RESULT = RESULT_HEADER
# Names of partitions that begin so are private lanes, which nobody can push to.
_PRIVATE = "~"
# What is kept of a reason: dead letters are grouped by it.
_REASON_CHARACTERS = 2000


class Skipped(Exception):
    """Raised in the place of a handler whose item was cancelled before it was begun."""


class Produced(NamedTuple):
    """One message that a handler returned, to be pushed."""

    value: bytes | None
    key: str | None
    headers: dict[str, str]
    partition: str | None
    dedupe_id: str | None = None


class Verdict(NamedTuple):
    """What becomes of an item."""

    kind: str
    wait: float | None = None
    error: str | None = None
    reason: str | None = None
    traceback: str | None = None
    outputs: tuple[Produced, ...] = ()
    # What `client.result` returns, where somebody asked for it, and whether it is JSON or just bytes.
    result: bytes | None = None
    result_state: str = "returned"
    # Whether it has notes or steps, which go when it is done.
    noted: bool = False


GIVEN_BACK = Verdict(RELEASED)


def returned(item: Item, value: Any, pushes: bool) -> Verdict | None:
    """Return the verdict on what a handler returned; raises InvalidInput for what cannot be stored."""
    if isinstance(value, Outcome):
        return raised(item, value)
    headers = item.headers
    wants_result = headers is not None and RESULT in headers
    if (value is None or not pushes) and not wants_result and not item.noted:
        return None
    outputs = tuple(_outputs(item, value)) if pushes and value is not None else ()
    if not wants_result:
        return Verdict(DONE, outputs=outputs, noted=item.noted)
    state = "returned bytes" if isinstance(value, bytes | bytearray | memoryview) else "returned"
    result = b"null" if value is None else encode(value)
    return Verdict(DONE, outputs=outputs, result=result, result_state=state, noted=item.noted)


def raised(item: Item, error: BaseException) -> Verdict:
    """Return the verdict on what a handler raised. Never raises anything, whatever that is."""
    try:
        found = _raised(item, error)
        return found._replace(
            wait=delay_time(found.wait),
            error=_storable(found.error),
            reason=_storable(found.reason and found.reason[:_REASON_CHARACTERS]),
            traceback=_storable(found.traceback),
        )
    except BaseException as second:
        # An outcome with attributes that its class would refuse, or an error of a class that answers nothing.
        said = storable(f"{describe(error)} (and to look at it raised {describe(second)})")
        return Verdict(FAILED, None, said, "InvalidInput", noted=item.noted)


def _storable(text: str | None) -> str | None:
    return None if text is None else storable(text)


def _raised(item: Item, error: BaseException) -> Verdict:
    match error:
        case Skipped():
            return Verdict(CANCELLED, noted=item.noted)
        case Snooze():
            return Verdict(SNOOZED, error.seconds, noted=item.noted)
        case Discard():
            return Verdict(DONE, reason=error.reason, result_state="discarded", noted=item.noted)
        case DeadLetter():
            return Verdict(DEAD, None, describe(error), error.reason, trace_of(error), noted=item.noted)
        case Retry():
            reason = error.reason or type(error).__name__
            return Verdict(FAILED, error.after, describe(error), reason, trace_of(error), noted=item.noted)
        case _:
            return Verdict(FAILED, None, describe(error), type(error).__name__, trace_of(error), noted=item.noted)


def _outputs(item: Item, value: Any) -> "list[Produced]":
    """Return what is pushed: by default where the item was, with its key, so that the order of a key goes on."""
    lineage = {DID: str(item.did), PARENT: str(item.id), SOURCE: item.data_source, **item.trace}
    partition = None if item.partition.startswith(_PRIVATE) else item.partition
    found = []
    for each in value if isinstance(value, list) else (value,):
        if isinstance(each, StoredMessage):
            raise InvalidInput("a handler returned a StoredMessage; return a Message, or the value itself")
        if not isinstance(each, Message):
            found.append(Produced(encode(each), item.key, lineage, partition))
            continue
        # A key of its own picks the partition; without one it stays where the item was.
        own = partition if each.key is None and each.dedupe_id is None else None
        made = Produced(
            encode(each.value),
            item.key if each.key is None else as_text(each.key),
            _headers(each, lineage),
            own if each.partition is None else as_text(each.partition),
            each.dedupe_id,
        )
        _check(each, made)
        found.append(made)
    return found


def _headers(given: Message, lineage: dict[str, str]) -> dict[str, str]:
    if given.headers is None:
        return lineage
    if not isinstance(given.headers, Mapping):
        raise InvalidInput(f"headers must be texts by name, and {given.headers!r:.100} is not")
    return {**given.headers, **lineage}


def _check(given: Message, made: Produced) -> None:
    """Refuse a message that could not be pushed: here, where it is the failure of its item."""
    if given.unique_key is not None:
        raise InvalidInput("a handler returned a Message with a unique_key; outputs have none: give a dedupe_id")
    # Without the value: any that could be encoded can be pushed, as far as this can be known here.
    message = Message(None, made.key, made.headers, made.partition, made.dedupe_id)
    require_names("to", [message])
    PushBatch.of(Place("to", "0"), [message])
