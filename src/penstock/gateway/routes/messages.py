"""Push messages and read them; look at single ones, and cancel them."""

from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any
from uuid import UUID

import msgspec

from penstock.broker.ids import parse_id
from penstock.broker.infos import MessageState, ScheduledInfo
from penstock.broker.messages import Duplicate, Message, PushResult, StoredMessage
from penstock.broker.operations.items import GetResult
from penstock.broker.operations.log import GetSpread
from penstock.broker.operations.pushing import ListScheduled, NoteRequest, Push
from penstock.broker.pushing import Stamp, due, uniqueness
from penstock.client import pushes
from penstock.errors import IdempotencyKeyReused, InvalidInput, NotFound, TimedOut
from penstock.gateway.call import Call, Reply
from penstock.gateway.envelopes import envelope, message_of
from penstock.gateway.pages import Limit, Number, Page, Wait, page_of
from penstock.gateway.route import BYTES, NDJSON
from penstock.operations import envelopes
from penstock.operations.envelopes import Envelope, PushedEnvelope

IDEMPOTENCY = "Idempotency-Key"
_LONGEST_KEY = 255
# Of a number of eight bytes. Python refuses to read very long ones, and it is a caller who writes this one.
_MOST_DIGITS = 19


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What holds for all messages of a push. `partition` and `key` are for those that say neither themselves.

    `dedupe_id` and `unique_key` are for a body that is the value of one message; envelopes have their own.
    """

    partition: str | None = None
    key: str | None = None
    delay: float | None = None
    at: datetime | None = None
    dedupe_id: str | None = None
    unique_key: str | None = None
    unique_for: float | None = None
    unique_until: str | None = None
    replace: bool = False
    result: float | None = None


class PushMessages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages to push, to any partitions of the queue, in one transaction."""

    messages: Annotated[list[PushedEnvelope], msgspec.Meta(min_length=1)]


class Earlier(msgspec.Struct, frozen=True):
    """A message that was not stored again, by its position among those given, and where the earlier one is."""

    position: int
    offset: int | None
    id: UUID | None
    scheduled_id: int | None


class PushedTo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where messages went: one partition, consecutive offsets. Scheduled ones get their offsets when they are due."""

    queue: str
    partition: str
    count: int
    timestamp: datetime
    first_offset: int | None = None
    ids: list[UUID] | None = None
    scheduled_ids: list[int] | None = None
    due_at: datetime | None = None
    duplicates: list[Earlier] = []
    replaced: list[Earlier] = []


class Pushed(msgspec.Struct, frozen=True):
    """What came of a push: one result for each partition."""

    results: list[PushedTo]


class ReadRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages of a partition."""

    start: Number = 0
    stop: Number | None = None
    start_time: datetime | None = None
    stop_time: datetime | None = None
    limit: Limit = 100


class ScheduledPush(msgspec.Struct, frozen=True):
    """Messages that are kept aside until they are due."""

    scheduled_id: int
    queue: str
    partition: str
    due_at: datetime
    created_at: datetime
    count: int
    size: int
    preview: str | None


class ScheduledQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which scheduled pushes."""

    queue: str | None = None
    partition: str | None = None
    after: str | None = None
    limit: Limit = 100


class ResultQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose result, and how long to wait for it."""

    group: str | None = None
    wait: Wait = 0.0


class Result(msgspec.Struct, frozen=True):
    """What the handler of a message returned: JSON as `value`, bytes as `value_base64`."""

    value: Any | msgspec.UnsetType = msgspec.UNSET
    value_base64: bytes | msgspec.UnsetType = msgspec.UNSET


