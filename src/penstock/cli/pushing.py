"""Messages in: `push`, from arguments or line by line from a pipe."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.options import Command, Given, json_option, named
from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.engine.messages import Message, PushResult

# More partitions than this are told by their number.
_FEW = 20


@click.command(
    cls=Command,
    examples=(
        "penstock push orders hello",
        "penstock push orders '{\"id\": 1}' --key customer-7 --header trace=abc",
        "penstock push orders --format json < events.ndjson",
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
    partition: str | None,
    key: str | None,
    headers: dict[str, str],
    batch: int,
    as_json: bool,
) -> None:
    """Push MESSAGES to QUEUE, or every line of standard input.

    Queue and partition come into being on first use. Without MESSAGES, or with `-`, each line of standard input is a
    message; lines that wait longer than a second are pushed before their batch is full. A batch is pushed as a whole or
    not at all, and an error says how many messages of earlier batches are in.

    An envelope is an object with `value` (any JSON), `value_text` or `value_base64`, and maybe `key`, `headers` and
    `partition`; options come before what it says itself. Blank lines count as messages in text only.

    Prints for each partition its name, the offset of the first message, how many there are, and the id if it is one.
    """
    make = _maker(form, partition, key, headers)
    tally = Tally(queue)
    line = 0
    try:
        batches = _batches(messages, batch)
        with given.client() as client, output.progress("messages") as advance:
            for lines in batches:
                made = [message for number, text in enumerate(lines, line + 1) for message in make(number, text)]
                line += len(lines)
                if made:
                    tally.add(client.push_many(queue, made))
                    advance(len(made))
    except (Exception, KeyboardInterrupt) as error:
        if tally.count:
            error.add_note(f"{output.counted(tally.count, 'message')} of earlier batches pushed")
        raise
    tally.show(as_json)


class Tally:
    """What was pushed so far, per partition."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._partitions: dict[str, dict[str, Any]] = {}
        self.count = 0

    def add(self, results: "Sequence[PushResult]") -> None:
        """Take note of a batch."""
        for result in results:
            known = self._partitions.get(result.partition)
            if known is None:
                self._partitions[result.partition] = {
                    "queue": self._queue,
                    "partition": result.partition,
                    "first_offset": result.first_offset,
                    "count": result.count,
                    "id": str(result.ids[0]) if result.count == 1 else None,
                }
            else:
                known["count"] += result.count
                known["id"] = None
            self.count += result.count

    def show(self, as_json: bool) -> None:
        """Print where the messages went."""
        for_person = output.is_terminal() and not as_json
        if for_person or not self.count:
            messages, places = output.counted(self.count, "message"), output.counted(len(self._partitions), "partition")
            output.remark(f"pushed {messages} to {places} of {self._queue}")
        if not for_person or len(self._partitions) <= _FEW:
            output.show(self._partitions.values(), ("partition", "first_offset", "count", "id"), as_json)


def _maker(
    form: str, partition: str | None, key: str | None, headers: dict[str, str]
) -> "Callable[[int, bytes], list[Message]]":
    """Return what makes messages of a line: one, or none of a blank line that means nothing."""
    from penstock.cli import envelopes
    from penstock.engine.messages import Message

    readers: dict[str, Callable[[bytes], Message]] = {
        "text": Message,
        "json": envelopes.require_json,
        "envelope": envelopes.read,
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
                key or message.key,
                {**(message.headers or {}), **headers} or None,
                partition or message.partition,
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
