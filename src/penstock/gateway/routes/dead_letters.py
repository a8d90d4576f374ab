"""Dead letters: list, count, redrive and discard them; rules that redrive by themselves."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from penstock.broker.infos import DeadLetterInfo, DeadReason
from penstock.broker.operations.groups import Discard, ListDeadLetters, Redrive
from penstock.broker.rules import RuleInfo, RuleMatch
from penstock.errors import NotFound
from penstock.gateway.call import Call, Reply
from penstock.gateway.pages import Limit, Number, Page, page_of
from penstock.operations.envelopes import value_of

Verdict = Literal["moved", "gone", "duplicate"]


class LettersQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters of a queue."""

    group: str | None = None
    reason: str | None = None
    after: Number = 0
    limit: Limit = 100


class GroupQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of which group; of all without it."""

    group: str | None = None


class ShownLetter(msgspec.Struct, frozen=True):
    """A message that exhausted its attempts in a group."""

    id: int
    group: str
    partition: str
    offset: int
    message_id: UUID
    timestamp: datetime
    key: str | None
    headers: dict[str, str] | None
    reason: str
    attempts: int
    first_error: str | None
    last_error: str | None
    consumer: str | None
    died_at: datetime
    traceback: str | None
    value: Any | msgspec.UnsetType = msgspec.UNSET
    value_text: str | msgspec.UnsetType = msgspec.UNSET
    value_base64: bytes | msgspec.UnsetType = msgspec.UNSET


class LetterIds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dead letters by their ids."""

    ids: Annotated[list[Number], msgspec.Meta(min_length=1, max_length=1000)]


class Verdicts(msgspec.Struct, frozen=True):
    """For each id `moved`; `gone` where there is no such dead letter any more; `duplicate` where it came before."""

    results: list[Verdict]
    moved: int


class RuleDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule that redrives dead letters that match."""

    queue: str | None = None
    group: str | None = None
    reason: str | None = None
    error: str | None = None
    backoff: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] = 60.0
    backoff_factor: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 2.0
    max_redrives: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3


async def list_letters(call: Call) -> Page[ShownLetter]:
    """List dead letters, oldest first."""
    wanted: LettersQuery = call.query
    found = await call.gateway.client.run(
        ListDeadLetters(call.path["queue"], wanted.group, wanted.reason, wanted.after, wanted.limit + 1)
    )
    page = page_of(found, wanted.limit, lambda letter: letter.dead_letter_id)
    return Page([shown(letter) for letter in page.items], page.next)


async def count_letters(call: Call) -> list[DeadReason]:
    """Count dead letters by group and reason."""
    return await call.gateway.client.dead_reasons(call.path["queue"], call.query.group)


async def redrive(call: Call) -> Verdicts:
    """Deliver dead letters again, to the group that failed and to no other."""
    return await _each(call, Redrive)


async def discard(call: Call) -> Verdicts:
    """Throw dead letters away."""
    return await _each(call, Discard)


async def _each(call: Call, kind: type[Redrive | Discard]) -> Verdicts:
    """Move one after the other, so that each has a verdict of its own."""
    seen: set[int] = set()
    verdicts: list[Verdict] = []
    for each in call.body.ids:
        if each in seen:
            verdicts.append("duplicate")
            continue
        seen.add(each)
        moved = await call.gateway.client.run(kind(call.path["queue"], ids=[each]))
        verdicts.append("moved" if moved else "gone")
    return Verdicts(verdicts, verdicts.count("moved"))


async def list_rules(call: Call) -> list[RuleInfo]:
    """Describe the rules for dead letters."""
    return (await call.sight()).rows(await call.gateway.client.rules())


async def put_rule(call: Call) -> Reply:
    """Add a rule; one of this name must not exist."""
    given: RuleDefinition = call.body
    await call.gateway.client.add_rule(
        call.path["rule"],
        queue=given.queue,
        group=given.group,
        reason=given.reason,
        error=given.error,
        backoff=given.backoff,
        backoff_factor=given.backoff_factor,
        max_redrives=given.max_redrives,
    )
    for rule in await call.gateway.client.rules():
        if rule.name == call.path["rule"]:
            return Reply(rule, 201)
    raise NotFound(f"the rule {call.path['rule']!r} was deleted meanwhile")


async def test_rule(call: Call) -> list[RuleMatch]:
    """Say what a rule would do now with the dead letters that match it."""
    return await call.gateway.client.test_rule(call.path["rule"])


async def delete_rule(call: Call) -> Reply:
    """Delete a rule; dead letters stay as they are."""
    await call.gateway.client.delete_rule(call.path["rule"])
    return Reply(status=204)


def shown(letter: DeadLetterInfo) -> ShownLetter:
    """Return a dead letter as it is shown."""
    return ShownLetter(
        letter.dead_letter_id,
        letter.group,
        letter.partition,
        letter.offset,
        letter.message_id,
        letter.timestamp,
        letter.key,
        letter.headers,
        letter.reason,
        letter.attempts,
        letter.first_error,
        letter.last_error,
        letter.consumer,
        letter.died_at,
        letter.traceback,
        **value_of(letter.value),
    )
