"""The command `penstock`: its commands by section, its global options, and its exit codes.

Every error is printed as one line on stderr and sets an exit code that a script can act on.
"""

import logging
import os
import sys
from typing import Any, NoReturn

import click

from penstock import __version__
from penstock.cli import (
    auditing,
    claims,
    consumers,
    dead_letters,
    dispatching,
    flows,
    groups,
    jobs,
    keys,
    maintenance,
    popping,
    pushing,
    queues,
    reading,
    rules,
    schedules,
    scheduling,
    schema,
    seeking,
    services,
    serving,
    status,
    workers,
)
from penstock.cli.connection import CONNECTION, Given
from penstock.errors import (
    EmbeddedError,
    InvalidFlows,
    InvalidInput,
    NotFound,
    PenstockError,
    QueuePaused,
    RateLimited,
    Retryable,
    SetupError,
    Unavailable,
)

_CODES: tuple[tuple[type[PenstockError], int], ...] = (
    (InvalidInput, 2),
    (NotFound, 3),
    (Retryable, 4),
    (RateLimited, 4),
    (QueuePaused, 4),
    (Unavailable, 4),
    (SetupError, 5),
)
INTERRUPTED = 130
# What a shell reports for a program that wrote to a closed pipe.
BROKEN_PIPE = 141

_EPILOG = """\b
Exit codes:
    0  success
    1  any other error, a count above its limit (lag --max, verify), or a problem (status)
    2  invalid command line or input; nothing was changed
    3  the queue, partition, group, message or claim does not exist
    4  the database is unreachable or busy, or the queue paused or over its rate; retrying may help
    5  installation, schema or permission problem; run `penstock doctor`
  130  interrupted by Ctrl-C

\b
Examples:
  penstock push orders '{"id": 1}' --key customer-7
  penstock tail orders --no-follow
  penstock pop orders --group billing --follow --exec ./charge.sh
  penstock --home ./mine up --detach
"""


class Root(click.Group):
    """Lists its commands by section, and turns errors into exit codes."""

    sections: dict[str, list[str]]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands of each section."""
        width = max(map(len, self.commands))
        for title, names in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), self.commands[name].get_short_help_str(80)) for name in names])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and handle its errors."""
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except PenstockError as error:
            code = next((code for kind, code in _CODES if isinstance(error, kind)), 1)
            _fail(ctx, error, str(error), code)
        except KeyboardInterrupt as error:
            _fail(ctx, error, "interrupted", INTERRUPTED)
        except BrokenPipeError:
            # What is still buffered must not fail again when Python exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(BROKEN_PIPE)
        except OSError as error:
            _fail(ctx, error, str(error), 1)
        finally:
            # CPython takes note of a KeyboardInterrupt that leaves text which it executes, as the import of a dataclass
            # does, and dies of SIGINT at its end although the command ended in order. Other text clears the note.
            exec("")  # noqa: S102


class Lazy(click.Group):
    """A group of commands whose module is imported when needed."""

    def __init__(self, name: str, module: str, help: str) -> None:  # noqa: A002
        super().__init__(name, help=help)
        self._module = module

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, with the global options of its parents."""
        given = vars(ctx.ensure_object(Given))
        ctx.default_map = dict.fromkeys(self.list_commands(ctx), given)
        return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return self._load().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one command."""
        return self._load().get_command(ctx, cmd_name)

    def _load(self) -> click.Group:
        from importlib import import_module

        group: click.Group = getattr(import_module(self._module), self.name or "")
        return group


@click.group(
    cls=Root, epilog=_EPILOG, params=list(CONNECTION), context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, message="penstock %(version)s")
@click.pass_context
def root(context: click.Context) -> None:
    """Operate penstock, a message log and work queue inside PostgreSQL."""
    context.ensure_object(Given)


_COMMANDS: dict[str, list[click.Command]] = {
    "Services": [services.up, services.down, serving.serve, services.doctor, services.config, services.demo],
    "Schema": [schema.migrate, schema.sql, schema.grant, schema.database],
    "Messages": [pushing.push, popping.pop, reading.read, reading.get, reading.tail, scheduling.scheduled],
    "Schedules": [schedules.schedule],
    "Queues": [
        queues.queues,
        queues.partitions,
        queues.describe,
        queues.create,
        queues.configure,
        queues.pause,
        queues.resume,
        queues.purge,
        queues.delete,
    ],
    "Groups": [
        groups.groups,
        groups.lag,
        groups.group,
        seeking.seek,
        claims.claims,
        claims.history,
        dead_letters.dead_letters,
        dead_letters.redrive,
        dead_letters.discard,
        rules.rule,
    ],
    "Health": [
        status.status,
        status.checks,
        status.metrics,
        jobs.rollup,
        consumers.consumers,
        consumers.breakers,
    ],
    "Access": [keys.keys, auditing.audit],
    "Flows": [flows.run, flows.flows, jobs.archive, jobs.archives, jobs.backfill],
    "Actions": [
        workers.worker,
        workers.actions,
        workers.tasks,
        workers.cancel,
        dispatching.dispatch,
        dispatching.windows,
    ],
    "Maintenance": [
        maintenance.maintain,
        maintenance.verify,
        maintenance.resync,
        Lazy("bench", "penstock.bench.cli", "Benchmark penstock on this machine."),
    ],
}
for _commands in _COMMANDS.values():
    for _command in _commands:
        root.add_command(_command)
root.sections = {title: [str(command.name) for command in commands] for title, commands in _COMMANDS.items()}


def main() -> NoReturn:
    """Run `penstock` and end the process with its exit code."""
    # Errors of connections are printed as errors of the command; the pool's own log would print them a second time.
    logging.getLogger("psycopg").addHandler(logging.NullHandler())
    try:
        sys.exit(root.main(prog_name="penstock", standalone_mode=False))
    except click.UsageError as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            click.echo(error.format_message(), err=True)
            sys.exit(error.exit_code)
        hint = f" (see `{error.ctx.command_path} --help`)" if error.ctx else ""
        click.echo(f"penstock: {error.format_message().rstrip('.')}{hint}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(f"penstock: {error.format_message()}", err=True)
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("penstock: nothing was changed", err=True)
        sys.exit(1)


def _fail(ctx: click.Context, error: BaseException, text: str, code: int) -> NoReturn:
    # The embedded server's log and the problems of flows keep their lines.
    if not isinstance(error, EmbeddedError | InvalidFlows):
        text = " ".join(text.split())
    said = ". ".join([text.rstrip("."), *getattr(error, "__notes__", ())])
    click.echo(f"penstock: {said}", err=True)
    ctx.exit(code)
