"""Push messages, from arguments or line by line from standard input."""

import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.options import Command, duration, json_option, later, named
from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.broker.messages import Message, PushResult

# On a terminal, more partitions than this are only counted.
_FEW = 20
# A line waits at most this long for its batch to fill.
_LINE_WAIT = 1.0
_CHUNK = 1 << 20
# A batch is one transaction, and is held in memory.
_BATCH_BYTES = 8 << 20


@click.command(
    cls=Command,
    examples=(
        "penstock push orders hello",
        "penstock push orders '{\"id\": 1}' --key customer-7 --header trace=abc",
        "penstock push orders --format json < events.ndjson",
        "penstock push reminders 'pay your bill' --delay 3d",
        "penstock push orders '{\"id\": 1}' --dedupe-id order-1",
        "penstock push reports '{}' --unique-key daily --unique-until done",
        "penstock push orders --null --key customer-7",
        "penstock read orders 0 --json | penstock push copy --format envelope",
    ),
)
@click.argument("queue")
@click.argument("messages", nargs=-1)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "envelope"]),
    default="text",
    show_default=True,
    help="Take a message as bytes, as JSON to be checked, or as an envelope as `read --json` prints it.",
)
@click.option("--null", "as_null", is_flag=True, help="Push one message with a null value, like a Kafka tombstone.")
@click.option("--partition", help="Push to this partition; default: chosen by the key.")
@click.option("--key", help="Set the key; messages with one key stay in order.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    callback=named,
    help="Add a header; may be repeated.",
)
@click.option(
    "--dedupe-id",
    metavar="ID",
    help="Store the message once within the queue's dedupe_window; needs exactly one message.",
)
@click.option("--unique-key", metavar="KEY", help="Store the message only if none with this key counts; see below.")
@click.option(
    "--unique-for", metavar="TIME", callback=duration, help="Let the key count for this many seconds, or 10m, 2h, 3d."
)
@click.option(
    "--unique-until",
    type=click.Choice(["taken", "done"]),
    help="Let the key count until its message is taken, or done.",
)
@click.option("--replace", is_flag=True, help="Replace an earlier message with the same unique key that still waits.")
@click.option(
    "--delay",
    metavar="TIME",
    callback=duration,
    help="Deliver after this many seconds, or 10m, 2h, 3d; see `scheduled`.",
)
@click.option("--at", metavar="TIME", callback=later, help="Deliver at this time (ISO 8601).")
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    metavar="N",
    help="Limit the number of messages per transaction.",
)
@json_option
@click.pass_obj
def push(
    given: Given,
    queue: str,
    messages: tuple[str, ...],
    form: str,
    as_null: bool,
    partition: str | None,
    key: str | None,
    headers: dict[str, str],
    dedupe_id: str | None,
    unique_key: str | None,
    unique_for: float | None,
    unique_until: str | None,
    replace: bool,
    delay: float | None,
    at: datetime | None,
    batch: int,
    as_json: bool,
) -> None:
    """Push messages, or each line of standard input, to a queue.

    Creates queue and partition if needed; if the database setting create_on_first_use is off, the queue must exist.
    Without MESSAGES, or with `-`, each line of standard input is a message; a line that has waited for a second is
    pushed even if its batch is not full. A batch is one transaction. On an error, the number of messages pushed in
    earlier batches is printed.

    An envelope is an object with `value` (any JSON; null is a null value), `value_text` or `value_base64`, and
    optionally `key`, `headers`, `partition`, `dedupe_id` and `unique_key`; options of the command override it. Blank
    lines are messages only in the text format.

    A message with a unique key is not stored while the queue's last one with that key counts: for the time of
    --unique-for, and until what --unique-until says.

    Prints for each partition its name, the first offset, the number of messages, and the id of a single message. For
    scheduled messages it prints the due time instead of the offset, and the ids that `penstock scheduled --cancel`
    takes. Duplicates are not stored; their number is printed on stderr and is in the JSON, and so is the number of
    messages that were replaced.
    """
    if as_null and (messages or form != "text"):
        raise click.UsageError("--null cannot be combined with messages or --format")
    if dedupe_id is not None and not as_null and (len(messages) != 1 or messages == ("-",)):
        raise click.UsageError(
            "--dedupe-id needs exactly one message; for several, push envelopes with a dedupe_id each"
        )
    if unique_key is not None and not as_null and (len(messages) != 1 or messages == ("-",)):
        raise click.UsageError(
            "--unique-key needs exactly one message; for several, push envelopes with a unique_key each"
        )
    if (unique_for is not None or unique_until or replace) and unique_key is None and form != "envelope":
        raise click.UsageError("--unique-for, --unique-until and --replace need --unique-key")
    if delay is not None and at is not None:
        raise click.UsageError("give --delay or --at, not both")
    from penstock.broker.messages import Message

    make = _maker("null" if as_null else form, Message(b"", key, headers, partition, dedupe_id, unique_key))
    unique: dict[str, Any] = {"unique_for": unique_for, "unique_until": unique_until, "replace": replace}
    tally = Tally(queue)
    line = 0
    try:
        batches = iter([[b"null"]]) if as_null else _batches(messages, batch)
        with given.client() as client, output.progress("messages") as advance:
            for lines in batches:
                made = [message for number, text in enumerate(lines, line + 1) for message in make(number, text)]
                line += len(lines)
                if made:
                    options = unique if any(message.unique_key is not None for message in made) else {}
                    tally.add(client.push_many(queue, made, delay=delay, at=at, **options))
                    advance(len(made))
    except (Exception, KeyboardInterrupt) as error:
        if tally.count:
            error.add_note(f"{output.counted(tally.count, 'message')} of earlier batches pushed")
        raise
    tally.show(as_json)


