"""Messages in: `push`, from arguments or line by line from a pipe."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.options import Command, Given, duration, json_option, later, named
from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.broker.messages import Message, PushResult

# More partitions than this are told by their number.
_FEW = 20


@click.command(
    cls=Command,
    examples=(
        "penstock push orders hello",
        "penstock push orders '{\"id\": 1}' --key customer-7 --header trace=abc",
        "penstock push orders --format json < events.ndjson",
        "penstock push reminders 'pay your bill' --delay 3d",
        "penstock push orders '{\"id\": 1}' --dedupe-id order-1",
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
    help="What a message is: its bytes as they are, JSON that is checked, or an object as `read --json` prints it.",
)
@click.option("--null", "as_null", is_flag=True, help="Push one message whose value is null, as Kafka's tombstones.")
@click.option("--partition", help="Partition to push to; else the key picks one.")
@click.option("--key", help="Key of the messages: those of one key stay in order.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    callback=named,
    help="Header of the messages; may be repeated.",
)
@click.option(
    "--dedupe-id", metavar="ID", help="Store the message once within the queue's dedupe_window; for one message."
)
@click.option(
    "--delay", metavar="TIME", callback=duration, help="Deliver after so many seconds, or 10m, 2h, 3d; see `scheduled`."
)
@click.option("--at", metavar="TIME", callback=later, help="Deliver at this time, in ISO 8601.")
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    metavar="N",
    help="Messages per transaction, at most.",
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
    delay: float | None,
    at: datetime | None,
    batch: int,
    as_json: bool,
) -> None:
    """Push MESSAGES to QUEUE, or every line of standard input.

    Queue and partition come into being on first use, unless `penstock database` says that queues are not.
    Without MESSAGES, or with `-`, each line of standard input is a
    message; lines that wait longer than a second are pushed before their batch is full. A batch is pushed as a whole or
    not at all, and an error says how many messages of earlier batches are in.

    An envelope is an object with `value` (any JSON; null is a null value), `value_text` or `value_base64`, and maybe
    `key`, `headers`, `partition` and `dedupe_id`; options come before what it says itself. Blank lines count as
    messages in text only.

    Prints for each partition its name, the offset of the first message, how many were stored, and the id if it is one.
    Of messages that come later it prints when instead of the offset, and the id by which `penstock scheduled` cancels
    them. Duplicates are not stored, and counted on stderr; the JSON has their number.
    """
    if as_null and (messages or form != "text"):
        raise click.UsageError("--null is the message: it goes with no other, and with no --format")
    if dedupe_id is not None and not as_null and (len(messages) != 1 or messages == ("-",)):
        raise click.UsageError("--dedupe-id is for one message; for many, push envelopes that have a dedupe_id each")
    if delay is not None and at is not None:
        raise click.UsageError("--delay and --at are two ways to say when: give one")
    from penstock.broker.messages import Message

    make = _maker("null" if as_null else form, Message(b"", key, headers, partition, dedupe_id))
    tally = Tally(queue)
    line = 0
    try:
        batches = iter([[b"null"]]) if as_null else _batches(messages, batch)
        with given.client() as client, output.progress("messages") as advance:
            for lines in batches:
                made = [message for number, text in enumerate(lines, line + 1) for message in make(number, text)]
                line += len(lines)
                if made:
                    tally.add(client.push_many(queue, made, delay=delay, at=at))
                    advance(len(made))
    except (Exception, KeyboardInterrupt) as error:
        if tally.count:
            error.add_note(f"{output.counted(tally.count, 'message')} of earlier batches pushed")
        raise
    tally.show(as_json)


class Tally:
    """What was pushed so far, per partition; what comes later is told push by push."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._partitions: dict[str, dict[str, Any]] = {}
        self._later: list[dict[str, Any]] = []
        self._duplicates = 0
        self.count = 0

    def add(self, results: "Sequence[PushResult]") -> None:
        """Take note of a batch."""
        for result in results:
            self.count += result.count
            self._duplicates += len(result.duplicates)
            known = self._partitions.get(result.partition)
            if result.scheduled is not None:
                self._later.append(_scheduled(result))
            elif known is None:
                self._partitions[result.partition] = _stored(result)
            else:
                known["count"] += result.count
                known["duplicates"] += len(result.duplicates)
                known["id"] = None

    def show(self, as_json: bool) -> None:
        """Print where the messages went."""
        for_person = output.is_terminal() and not as_json
        if for_person or not self.count:
            messages, places = output.counted(self.count, "message"), output.counted(len(self._partitions), "partition")
            if self._later:
                output.remark(f"scheduled {messages} of {self._queue}")
            else:
                output.remark(f"pushed {messages} to {places} of {self._queue}")
        if self._duplicates:
            output.remark(f"{output.counted(self._duplicates, 'duplicate')} not stored again")
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
    }


def _maker(form: str, given: "Message") -> "Callable[[int, bytes], list[Message]]":
    """Return what makes messages of a line: one, or none of a blank line that means nothing."""
    from penstock.broker.messages import Message
    from penstock.cli import envelopes

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
            raise InvalidInput(f"line {number} cannot be pushed: {error}; nothing of its batch was") from None
        return [
            Message(
                message.value,
                given.key or message.key,
                {**(message.headers or {}), **(given.headers or {})} or None,
                given.partition or message.partition,
                given.dedupe_id or message.dedupe_id,
            )
        ]

    return make


def _batches(messages: tuple[str, ...], most: int) -> Iterator[list[bytes]]:
    if messages and messages != ("-",):
        given = [os.fsencode(message) for message in messages]
        return (given[first : first + most] for first in range(0, len(given), most))
    if not messages and (sys.stdin is None or sys.stdin.isatty()):
        raise click.UsageError("give a message, or `-` to type messages line by line")
    from penstock.cli.lines import batches

    return batches(sys.stdin.fileno(), most)
