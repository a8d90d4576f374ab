"""Consume messages: `pop` prints them or runs a command for each, and settles them."""

import os
import select
import shlex
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.interrupts import Interrupts
from penstock.cli.options import Command, group_options, message_options
from penstock.errors import LeaseLost, NotFound, SetupError

if TYPE_CHECKING:
    from penstock.client.client import Client
    from penstock.consuming.batch import Batch

_EMPTY = 3
# Seconds that one pop may wait: an interruption waits for its end.
_POP_WAIT = 0.5


@click.command(
    cls=Command,
    examples=(
        "penstock pop orders",
        "penstock pop orders --group billing --max-messages 10 --json | jq .value",
        "penstock pop orders --group billing --exec 'echo \"$PENSTOCK_OFFSET\"; cat'",
        "penstock pop orders --group billing --follow --exec ./charge.sh",
        "penstock pop orders --group audit --no-ack --lease 60 --json",
        "penstock pop orders --create --group mailer --mode shared --subscription new --wait 30 --fail-empty",
    ),
)
@click.argument("queue")
@click.option(
    "--group",
    default="default",
    show_default=True,
    help="Consume for this group; it is created if needed, unless create_on_first_use is off.",
)
@click.option("--create", is_flag=True, help="Create the queue if needed, unless create_on_first_use is off.")
@click.option("--partition", help="Select this partition only.")
@click.option(
    "--max-messages",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Limit the number of messages per batch; a batch is of one partition.",
)
@click.option(
    "--lease",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Hold the messages for this long; default: the group's lease_time.",
)
@click.option(
    "--wait", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Wait this long for messages."
)
@group_options(
    mode="Mode, if this command creates the group.",
    begins="Starting point, if this command creates the group.",
)
@click.option(
    "--no-ack", "settle", flag_value="hold", help="Do not acknowledge: hold the messages until the lease expires."
)
@click.option("--auto-ack", "settle", flag_value="auto", help="Acknowledge before printing: at-most-once delivery.")
@click.option(
    "--exec",
    "command",
    metavar="COMMAND",
    help="Run this shell command for each message: exit code 0 acknowledges it, any other fails it.",
)
@click.option("--follow", is_flag=True, help="Continue until Ctrl-C.")
@click.option(
    "--idle-timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Exit after this long without messages; needs --follow.",
)
@click.option("--fail-empty", is_flag=True, help="Exit with 3 if there were no messages.")
@message_options
@click.pass_context
def pop(
    context: click.Context,
    queue: str,
    group: str,
    create: bool,
    partition: str | None,
    max_messages: int,
    lease: float | None,
    wait: float,
    mode: str,
    begins: str | datetime,
    settle: str | None,
    command: str | None,
    follow: bool,
    idle_timeout: float | None,
    fail_empty: bool,
    form: str | None,
) -> None:
    """Pop the next messages of a queue for a group, and print them.

    Messages are acknowledged after they are printed; if printing fails they are released. With --no-ack nothing is
    acknowledged: each line of JSON has lease_id, lease_until and attempt, and the messages are delivered again when the
    lease expires. Prints nothing and exits with 0 if there are no messages. Exits with 3 if the queue does not exist,
    unless --create creates it. If the database setting create_on_first_use is off, no queue or group is created.

    With --exec, the command gets the value on standard input, and in its environment PENSTOCK_QUEUE, PENSTOCK_GROUP,
    PENSTOCK_PARTITION, PENSTOCK_OFFSET, PENSTOCK_ID, PENSTOCK_KEY (if the message has one), PENSTOCK_ATTEMPT, and
    PENSTOCK_NULL=1 for a null value. Each message is acknowledged after its command. One that fails is retried, with
    the reason `exit N`, and finally becomes a dead letter. Leases are renewed while the command runs. With --follow
    this is a worker: run as many as you need.

    Ctrl-C and SIGTERM stop the command, release unfinished messages, and exit with 130.
    """
    _check_options(settle, command, follow, wait, idle_timeout, form)
    options = {
        "partition": partition,
        "max_messages": max_messages,
        "lease": lease,
        "auto_ack": settle == "auto",
        "mode": mode,
        "subscription": begins,
    }
    popped = 0
    with context.ensure_object(Given).client() as client, Interrupts() as interrupts:
        if not create:
            _require_queue(client, queue)
        if follow or command is not None:
            longest = idle_timeout if follow else wait
            batches = _batches(client, queue, group, longest, interrupts, options)
        else:
            batches = _one_batch(client, queue, group, wait, interrupts, options)
        # Closed before the client, so that unsettled messages are released.
        with closing(batches):
            for batch in batches:
                popped += len(batch)
                try:
                    if command is not None:
                        _run_command(batch, command, interrupts)
                    else:
                        _print(batch, form, settle, interrupts)
                except LeaseLost as error:
                    if not follow:
                        raise
                    output.remark(f"penstock: {error}")
                if not follow:
                    break
    if fail_empty and not popped:
        context.exit(_EMPTY)