class Tally:
    """What was pushed so far, per partition; scheduled messages are listed push by push."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._partitions: dict[str, dict[str, Any]] = {}
        self._later: list[dict[str, Any]] = []
        self._duplicates = 0
        self._replaced = 0
        self.count = 0

    def add(self, results: "Sequence[PushResult]") -> None:
        """Add the results of a batch."""
        for result in results:
            self.count += result.count
            self._duplicates += len(result.duplicates)
            self._replaced += len(result.replaced)
            known = self._partitions.get(result.partition)
            if result.scheduled is not None:
                self._later.append(_scheduled(result))
            elif known is None:
                self._partitions[result.partition] = _stored(result)
            else:
                known["count"] += result.count
                known["duplicates"] += len(result.duplicates)
                known["replaced"] += len(result.replaced)
                known["id"] = None

    def show(self, as_json: bool) -> None:
        """Print what was pushed."""
        for_person = output.is_terminal() and not as_json
        if for_person or not self.count:
            messages, places = output.counted(self.count, "message"), output.counted(len(self._partitions), "partition")
            if self._later:
                output.remark(f"scheduled {messages} of {self._queue}")
            else:
                output.remark(f"pushed {messages} to {places} of {self._queue}")
        if self._duplicates:
            output.remark(f"{output.counted(self._duplicates, 'duplicate')} not stored again")
        if self._replaced:
            output.remark(f"{output.counted(self._replaced, 'earlier message')} replaced")
        records = [*self._partitions.values(), *self._later]
        if not for_person or len(records) <= _FEW:
            start, identity = ("due_at", "scheduled_ids") if self._later else ("first_offset", "id")
            output.show(records, ("partition", start, "count", identity), as_json)


def _stored(result: "PushResult") -> dict[str, Any]:
    return {
        "queue": result.queue,
        "partition": result.partition,
        "first_offset": result.first_offset,
        "count": result.count,
        "id": str(result.ids[0]) if result.count == 1 and not result.duplicates else None,
        "duplicates": len(result.duplicates),
        "replaced": len(result.replaced),
    }


def _scheduled(result: "PushResult") -> dict[str, Any]:
    scheduled = result.scheduled
    return {
        "queue": result.queue,
        "partition": result.partition,
        "due_at": scheduled and scheduled.due_at,
        "count": result.count,
        "scheduled_ids": list(scheduled.ids) if scheduled else [],
        "duplicates": len(result.duplicates),
        "replaced": len(result.replaced),
    }


def _maker(form: str, given: "Message") -> "Callable[[int, bytes], list[Message]]":
    """Return the function that makes a list of one message from a line, or an empty list from a blank line."""
    from penstock.broker.messages import Message
    from penstock.operations import envelopes

    readers: dict[str, Callable[[bytes], Message]] = {
        "text": Message,
        "json": envelopes.require_json,
        "envelope": envelopes.read,
        "null": lambda _: Message(None),
    }
    read = readers[form]

    def make(number: int, line: bytes) -> list[Message]:
        if form != "text" and not line.strip():
            return []
        try:
            message = read(line)
        except InvalidInput as error:
            raise InvalidInput(f"line {number}: {error}; nothing of its batch was pushed") from None
        return [
            Message(
                message.value,
                given.key or message.key,
                {**(message.headers or {}), **(given.headers or {})} or None,
                given.partition or message.partition,
                given.dedupe_id or message.dedupe_id,
                given.unique_key or message.unique_key,
            )
        ]

    return make


def _batches(messages: tuple[str, ...], most: int) -> Iterator[list[bytes]]:
    if messages and messages != ("-",):
        given = [os.fsencode(message) for message in messages]
        return (given[first : first + most] for first in range(0, len(given), most))
    if not messages and (sys.stdin is None or sys.stdin.isatty()):
        raise click.UsageError("give a message, or `-` to type messages line by line")
    return _line_batches(sys.stdin.fileno(), most)


def _line_batches(descriptor: int, most: int) -> Iterator[list[bytes]]:
    """Yield lists of lines without line feeds: full ones, or as soon as the first line has waited long enough."""
    lines: list[bytes] = []
    size = 0
    deadline = 0.0
    for line in _lines(descriptor):
        if line is not None:
            if not lines:
                deadline = time.monotonic() + _LINE_WAIT
            lines.append(line)
            size += len(line)
        if len(lines) >= most or size >= _BATCH_BYTES or (lines and line is None and time.monotonic() >= deadline):
            yield lines
            lines, size = [], 0
    if lines:
        yield lines


def _lines(descriptor: int) -> Iterator[bytes | None]:
    """Yield lines as they arrive, and None while none does."""
    begun: list[bytes] = []
    while True:
        if not select.select([descriptor], [], [], _LINE_WAIT / 4)[0]:
            yield None
            continue
        chunk = os.read(descriptor, _CHUNK)
        first, *more = chunk.split(b"\n")
        begun.append(first)
        for part in more:
            yield b"".join(begun)
            begun = [part]
        if not chunk:
            break
        yield None
    if any(begun):
        yield b"".join(begun)
