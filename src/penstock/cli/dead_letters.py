"""Dead letters: look at them, deliver them again, throw them away."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import click

from penstock.cli import output
from penstock.cli.claims import require_group
from penstock.cli.groups import group_option
from penstock.cli.options import Command, Given, confirm, json_option, yes_option
from penstock.errors import NotFound

if TYPE_CHECKING:
    from penstock.broker.infos import DeadLetter
    from penstock.client.client import Client

_PAGE = 1000
_LETTER = ("dead_letter_id", "group", "partition", "offset", "reason", "attempts", "died_at", "last_error")
_REASON = ("group", "reason", "letters", "first_died_at", "last_died_at")

reason_option = click.option("--reason", help="Only those that died of this.")
ids_option = click.option(
    "--id", "ids", type=int, multiple=True, metavar="N", help="Only this dead letter; may be repeated."
)
all_option = click.option("--all", "everything", is_flag=True, help="All dead letters of the queue.")


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
@click.option("--by-reason", is_flag=True, help="Count them by reason.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, metavar="N", help="At most so many."
)
@click.option("--id", "wanted", type=int, metavar="N", help="Show this one with all it has.")
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
    """List the messages that exhausted their attempts, oldest first.

    Prints id, group, partition, offset, reason, attempts, when it died, and the last error. With --by-reason: group,
    reason, how many, and when the first and the last died. With --id, a line for each thing that is known of one, with
    the whole value. The JSON has the value as `read --json` has it.
    """
    import msgspec

    if by_reason and (wanted is not None or reason is not None):
        raise click.UsageError("--by-reason counts all of them: it goes with neither --id nor --reason")
    with given.client() as client:
        if wanted is not None:
            _inspect(client, queue, group, wanted, as_json)
            return
        found: list[dict[str, Any]]
        if by_reason:
            found = [msgspec.structs.asdict(count) for count in client.dead_reasons(queue, group)]
        else:
            found = [_record(letter) for letter in _letters(client, queue, group, reason, limit)]
        if not found:
            require_group(client, queue, group)
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
    """Deliver dead letters again, to the group that failed.

    No other group sees them, and their attempts begin anew. Mend what made them fail first, or they come back.
    """
    _say_which(group, reason, ids, everything)
    with given.client() as client:
        done = _each(client, client.redrive, queue, group, reason, ids)
    _tell("redriven", done, as_json)


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
    """Throw dead letters away.

    Asks first. Where nobody can be asked it needs --yes.
    """
    _say_which(group, reason, ids, everything)
    confirm(f"throw away the {_described(queue, group, reason, ids)}", yes)
    with given.client() as client:
        done = _each(client, client.discard, queue, group, reason, ids)
    _tell("discarded", done, as_json)


class _Act(Protocol):
    def __call__(
        self,
        queue: str,
        group: str | None,
        *,
        reason: str | None,
        ids: list[int] | None,
        progress: Callable[[int], None],
    ) -> int: ...


def _each(client: "Client", act: _Act, queue: str, group: str | None, reason: str | None, ids: tuple[int, ...]) -> int:
    """Do something with dead letters, and show how far it is."""
    counts = client.dead_reasons(queue, group)
    total = len(ids) or sum(count.letters for count in counts if reason in (None, count.reason))
    done = 0
    with output.progress("dead letters", total) as advance:

        def tell(so_far: int) -> None:
            nonlocal done
            advance(so_far - done)
            done = so_far

        done = act(queue, group, reason=reason, ids=list(ids) or None, progress=tell)
    if not done:
        require_group(client, queue, group)
        if ids:
            raise NotFound(f"there are no such dead letters; `penstock dead-letters {queue}` lists those there are")
    return done


def _letters(client: "Client", queue: str, group: str | None, reason: str | None, limit: int) -> "Iterator[DeadLetter]":
    after = 0
    while limit:
        page = client.dead_letters(queue, group, reason=reason, after=after, limit=min(limit, _PAGE))
        if not page:
            return
        yield from page
        limit -= len(page)
        after = page[-1].dead_letter_id


def _inspect(client: "Client", queue: str, group: str | None, wanted: int, as_json: bool) -> None:
    found = client.dead_letters(queue, group, after=wanted - 1, limit=1)
    if not found or found[0].dead_letter_id != wanted:
        raise NotFound(f"queue {queue} has no dead letter {wanted}; `penstock dead-letters {queue}` lists those it has")
    from penstock.cli import envelopes

    record = _record(found[0])
    if not as_json:
        for name in ("value", "value_text", "value_base64"):
            record.pop(name, None)
        record["value"] = envelopes.text_of(found[0].value)
    output.show_one(record, as_json)


def _record(letter: "DeadLetter") -> dict[str, Any]:
    import msgspec

    from penstock.cli import envelopes

    record = msgspec.structs.asdict(letter)
    del record["value"]
    return {**record, **envelopes.value_of(letter.value)}


def _say_which(group: str | None, reason: str | None, ids: tuple[int, ...], everything: bool) -> None:
    chosen = group is not None or reason is not None or bool(ids)
    if not chosen and not everything:
        raise click.UsageError("say which dead letters: --group, --reason, --id or --all")
    if chosen and everything:
        raise click.UsageError("--all means all of them: it goes with neither --group, --reason nor --id")


def _described(queue: str, group: str | None, reason: str | None, ids: tuple[int, ...]) -> str:
    which = f"dead letters of queue {queue}" if group is None else f"dead letters of group {group} of queue {queue}"
    if reason is not None:
        which += f" that died of {reason}"
    if ids:
        which += f" with the ids {', '.join(map(str, ids))}"
    return which


def _tell(outcome: str, done: int, as_json: bool) -> None:
    if as_json:
        output.show_one({outcome: done}, True)
    else:
        click.echo(f"{output.counted(done, 'dead letter')} {outcome}")
