"""Names that the shell completes: of queues, and of the groups of a queue.

Asked for with every press of the key, so it is quick or silent: it starts no server, waits two seconds at most, and
what goes wrong is nobody's business here.

Whoever may push can give a queue any name, and a shell may insert what it is offered without quotes: bash does, and
runs `$(…)` in it with the rest of the line. So only names that mean themselves in every shell are offered.
"""

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from penstock.cli.options import Given
    from penstock.client.client import Client

_PATIENCE = 2.0
# Letters and digits of any language. Not at the beginning: - (an option), % (a job) and : (bash splits words there).
# Nowhere: what a shell expands or splits at, and the comma, where click's own scripts split.
_SAFE = re.compile(r"[\w./@+][\w./@+:%-]*")


class QueueName(click.types.StringParamType):
    """The name of a queue."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the queues that begin so."""
        return _items(ctx, incomplete, lambda client: [info.name for info in client.queues()])


class GroupName(click.types.StringParamType):
    """The name of a group of the queue that is named before it, or of any."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the groups that begin so."""
        queue = ctx.params.get("queue")
        return _items(ctx, incomplete, lambda client: sorted({info.name for info in client.groups(queue)}))


TYPES: dict[str, QueueName | GroupName] = {"queue": QueueName(), "group": GroupName()}


def _items(ctx: click.Context, incomplete: str, names: Any) -> list[CompletionItem]:
    from penstock.cli.options import Given

    with suppress(Exception):
        client = _client(ctx.ensure_object(Given))
        if client is not None:
            with client:
                found = [name for name in names(client) if name.startswith(incomplete)]
                return [CompletionItem(name) for name in found if _SAFE.fullmatch(name)]
    return []


def _client(given: "Given") -> "Client | None":
    from penstock import embedded
    from penstock.client.client import Client

    settings = given.settings()
    home = str(settings.home)
    if settings.url is None and not embedded.status(settings.home).running:
        return None
    return Client(given.url, home=home, timeout=_PATIENCE, connect_timeout=_PATIENCE, pool_size=1)
