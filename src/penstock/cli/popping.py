"""Messages for a group: `pop`, which prints them or hands them to a command, and settles them."""

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
from penstock.cli.interrupts import Interrupts
from penstock.cli.options import Command, Given, subscription
from penstock.cli.reading import json_option, line_of, raw_option
from penstock.errors import LeaseLost, NotFound, SetupError

if TYPE_CHECKING:
    from penstock.client.client import Client
    from penstock.consuming.batch import Batch

_EMPTY = 3
# How long one look may take: an interruption waits for its end.
_LOOK = 0.5


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
    help="Group to consume for; made on first use, as far as the database allows it.",
)
@click.option("--create", is_flag=True, help="Make the queue, too, if there is none and the database allows it.")
@click.option("--partition", help="Only this partition.")
@click.option(
    "--max-messages",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Messages at a time, at most; they are of one partition.",
)
@click.option(
    "--lease",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="How long the messages are this consumer's; else the group's lease_time.",
)
@click.option(
    "--wait", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="How long to wait for messages."
)
@click.option(
    "--mode",
    type=click.Choice(["ordered", "shared"]),
    default="ordered",
    show_default=True,
    help="What a group is that this makes; one that is there stays as it is.",
)
@click.option(
    "--subscription",
    "begins",
    default="all",
    show_default=True,
    metavar="all|new|TIME",
    callback=subscription,
    help="Where a group begins that this makes.",
)
@click.option("--ack", "settle", flag_value="ack", help="Acknowledge what was printed; this is the default.")
@click.option("--no-ack", "settle", flag_value="hold", help="Print messages and lease; hold them until the lease ends.")
@click.option("--auto-ack", "settle", flag_value="auto", help="Acknowledge before printing: at most once.")
@click.option(
    "--exec",
    "command",
    metavar="COMMAND",
    help="Run a shell command for each message: exit code 0 acknowledges it, any other fails it.",
)
@click.option("--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option(
    "--idle-timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="With --follow: end when nothing came for so long.",
)
@click.option("--fail-empty", is_flag=True, help="Exit with 3 when there was nothing.")
@json_option
@raw_option
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
    """Take the next messages of QUEUE for a group, and print them.

    They are acknowledged when they are written out; what cannot be written is given back. With --no-ack nothing is
    acknowledged: each line of JSON has lease_id, lease_until and attempt, and the messages come again when the lease
    has ended. Prints nothing, and exits with 0, when there is nothing. A queue that does not exist is not made without
    --create: exits with 3. Nor is it with --create, or a group, after `penstock database --create-on-first-use off`.

    --exec gives the command the value on standard input, and in the environment PENSTOCK_QUEUE, PENSTOCK_GROUP,
    PENSTOCK_PARTITION, PENSTOCK_OFFSET, PENSTOCK_ID, PENSTOCK_KEY (if there is one), PENSTOCK_ATTEMPT, and
    PENSTOCK_NULL=1 where the value is null and standard input empty. Each message is acknowledged when its command is
    done. One that fails is retried, with the reason `exit N`, and finally becomes a dead letter. The lease is
    renewed meanwhile. With --follow this is a worker: run as many as you like.

    Ctrl-C and SIGTERM give back what is not done, end the command, and exit with 130.
    """
    _refuse_nonsense(settle, command, follow, wait, idle_timeout, form)
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
            patience = idle_timeout if follow else wait
            batches = _kept(client, queue, group, patience, interrupts, options)
        else:
            batches = _one(client, queue, group, wait, interrupts, options)
        # Closed before the client is, so that what is not settled is given back.
        with closing(batches):
            for batch in batches:
                popped += len(batch)
                try:
                    if command is not None:
                        _hand_over(batch, command, interrupts)
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
    """Refuse a queue that does not exist: it may be a typing error."""
    from penstock.broker.operations.log import ListPartitions

    try:
        client._transport.run(ListPartitions(queue, limit=1))
    except NotFound:
        how = _how_to_create(client, queue)
        raise NotFound(f"there is no queue {queue!r}; `penstock queues` lists those there are, and {how}") from None


def _how_to_create(client: "Client", queue: str) -> str:
    create = f"`penstock create {shlex.quote(queue)}`"
    try:
        on_first_use = client.configure_database()["create_on_first_use"]
    except SetupError:
        # Only an admin may ask.
        return f"--create makes it, or {create} where the database makes none on first use"
    return "--create makes it" if on_first_use else f"{create} makes it: this database makes none on first use"


def _kept(
    client: "Client", queue: str, group: str, patience: float | None, interrupts: Interrupts, options: dict[str, Any]
) -> "Generator[Batch, None, None]":
    """Yield batches whose lease is kept alive until they are settled or given back."""
    yield from client.consume(queue, group, stop=interrupts.seen, idle_timeout=patience, **options)


def _one(
    client: "Client", queue: str, group: str, wait: float, interrupts: Interrupts, options: dict[str, Any]
) -> "Generator[Batch, None, None]":
    """Yield one batch, if one comes in time."""
    deadline = time.monotonic() + wait
    while not interrupts.seen.is_set():
        left = max(0.0, deadline - time.monotonic())
        batch = client.pop(queue, group, wait=min(left, _LOOK), **options)
        if batch is not None:
            yield batch
            return
        if not left:
            return


def _print(batch: "Batch", form: str | None, settle: str | None, interrupts: Interrupts) -> None:
    """Write a batch out, and only then acknowledge it."""
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
        yield from map(line_of(form), batch.messages)
        return
    from penstock.cli import envelopes

    for claim in batch.claims:
        for message in claim.messages:
            yield envelopes.write(message, claim if hold else None)


def _write(line: bytes, interrupts: Interrupts) -> None:
    """Write in pieces that do not block; only waiting for the reader is interrupted, so what is out is known."""
    descriptor = sys.stdout.fileno()
    left = memoryview(line)
    while left:
        with interrupts.allowed():
            select.select([], [descriptor], [])
        left = left[os.write(descriptor, left[: select.PIPE_BUF]) :]


def _hand_over(batch: "Batch", command: str, interrupts: Interrupts) -> None:
    """Run the command for each message of a batch, and settle them one by one."""
    from penstock.cli.commands import run

    for message in batch.messages:
        with interrupts.allowed():
            code = run(command, batch.group, message)
        if code == 0:
            batch.ack(up_to=message.offset + 1)
            continue
        [outcome] = batch.nack(message.offset, reason=f"exit {code}")
        then = "it will be retried" if outcome == "retry" else "it is a dead letter now"
        output.remark(f"penstock: message {message.offset} of {message.partition}: exit {code}; {then}")
        return


def _refuse_nonsense(
    settle: str | None,
    command: str | None,
    follow: bool,
    wait: float,
    idle_timeout: float | None,
    form: str | None,
) -> None:
    if command is not None and settle not in (None, "ack"):
        raise click.UsageError("--exec acknowledges by exit code: it goes with neither --no-ack nor --auto-ack")
    if command is not None and form is not None:
        raise click.UsageError("--exec prints what the command prints: it goes with neither --json nor --raw")
    if follow and settle == "hold":
        raise click.UsageError("--follow would only pile up leases with --no-ack")
    if follow and wait:
        raise click.UsageError("--follow waits anyway; --idle-timeout says for how long")
    if idle_timeout is not None and not follow:
        raise click.UsageError("--idle-timeout goes with --follow; without it, use --wait")
