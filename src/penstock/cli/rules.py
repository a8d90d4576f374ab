"""Rules that redrive dead letters by themselves: add, list, delete and test them."""

from typing import Any

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.options import Command, duration, epilog, group_option, json_option

_RULES = (
    *("name", "queue", "group", "reason", "error", "backoff", "backoff_factor", "max_redrives"),
    *("redriven", "last_redriven"),
)
_MATCHES = ("dead_letter_id", "queue", "group", "reason", "redrives", "died_at", "due_at", "verdict", "last_error")

limit_option = click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Limit the number of dead letters.",
)


@click.group(
    epilog=epilog(
        (
            "penstock rule add again --queue orders --reason TimeoutError --backoff 10m --max-redrives 5",
            "penstock rule list",
            "penstock rule test again",
            "penstock rule delete again",
        )
    )
)
def rule() -> None:
    """Add, list, test or delete rules that redrive dead letters."""


@rule.command(
    cls=Command,
    examples=(
        "penstock rule add again --queue orders --reason TimeoutError --backoff 10m --max-redrives 5",
        "penstock rule add down --error 'connection refused' --backoff 60 --dry-run",
    ),
)
@click.argument("name")
@click.option("--queue", help="Match dead letters of this queue only.")
@group_option
@click.option("--reason", help="Match dead letters with this reason only.")
@click.option("--error", metavar="TEXT", help="Match dead letters whose last error contains this text only.")
@click.option(
    "--backoff",
    default="60",
    show_default=True,
    callback=duration,
    metavar="DURATION",
    help="Wait so long after a message died: seconds, or 10m, 2h, 3d.",
)
@click.option(
    "--factor", type=float, default=2.0, show_default=True, metavar="X", help="Multiply each further wait by this."
)
@click.option(
    "--max-redrives",
    type=int,
    default=3,
    show_default=True,
    metavar="N",
    help="Redrive a message so often at most.",
)
@click.option("--dry-run", is_flag=True, help="Add nothing; print what the rule would do now.")
@json_option
@click.pass_obj
def add(
    given: Given,
    name: str,
    queue: str | None,
    group: str | None,
    reason: str | None,
    error: str | None,
    backoff: float,
    factor: float,
    max_redrives: int,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Add a rule that redrives matching dead letters by itself.

    A message that dies again waits longer each time; after so many redrives it stays a dead letter. `penstock
    maintain`, `penstock up` and all consumers apply rules. With --dry-run it prints the dead letters that match, and
    what would become of each: redrive, wait, or exhausted.
    """
    conditions: dict[str, Any] = {
        "queue": queue,
        "group": group,
        "reason": reason,
        "error": error,
        "backoff": backoff,
        "backoff_factor": factor,
        "max_redrives": max_redrives,
    }
    with given.client() as client:
        if dry_run:
            _show(client.match_dead_letters(**conditions), as_json)
            return
        client.add_rule(name, **conditions)
    click.echo(f"added rule {name}")


@rule.command("list", cls=Command, examples=("penstock rule list", "penstock rule list --json"))
@json_option
@click.pass_obj
def list_rules(given: Given, as_json: bool) -> None:
    """List the rules for dead letters.

    Prints name, conditions, backoff in seconds and its factor, the largest number of redrives of a message, how many
    dead letters the rule has redriven, and when it last did.
    """
    import msgspec

    with given.client() as client:
        output.show(map(msgspec.structs.asdict, client.rules()), _RULES, as_json)


@rule.command(cls=Command, examples=("penstock rule test again", "penstock rule test again --limit 10 --json"))
@click.argument("name")
@limit_option
@json_option
@click.pass_obj
def test(given: Given, name: str, limit: int, as_json: bool) -> None:
    """Print what a rule would do now with the dead letters that match it.

    Changes nothing. Prints id, queue, group, reason, how often rules have redriven it, when it died, when it is due,
    the verdict (redrive, wait, or exhausted), and the last error.
    """
    with given.client() as client:
        _show(client.test_rule(name, limit=limit), as_json)


@rule.command(cls=Command, examples=("penstock rule delete again",))
@click.argument("name")
@click.pass_obj
def delete(given: Given, name: str) -> None:
    """Delete a rule.

    Dead letters stay as they are.
    """
    with given.client() as client:
        client.delete_rule(name)
    click.echo(f"deleted rule {name}")


def _show(matches: Any, as_json: bool) -> None:
    import msgspec

    output.show(map(msgspec.structs.asdict, matches), _MATCHES, as_json)
