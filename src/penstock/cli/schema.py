"""The schema: install and upgrade it, print it, grant roles, change database settings."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.options import Command, json_option

if TYPE_CHECKING:
    import psycopg


@click.command(cls=Command, examples=("penstock migrate", "penstock migrate --check"))
@click.option("--check", is_flag=True, help="Check only; exit with 5 if the schema is out of date.")
@json_option
@click.pass_obj
def migrate(given: Given, check: bool, as_json: bool) -> None:
    """Install or upgrade the schema.

    Runs in one transaction, never downgrades, and may be repeated. Prints the version before and after, and the number
    of partitions, in total and with messages.
    """
    from penstock.postgres import migrate

    with _connection(given) as connection:
        if check:
            state = migrate.inspect(connection)
            migrate.require_current(state)
            output.show_one({"version": state.schema_version, "up_to_date": True}, as_json)
            return
        with output.progress("migrating", total=1) as advance:
            done = migrate.migrate(connection)
            advance(1)
    output.show_one(
        {
            "before": done.before,
            "after": done.after,
            "partitions": done.partitions,
            "partitions_with_messages": done.partitions_with_messages,
        },
        as_json,
    )


@click.command(cls=Command, examples=("penstock database", "penstock database --create-on-first-use off"))
@click.option(
    "--create-on-first-use",
    type=click.Choice(["on", "off"]),
    help="Let push, pop, configure and `group create` create a missing queue, and pop a missing group.",
)
@json_option
@click.pass_obj
def database(given: Given, create_on_first_use: str | None, as_json: bool) -> None:
    """Show or change database-wide settings."""
    wanted = None if create_on_first_use is None else create_on_first_use == "on"
    with given.client() as client:
        now = client.configure_database(create_on_first_use=wanted)
    output.show_one(now, as_json)


@click.command(
    cls=Command, connects=False, examples=("penstock sql > penstock.sql", 'penstock sql | psql "$DATABASE_URL"')
)
def sql() -> None:
    """Print the schema as SQL for psql.

    Does not connect. In an empty database the script does the same as `penstock migrate`.
    """
    from penstock import sql

    click.echo(sql.script(), nl=False)


@click.command(
    cls=Command,
    examples=("penstock grant producer shop", 'penstock grant consumer reports --sql | psql "$DATABASE_URL"'),
)
@click.argument("role", type=click.Choice(["producer", "consumer", "gateway", "admin"]))
@click.argument("user")
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL instead of running it, without connecting.")
@click.pass_obj
def grant(given: Given, role: str, user: str, as_sql: bool) -> None:
    """Grant a role to a database user.

    A producer pushes; a consumer reads, pops and acknowledges; a gateway looks up API keys; an admin may do everything.
    Creates the roles penstock_producer, penstock_consumer, penstock_gateway and penstock_admin if they are missing.

    Run it as a superuser, or as the owner of the schema penstock with CREATEROLE.
    """
    from penstock.postgres import migrate

    if as_sql:
        click.echo(_grant_script(role, user), nl=False)
        return
    with _connection(given) as connection:
        migrate.grant(connection, role, user)
    click.echo(f"{user} is now a {role}" if role != "admin" else f"{user} is now an admin")


def _grant_script(role: str, user: str) -> str:
    from psycopg.sql import SQL, Identifier

    from penstock import sql

    granted = SQL("GRANT {} TO {};\n").format(Identifier(f"penstock_{role}"), Identifier(user)).as_string()
    return f"{sql.roles()}\n{granted}"


@contextmanager
def _connection(given: Given) -> "Iterator[psycopg.Connection[Any]]":
    """Open a connection without checking the schema."""
    from penstock.postgres.address import open_address

    address = open_address(given.settings(), check_schema=False)
    try:
        with address.connect() as connection:
            yield connection
    finally:
        address.close()