def _require_queue(client: "Client", queue: str) -> None:
    """Refuse a queue that does not exist: its name may be mistyped."""
    from penstock.broker.operations.log import ListPartitions

    try:
        client._transport.run(ListPartitions(queue, limit=1))
    except NotFound:
        how = _how_to_create(client, queue)
        raise NotFound(f"queue {queue!r} does not exist; `penstock queues` lists all queues, and {how}") from None


def _how_to_create(client: "Client", queue: str) -> str:
    create = f"`penstock create {shlex.quote(queue)}`"
    try:
        on_first_use = client.configure_database()["create_on_first_use"]
    except SetupError:
        # Only an admin may ask.
        return f"--create creates it, or {create} if create_on_first_use is off"
    return "--create creates it" if on_first_use else f"{create} creates it (create_on_first_use is off)"


def _batches(
    client: "Client", queue: str, group: str, longest: float | None, interrupts: Interrupts, options: dict[str, Any]
) -> "Generator[Batch, None, None]":
    """Yield batches whose lease is renewed until they are settled or released."""
    yield from client.consume(queue, group, stop=interrupts.seen, idle_timeout=longest, **options)


def _one_batch(
    client: "Client", queue: str, group: str, wait: float, interrupts: Interrupts, options: dict[str, Any]
) -> "Generator[Batch, None, None]":
    """Yield one batch, if there is one in time."""
    deadline = time.monotonic() + wait
    while not interrupts.seen.is_set():
        left = max(0.0, deadline - time.monotonic())
        batch = client.pop(queue, group, wait=min(left, _POP_WAIT), **options)
        if batch is not None:
            yield batch
            return
        if not left:
            return


def _print(batch: "Batch", form: str | None, settle: str | None, interrupts: Interrupts) -> None:
    """Print a batch, then acknowledge it."""
    try:
        for line in _lines(batch, form, settle == "hold"):
            _write(line, interrupts)
    except BaseException:
        if not batch.settled:
            batch.release()
        raise
    if settle == "hold":
        held = batch.claims[0]
        if form != "json":
            output.remark(f"lease {held.lease_id} until {held.lease_until:%Y-%m-%d %H:%M:%S%z}")
    elif not batch.settled:
        batch.ack()


def _lines(batch: "Batch", form: str | None, hold: bool) -> Iterator[bytes]:
    if form != "json":
        yield from map(output.message_format(form), batch.messages)
        return
    from penstock.operations import envelopes

    for claim in batch.claims:
        for message in claim.messages:
            yield envelopes.write(message, claim if hold else None)


def _write(line: bytes, interrupts: Interrupts) -> None:
    """Write without blocking; only the wait for the reader can be interrupted, so it is known what was written."""
    descriptor = sys.stdout.fileno()
    left = memoryview(line)
    while left:
        with interrupts.allowed():
            select.select([], [descriptor], [])
        left = left[os.write(descriptor, left[: select.PIPE_BUF]) :]


def _run_command(batch: "Batch", command: str, interrupts: Interrupts) -> None:
    """Run the command for each message of a batch, and settle each."""
    from penstock.cli.shell import run

    for message in batch.messages:
        with interrupts.allowed():
            code = run(command, batch.group, message)
        if code == 0:
            batch.ack(up_to=message.offset + 1)
            continue
        [outcome] = batch.nack(message.offset, reason=f"exit {code}")
        then = "it will be retried" if outcome == "retry" else "it is now a dead letter"
        output.remark(f"penstock: message {message.offset} of {message.partition}: exit {code}; {then}")
        return


def _check_options(
    settle: str | None,
    command: str | None,
    follow: bool,
    wait: float,
    idle_timeout: float | None,
    form: str | None,
) -> None:
    if command is not None and settle is not None:
        raise click.UsageError("--exec acknowledges by exit code: it cannot be combined with --no-ack or --auto-ack")
    if command is not None and form is not None:
        raise click.UsageError("--exec prints what the command prints: it cannot be combined with --json or --raw")
    if follow and settle == "hold":
        raise click.UsageError("--follow cannot be combined with --no-ack: leases would pile up")
    if follow and wait:
        raise click.UsageError("--follow cannot be combined with --wait; use --idle-timeout")
    if idle_timeout is not None and not follow:
        raise click.UsageError("--idle-timeout needs --follow; without it, use --wait")