class CancelMessages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages to cancel, for one group or all."""

    ids: Annotated[list[UUID], msgspec.Meta(max_length=1000)]
    group: str | None = None


class CancelledMessages(msgspec.Struct, frozen=True):
    """The ids for which it was in time."""

    cancelled: list[UUID]


class CancelledScheduled(msgspec.Struct, frozen=True):
    """Whether it was in time."""

    cancelled: bool


async def push(call: Call) -> Reply:
    """Push messages in one transaction; when this answers they are durable.

    JSON has the messages as envelopes, NDJSON one envelope a line; a body of bytes is the value of one message. With an
    Idempotency-Key a push that is sent again under the same key within an hour stores nothing, and gets the first
    answer; another push under that key is refused.
    """
    queue, options = call.path["queue"], call.query
    messages = [_with_defaults(message, options) for message in _messages(call, options)]
    key = call.request.headers.get(IDEMPOTENCY)
    if key is None:
        results = await call.gateway.client.push_many(
            queue,
            messages,
            delay=options.delay,
            at=options.at,
            unique_for=options.unique_for,
            unique_until=options.unique_until,
            replace=options.replace,
        )
    else:
        results = await _push_once(call, key, messages)
    return Reply(Pushed([pushed_to(each) for each in results]), 201)


def _messages(call: Call, options: Options) -> list[Message]:
    if call.media != BYTES and (options.dedupe_id is not None or options.unique_key is not None):
        # Each message has its own: one for all would let the first through and no other.
        raise InvalidInput("dedupe_id and unique_key in the query are for a body of bytes; give them in the envelopes")
    if isinstance(call.body, PushMessages):
        return [message_of(each) for each in call.body.messages]
    if call.media == NDJSON:
        found = [envelopes.read(line) for line in call.body.splitlines() if line.strip()]
        if not found:
            raise InvalidInput("an empty push: give at least one message")
        return found
    return [Message(call.body, dedupe_id=options.dedupe_id, unique_key=options.unique_key)]


def _with_defaults(message: Message, options: Options) -> Message:
    """Return a message with the options for those that say nothing themselves."""
    alone = message.partition is None and message.key is None
    if alone and (options.partition is not None or options.key is not None):
        message = msgspec.structs.replace(message, partition=options.partition, key=options.key)
    if options.result is not None:
        return pushes.all_asking_for_result([message], options.result)[0]
    return message


async def _push_once(call: Call, key: str, messages: list[Message]) -> list[PushResult]:
    """Push under a stamp that is made of the key, so that it is stored once however often it comes."""
    queue, options = call.path["queue"], call.query
    if not 0 < len(key) <= _LONGEST_KEY:
        raise InvalidInput(f"an {IDEMPOTENCY} has 1 to {_LONGEST_KEY} characters")
    gathered = pushes.gather_many(messages)
    spread = await call.gateway.client.run(GetSpread(queue)) if pushes.needs_spread(gathered) else 1
    # Those that could go anywhere must go to the same place each time.
    anywhere = pushes.partition_for_key(key, spread)
    gathered = [
        message
        if any(each is not None for each in (message.partition, message.key, message.dedupe_id, message.unique_key))
        else msgspec.structs.replace(message, partition=anywhere)
        for message in gathered
    ]
    unique = uniqueness(gathered, options.unique_for, options.unique_until, options.replace)
    batches = pushes.batches(pushes.place(queue, gathered, spread), due(options.delay, options.at), unique)
    # Of one caller: two who use the same key by chance must not get each other's answer.
    producer = UUID(bytes=sha256(f"{call.caller or ''}\0{queue}\0{key}".encode()).digest()[:16], version=5)
    digest = sha256(msgspec.msgpack.encode((options, gathered))).digest()
    async with call.gateway.client.transaction() as tx:
        if not await tx.run(NoteRequest(producer, digest)):
            raise IdempotencyKeyReused(f"the {IDEMPOTENCY} {key!r:.100} was used for another push to {queue!r:.100}")
        return await tx.run(Push(batches, Stamp(producer, 1)))


def pushed_to(result: PushResult) -> PushedTo:
    """Return the result of a push as it is shown."""
    scheduled = result.scheduled
    return PushedTo(
        result.queue,
        result.partition,
        result.count,
        result.timestamp,
        None if scheduled is not None else result.first_offset,
        None if scheduled is not None or _refers_to_scheduled(result) else result.ids,
        None if scheduled is None else list(scheduled.ids),
        None if scheduled is None else scheduled.due_at,
        [_earlier(each) for each in result.duplicates],
        [_earlier(each) for each in result.replaced],
    )


def _refers_to_scheduled(result: PushResult) -> bool:
    return any(each.id is None for each in (*result.duplicates, *result.replaced))


def _earlier(each: Duplicate) -> Earlier:
    return Earlier(*each)


async def read(call: Call) -> Page[Envelope]:
    """Read messages of a partition, by offset or by time; `next` is the `start` of the page that follows.

    It claims nothing.
    """
    wanted = call.query
    found = await call.gateway.client.read(
        call.path["queue"],
        call.path["partition"],
        wanted.start,
        wanted.stop,
        start_time=wanted.start_time,
        stop_time=wanted.stop_time,
        limit=wanted.limit + 1,
    )
    shown = page_of(found, wanted.limit, lambda message: message.offset + 1)
    return Page([envelope(each) for each in shown.items], shown.next)


async def found_message(call: Call) -> StoredMessage:
    """Return the message of the path, if the caller may see its queue."""
    return await seen_message(call, call.path["message_id"])


async def seen_message(call: Call, message_id: UUID | str) -> StoredMessage:
    """Return a message, if the caller may see its queue."""
    message = await call.gateway.client.get(message_id)
    await call.show(message.queue, f"there is no message {message.id}, or it was dropped")
    return message


async def get(call: Call) -> Reply:
    """Get one message by its id; with `Accept: application/octet-stream`, its bytes."""
    message = await found_message(call)
    if BYTES in call.request.headers.get("accept", ""):
        if message.value is None:
            raise NotFound("the message has a null value, and so no bytes")
        return Reply(message.value, headers={"Content-Disposition": "attachment"}, media=BYTES)
    return Reply(envelope(message))


async def state(call: Call) -> list[MessageState]:
    """Say what a message is to each group."""
    if not (await call.sight()).whole:
        await found_message(call)
    return await call.gateway.client.state(call.path["message_id"])


async def result(call: Call) -> Reply:
    """Get what the handler of a message returned; 204 while there is nothing yet."""
    message_id, group = parse_id(call.path["message_id"]), call.query.group
    if not (await call.sight()).whole:
        await found_message(call)
    known = await call.gateway.client.run(GetResult(message_id, group))
    if not known:
        raise NotFound(f"there is no message {message_id}, or no group has it")
    try:
        value = await call.gateway.client.result(message_id, timeout=call.query.wait, group=group)
    except TimedOut:
        return Reply(status=204)
    return Reply(Result(value_base64=value) if isinstance(value, bytes) else Result(value))


async def cancel(call: Call) -> CancelledMessages:
    """Cancel messages that wait or are in flight."""
    sight = await call.sight()
    if not sight.whole:
        for each in call.body.ids:
            await seen_message(call, each)
    found = await call.gateway.client.cancel(*call.body.ids, group=call.body.group)
    return CancelledMessages([each for each in found if isinstance(each, UUID)])


async def list_scheduled(call: Call) -> Page[ScheduledPush]:
    """List what is scheduled, the one that is due first at the front."""
    wanted = call.query
    after_due, _, after_id = (wanted.after or "").partition("|")
    try:
        due_at = datetime.fromisoformat(after_due) if after_due else None
        number = int(after_id or 0)
    except ValueError:
        raise InvalidInput("after must be the `next` of the page before") from None
    found = await call.gateway.client.run(
        ListScheduled(wanted.queue, wanted.partition, due_at, number, wanted.limit + 1)
    )
    items = [_scheduled(each) for each in found[: wanted.limit]]
    last = items[-1] if len(found) > wanted.limit else None
    # A page may have fewer, and yet another one follow.
    return Page(
        (await call.sight()).rows(items), None if last is None else f"{last.due_at.isoformat()}|{last.scheduled_id}"
    )


def _scheduled(each: ScheduledInfo) -> ScheduledPush:
    return ScheduledPush(
        each.scheduled_id,
        each.queue,
        each.partition,
        each.due_at,
        each.created_at,
        each.count,
        each.size,
        None if each.preview is None else each.preview.decode(errors="replace"),
    )


async def cancel_scheduled(call: Call) -> CancelledScheduled:
    """Cancel a scheduled push, if it is not too late."""
    text = call.path["scheduled_id"]
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise InvalidInput(f"{text!r:.100} is not the id of a scheduled push")
    return CancelledScheduled(bool(await call.gateway.client.cancel(int(text))))
