"""State against log: `verify` compares them, and `resync` repairs readiness after a restore."""

import click

from penstock.cli import output
from penstock.cli.options import Command, Given, json_option

_WRONG = 1


@click.command(cls=Command, examples=("penstock verify", "penstock verify --json"))
@json_option
@click.pass_context
def verify(context: click.Context, as_json: bool) -> None:
    """Compare state and log: every count must be 0.

    Prints for each check its name, how many violate it, and what it means. Exits with 1 if one is above 0. May run at
    any time; it reads everything but the messages themselves.
    """
    import msgspec

    with context.ensure_object(Given).client() as client:
        checks = client.verify()
    output.show(map(msgspec.structs.asdict, checks), ("name", "violations", "meaning"), as_json)
    if any(check.violations for check in checks):
        context.exit(_WRONG)


@click.command(cls=Command, examples=("penstock resync", "penstock resync --json"))
@json_option
@click.pass_obj
def resync(given: Given, as_json: bool) -> None:
    """Repair what is ready, after a restore or a replication.

    Puts every partition with work in line, and removes places in line that nobody knows. Harmless at any time. Prints
    how many were repaired.
    """
    with given.client() as client:
        repaired = client.resync()
    if as_json:
        output.show_one({"repaired": repaired}, True)
    else:
        click.echo(f"{output.counted(repaired, 'partition')} repaired")
