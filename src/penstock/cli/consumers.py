"""Consumers and circuit breakers: list them, and reset them."""

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.options import Command, epilog, json_option

_CONSUMERS = (
    *("consumer_id", "status", "last_seen", "success_count", "error_count", "consecutive_errors"),
    *("avg_processing_time", "p99_processing_time", "last_error"),
)
_SHORT = ("consumer_id", "status", "success_count", "error_count", "avg_processing_time")
_BREAKERS = ("queue", "group", "state", "since", "open_until", "opened", "consecutive_errors", "reason", "last_error")


@click.group(
    invoke_without_command=True,
    epilog=epilog(("penstock consumers", "penstock consumers --json", "penstock consumers reset worker-1:4711:c0ffee")),
)
@json_option
@click.pass_context
def consumers(context: click.Context, as_json: bool) -> None:
    """List consumers and how they fare.

    Prints id, status (healthy, degraded, open, half_open, or gone after 90 seconds without a sign of life), when it was
    last seen, how many messages it handled, how many failed and how many of these came last in a row, the average and
    the 99th percentile of the time for one message in microseconds, and the last error. On a terminal narrower than 120
    columns some of these are left out.
    """
    import msgspec

    if context.invoked_subcommand is not None:
        return
    with context.ensure_object(Given).client() as client:
        columns = _SHORT if output.is_narrow() and not as_json else _CONSUMERS
        output.show(map(msgspec.structs.asdict, client.consumers()), columns, as_json)


@consumers.command("reset", cls=Command, examples=("penstock consumers reset worker-1:4711:c0ffee",))
@click.argument("consumer")
@click.pass_obj
def reset_consumer(given: Given, consumer: str) -> None:
    """Reset a consumer: it counts from 0, and closes its own circuit breaker.

    A running one does so with its next report, within half a minute. One that is gone is deleted.
    """
    with given.client() as client:
        deleted = client.reset_consumer(consumer)
    click.echo(f"{'deleted' if deleted else 'reset'} consumer {consumer}")


@click.group(
    invoke_without_command=True,
    epilog=epilog(("penstock breakers", "penstock breakers --json", "penstock breakers reset orders billing")),
)
@json_option
@click.pass_context
def breakers(context: click.Context, as_json: bool) -> None:
    """List the circuit breakers of groups whose handlers have failed.

    Prints queue, group, state (closed, open or half_open), since when, until when the group is held, how often the
    breaker opened without closing in between, errors in a row, why it opened, and the last error.
    """
    import msgspec

    if context.invoked_subcommand is not None:
        return
    with context.ensure_object(Given).client() as client:
        output.show(map(msgspec.structs.asdict, client.breakers()), _BREAKERS, as_json)


@breakers.command("reset", cls=Command, examples=("penstock breakers reset orders billing",))
@click.argument("queue")
@click.argument("group")
@click.pass_obj
def reset_breaker(given: Given, queue: str, group: str) -> None:
    """Close the circuit breaker of a group.

    Its messages are handed out again at once. If handlers still fail, it opens again.
    """
    with given.client() as client:
        was_open = client.reset_breaker(queue, group)
    click.echo(f"closed the breaker of group {group} of queue {queue}" if was_open else "the breaker was not open")
