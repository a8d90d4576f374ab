"""What is stuck and why: status, its checks, and the verification of the whole database."""

from datetime import datetime
from typing import Any

import msgspec

from penstock.broker.infos import Check
from penstock.broker.metrics import CheckSettings, WorkInfo
from penstock.broker.operations.metrics import ConfigureCheck, ListWork
from penstock.errors import NotFound
from penstock.gateway.call import Call
from penstock.operations import status as checks


class FoundProblem(msgspec.Struct, frozen=True):
    """Something that is wrong: what it is about, what was found, since when, and what to do."""

    check: str
    subject: str
    found: str
    since: datetime | None
    advice: str
    queue: str | None
    group: str | None


class Status(msgspec.Struct, frozen=True):
    """Whether any check has found a problem, and those it has."""

    healthy: bool
    now: datetime
    problems: list[FoundProblem]


class CheckChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a check to change: enabled, threshold, duration, advice; null means the default."""

    settings: dict[str, Any] = {}


class Verified(msgspec.Struct, frozen=True):
    """Whether state and log agree: no check may have violations."""

    sound: bool
    checks: list[Check]


async def status(call: Call) -> Status:
    """Run all checks on what was last sampled."""
    facts = (await call.sight()).facts(await call.gateway.client.facts())
    problems = [
        FoundProblem(each.check, each.subject, each.found, each.since, each.advice, each.queue, each.group)
        for each in checks.judge(facts)
    ]
    return Status(not problems, facts.now, problems)


async def list_checks(call: Call) -> list[CheckSettings]:
    """Describe the checks with their settings."""
    return await call.gateway.client.checks()


async def patch_check(call: Call) -> CheckSettings:
    """Change the settings of a check; null means the default."""
    name = call.path["check"]
    await call.gateway.client.run(ConfigureCheck(name, call.body.settings))
    for check in await call.gateway.client.checks():
        if check.name == name:
            return check
    raise NotFound(f"there is no check {name!r}")


async def verify(call: Call) -> Verified:
    """Compare state and log; it reads a lot."""
    found = await call.gateway.client.verify()
    return Verified(all(check.violations == 0 for check in found), found)


async def list_work(call: Call) -> list[WorkInfo]:
    """Describe what waits for each group, as it was last sampled."""
    found = await call.gateway.client.run(ListWork(call.query.queue))
    return (await call.sight()).rows(found)
