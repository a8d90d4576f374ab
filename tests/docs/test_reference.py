"""The reference pages have all there is: every method, function, view, command, setting, variable and error."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import click
import psycopg
import pytest

import penstock
from penstock import settings, sql
from penstock.cli.root import root
from penstock.client.transaction import Transaction

from .pages import ROOT, read


def reference(name: str) -> str:
    return read(ROOT / "docs" / "reference" / f"{name}.md").text


def public_methods(kind: type[Any]) -> list[str]:
    # What these do is between the parts of the client.
    internal = {
        *("ack_through", "block", "settle", "settle_through_outages", "settling"),
        *("ack_or_defer", "acked_with_pop", "acknowledged", "count_for", "end", "reopen", "undeferred", "write"),
    }
    return [
        name
        for name, member in inspect.getmembers(kind)
        if not name.startswith("_")
        and name not in internal
        and (inspect.isfunction(member) or isinstance(member, property))
    ]


@pytest.mark.parametrize("kind", [penstock.Client, penstock.Batch, Transaction], ids=lambda kind: kind.__name__)
def test_every_method_has_a_place_in_the_python_reference(kind: type[Any]) -> None:
    text = reference("python")
    assert [name for name in public_methods(kind) if not re.search(rf"`(?:\w+\.)?{name}\b", text)] == []


def test_every_parameter_of_a_method_is_named_in_the_python_reference() -> None:
    text = reference("python")
    missing = []
    for kind in (penstock.Client, penstock.Batch, Transaction):
        for name in public_methods(kind):
            method = inspect.getattr_static(kind, name)
            if inspect.isfunction(method):
                parameters = set(inspect.signature(method).parameters) - {"self"}
                missing += [f"{kind.__name__}.{name}({p})" for p in parameters if not re.search(rf"\b{p}\b", text)]
    assert missing == []


def test_every_public_name_is_in_the_python_or_error_reference() -> None:
    text = reference("python") + reference("errors")
    assert [name for name in penstock.__all__ if f"`{name}" not in text] == []


def test_every_granted_function_and_view_is_in_the_sql_reference() -> None:
    granted = set(re.findall(r"penstock\.(\w+)", re.sub(r"--.*", "", sql.roles()))) - {"migrations"}
    text = reference("sql")
    assert sorted(name for name in granted if f"penstock.{name}" not in text) == []


def test_signatures_in_the_sql_reference_are_those_of_the_server(penstock_dsn: str) -> None:
    with psycopg.connect(penstock_dsn) as connection:
        known = {
            name: set(arguments or ())
            for name, arguments in connection.execute(
                "SELECT proname, proargnames FROM pg_proc WHERE pronamespace = 'penstock'::regnamespace"
            ).fetchall()
        }
    wrong = []
    for name, arguments in re.findall(r"^### `penstock\.(\w+)\(([^)]*)\)`$", reference("sql"), re.MULTILINE):
        given = [argument.split()[0] for argument in arguments.split(",") if argument.strip()]
        wrong += [f"{name}({argument})" for argument in given if argument not in known.get(name, set())]
    assert wrong == []


def test_the_settings_reference_has_the_servers_own_table(penstock_dsn: str) -> None:
    text = reference("settings")
    with psycopg.connect(penstock_dsn) as connection:
        rows = connection.execute(
            "SELECT name, default_value::text, minimum, maximum, choices, meaning FROM penstock.settings()"
        ).fetchall()
    # Without links, code marks and the star of settings that a group may override.
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)|\. \*(?= \|)", r"\1", text.replace("`", ""))
    missing = []
    for name, default, minimum, maximum, choices, meaning in rows:
        allowed = " ".join(choices) if choices else f"{minimum:,} – {maximum:,}"
        row = f"| {name} | {default.strip(chr(34))} | {allowed} | {meaning} |"
        if row not in plain:
            missing.append(row)
    assert missing == []


def test_every_environment_variable_is_in_the_settings_reference() -> None:
    text = reference("settings")
    wanted = [option.variable for option in settings.OPTIONS] + ["PENSTOCK_TEST_URL", "PENSTOCK_POSTGRES_OPTIONS"]
    assert [name for name in wanted if f"`{name}`" not in text] == []


def commands(group: click.Group, path: str = "penstock") -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_every_command_and_option_is_in_the_cli_reference() -> None:
    text = reference("cli")
    missing = []
    for path, command in commands(root):
        heading = f"### `{path}"
        if heading not in text:
            missing.append(path)
            continue
        section = text.partition(heading)[2].partition("\n## ")[0].partition("\n### ")[0] + reference_of_globals(text)
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                missing += [
                    f"{path} {flag}" for flag in parameter.opts if flag.startswith("--") and flag not in section
                ]
    assert missing == []


def reference_of_globals(text: str) -> str:
    """Return what holds for every command: the global options and --json."""
    return text.partition("## Options of every command")[2].partition("\n## ")[0]


def test_every_error_is_in_the_error_reference() -> None:
    text = reference("errors")
    errors = [
        name for name, kind in vars(penstock.errors).items() if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    assert [name for name in errors if f"`{name}`" not in text] == []
