"""Dead letters: list, redrive and discard them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.options import Command, confirm, group_option, json_option, yes_option
from penstock.errors import NotFound

if TYPE_CHECKING:
    from penstock.broker.infos import DeadLetterInfo
    from penstock.client.client import Client

_LETTER = ("dead_letter_id", "group", "partition", "offset", "reason", "attempts", "died_at", "last_error")
_REASON = ("group", "reason", "letters", "first_died_at", "last_died_at")

reason_option = click.option("--reason", help="Select dead letters with this reason only.")
ids_option = click.option(
    "--id", "ids", type=int, multiple=True, metavar="N", help="Select this dead letter only; may be repeated."
)
all_option = click.option("--all", "everything", is_flag=True, help="Select all dead letters of the queue.")


@click.command(
    "dead-letters",
    cls=Command,
    examples=(
        "penstock dead-letters orders",
        "penstock dead-letters orders --group billing --by-reason",
        "penstock dead-letters orders --id 17",
        "penstock dead-letters orders --reason ValueError --limit 10 --json",
    ),
)
@click.argument("queue")
@group_option
@reason_option
@click.option("--by-reason", is_flag=True, help="Count dead letters by reason.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Limit the number of dead letters.",
)
@click.option("--id", "wanted", type=int, metavar="N", help="Show all fields of this dead letter.")
@json_option
@click.pass_obj
def dead_letters(
    given: Given,
    queue: str,
    group: str | None,
    reason: str | None,
    by_reason: bool,
    limit: int,
    wanted: int | None,
    as_json: bool,
) -> None:
    """List dead letters, oldest first.

    Prints id, group, partition, offset, reason, attempts, when it became a dead letter, and the last error. With
    --by-reason: group, reason, count, and the times of the first and the last. With --id: one line per field, with the
    whole value. The JSON has the value as in `read --json`.
    """
    import msgspec

    from penstock.operations import groups

    if by_reason and (wanted is not None or reason is not None):
        raise click.UsageError("--by-reason cannot be combined with --id or --reason")
    with given.client() as client:
        if wanted is not None:
            _inspect(client, queue, group, wanted, as_json)
            return
        found: list[dict[str, Any]]
        if by_reason:
            found = [msgspec.structs.asdict(count) for count in client.dead_reasons(queue, group)]
        else:
            found = [_record(letter) for letter in groups.dead_letters(client, queue, group, reason, limit)]
        if not found:
            groups.require_group(client, queue, group)
        output.show(found, _REASON if by_reason else _LETTER, as_json)


@click.command(
    cls=Command,
    examples=(
        "penstock redrive orders --group billing",
        "penstock redrive orders --reason ValueError",
        "penstock redrive orders --id 17 --id 18",
        "penstock redrive orders --all --json",
    ),
)
@click.argument("queue")
@group_option
@reason_option
@ids_option
@all_option
@json_option
@click.pass_obj
def redrive(
    given: Given,
    queue: str,
    group: str | None,
    reason: str | None,
    ids: tuple[int, ...],
    everything: bool,
    as_json: bool,
) -> None:
    """Redrive dead letters: deliver them again to their group.

    No other group sees them, and attempts are counted from zero. Fix the cause first, or they will fail again.
    """
    _require_selection(group, reason, ids, everything)
    with given.client() as client:
        done = _each(client, client.redrive, queue, group, reason, ids)
    _report("redriven", done, as_json)


@click.command(
    cls=Command,
    examples=("penstock discard orders --id 17 --yes", "penstock discard orders --reason ValueError --yes"),
)
@click.argument("queue")
@group_option
@reason_option
@ids_option
@all_option
@yes_option
@json_option
@click.pass_obj
def discard(
    given: Given,
    queue: str,
    group: str | None,
    reason: str | None,
    ids: tuple[int, ...],
    everything: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Discard dead letters.

    Asks for confirmation. Without a terminal it needs --yes.
    """
    _require_selection(group, reason, ids, everything)
    confirm(f"discard the {_described(queue, group, reason, ids)}", yes)
    with given.client() as client:
        done = _each(client, client.discard, queue, group, reason, ids)
    _report("discarded", done, as_json)


class _Action(Protocol):
    def __call__(
        self,
        queue: str,
        group: str | None,
        *,
        reason: str | None,
        ids: list[int] | None,
        progress: Callable[[int], None],
    ) -> int: ...


def _each(
    client: "Client", act: _Action, queue: str, group: str | None, reason: str | None, ids: tuple[int, ...]
) -> int:
    """Redrive or discard dead letters with a progress bar."""
    counts = client.dead_reasons(queue, group)
    total = len(ids) or sum(count.letters for count in counts if reason in (None, count.reason))
    done = 0
    with output.progress("dead letters", total) as advance:

        def show(so_far: int) -> None:
            nonlocal done
            advance(so_far - done)
            done = so_far

        done = act(queue, group, reason=reason, ids=list(ids) or None, progress=show)
    if not done:
        from penstock.operations.groups import require_group

        require_group(client, queue, group)
        if ids:
            raise NotFound(
                f"queue {queue} has no dead letters with these ids; `penstock dead-letters {queue}` lists them"
            )
    return done


def _inspect(client: "Client", queue: str, group: str | None, wanted: int, as_json: bool) -> None:
    found = client.dead_letters(queue, group, after=wanted - 1, limit=1)
    if not found or found[0].dead_letter_id != wanted:
        raise NotFound(f"queue {queue} has no dead letter {wanted}; `penstock dead-letters {queue}` lists them")
    from penstock.operations import envelopes

    record = _record(found[0])
    if not as_json:
        for name in ("value", "value_text", "value_base64"):
            record.pop(name, None)
        record["value"] = envelopes.text_of(found[0].value)
    output.show_one(record, as_json)


def _record(letter: "DeadLetterInfo") -> dict[str, Any]:
    import msgspec

    from penstock.operations import envelopes

    record = msgspec.structs.asdict(letter)
    del record["value"]
    return {**record, **envelopes.value_of(letter.value)}


def _require_selection(group: str | None, reason: str | None, ids: tuple[int, ...], everything: bool) -> None:
    chosen = group is not None or reason is not None or bool(ids)
    if not chosen and not everything:
        raise click.UsageError("select dead letters with --group, --reason, --id or --all")
    if chosen and everything:
        raise click.UsageError("--all cannot be combined with --group, --reason or --id")


def _described(queue: str, group: str | None, reason: str | None, ids: tuple[int, ...]) -> str:
    which = f"dead letters of queue {queue}" if group is None else f"dead letters of group {group} of queue {queue}"
    if reason is not None:
        which += f" with the reason {reason}"
    if ids:
        which += f" with the ids {', '.join(map(str, ids))}"
    return which


def _report(outcome: str, done: int, as_json: bool) -> None:
    if as_json:
        output.show_one({outcome: done}, True)
    else:
        click.echo(f"{output.counted(done, 'dead letter')} {outcome}")
