"""Consumer groups as an operator handles them: claims by lease id, dead letters without end of page."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.errors import NotFound, SetupError

if TYPE_CHECKING:
    from penstock.broker.infos import ClaimInfo, DeadLetterInfo, GroupInfo
    from penstock.client.client import Client

_PAGE = 1000


def require_group(client: "Client", queue: str, group: str | None) -> None:
    """Raise NotFound if the queue or the group does not exist: an empty list would not show that."""
    if group is None:
        client.groups(queue)
    else:
        client.lag(queue, group)


def oldest_age(info: "GroupInfo") -> int | None:
    """Return for how many seconds the oldest work of a group has waited, or None if there is none."""
    since = info.oldest_since
    return None if since is None else max(0, round((datetime.now(UTC) - since).total_seconds()))


def release_lease(client: "Client", lease: UUID, queue: str | None, group: str | None) -> "list[ClaimInfo]":
    """Take the claim with this lease id from its holder, and return its parts: a shared claim may be in several."""
    held = client.claims(queue, group)
    if held and held[0].lease_id is None:
        raise SetupError("permission denied (needs the admin role): `penstock grant admin USER` grants it")
    found = [claim for claim in held if claim.lease_id == lease]
    if not found or not client.release_claim(found[0]):
        raise NotFound(f"no claim has the lease id {lease}; `penstock claims` lists the claims")
    return found


def dead_letters(
    client: "Client", queue: str, group: str | None, reason: str | None, limit: int
) -> "Iterator[DeadLetterInfo]":
    """Yield up to `limit` dead letters, oldest first, page by page."""
    after = 0
    while limit:
        page = client.dead_letters(queue, group, reason=reason, after=after, limit=min(limit, _PAGE))
        if not page:
            return
        yield from page
        limit -= len(page)
        after = page[-1].dead_letter_id
