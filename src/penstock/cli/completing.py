"""Shell completion of queue and group names.

It runs each time the user presses Tab, so it starts no server, waits at most two seconds, and hides errors.

Anyone who may push can give a queue any name, and a shell may insert a completion without quotes: bash does, and then
runs a `$(…)` in it. So only names without special characters are offered.
"""

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from penstock.cli.connection import Given

if TYPE_CHECKING:
    from penstock.client.client import Client

_TIMEOUT = 2.0
# Letters and digits of any language. Not first: - (an option), % (a job) and : (bash splits words there). Nowhere:
# characters that a shell expands or splits at, and the comma, at which click's own scripts split.
_SAFE = re.compile(r"[\w./@+][\w./@+:%-]*")


class QueueName(click.types.StringParamType):
    """The name of a queue."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the queues whose name begins with the text."""
        return _items(ctx, incomplete, lambda client: [info.name for info in client.queues()])


class GroupName(click.types.StringParamType):
    """The name of a group: of the queue given before it, or of any queue."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the groups whose name begins with the text."""
        queue = ctx.params.get("queue")
        return _items(ctx, incomplete, lambda client: sorted({info.name for info in client.groups(queue)}))


TYPES: dict[str, QueueName | GroupName] = {"queue": QueueName(), "group": GroupName()}


def _items(ctx: click.Context, incomplete: str, names: Any) -> list[CompletionItem]:
    with suppress(Exception):
        client = _client(ctx.ensure_object(Given))
        if client is not None:
            with client:
                found = [name for name in names(client) if name.startswith(incomplete)]
                return [CompletionItem(name) for name in found if _SAFE.fullmatch(name)]
    return []


def _client(given: Given) -> "Client | None":
    from penstock import embedded
    from penstock.client.client import Client

    settings = given.settings()
    home = str(settings.home)
    if settings.url is None and not embedded.status(settings.home).running:
        return None
    return Client(given.url, home=home, timeout=_TIMEOUT, connect_timeout=_TIMEOUT, pool_size=1)
