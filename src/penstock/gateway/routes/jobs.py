"""Jobs: redrive or discard dead letters by a filter, run by the gateway, with count, progress and stop.

The gateway that takes a job runs it; its progress is in the database, so any gateway can show it and stop it.
"""

import asyncio
import logging
from typing import Literal
from uuid import UUID

import msgspec

from penstock.broker.jobs import JobInfo
from penstock.broker.operations.groups import CountDeadLetters, Discard, Redrive
from penstock.broker.operations.jobs import BeginJob, ListJobs, NoteJob, StopJob
from penstock.broker.retries import backoff
from penstock.client.async_client import AsyncClient
from penstock.errors import InvalidInput, NotFound, PenstockError, Retryable, Unavailable
from penstock.gateway.call import Call, Reply
from penstock.gateway.gateway import Gateway
from penstock.gateway.pages import Limit
from penstock.gateway.routes.queues import Changed

log = logging.getLogger("penstock.gateway")

# Dead letters are moved in transactions of this many.
_CHUNK = 500
_MOST_FAILURES = 10


class LetterJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do with which dead letters of a queue; without group and reason, with all of them."""

    kind: Literal["redrive", "discard"]
    queue: str
    group: str | None = None
    reason: str | None = None


class JobsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many jobs."""

    limit: Limit = 100


async def begin_job(call: Call) -> Reply:
    """Begin a job, and answer at once; its progress is at the `Location` of the answer."""
    given: LetterJob = call.body
    await call.authorize(call.route.scope, given.queue)
    client = call.gateway.client
    reasons = await client.run(CountDeadLetters(given.queue, given.group))
    total = sum(each.letters for each in reasons if given.reason in (None, each.reason))
    wanted = {"group": given.group, "reason": given.reason}
    job_id = await client.run(BeginJob(given.kind, given.queue, wanted, total, call.caller))
    call.gateway.begin(_work(call.gateway, job_id, given, total))
    return Reply(await _job(client, job_id), 202, {"Location": f"{call.route.path}/{job_id}"})


async def list_jobs(call: Call) -> list[JobInfo]:
    """List the jobs of the last week, the newest first."""
    found = await call.gateway.client.run(ListJobs(None, call.query.limit))
    return (await call.sight()).rows(found)


async def get_job(call: Call) -> JobInfo:
    """Say how far a job is."""
    return await _seen(call)


async def stop_job(call: Call) -> Changed:
    """Ask a job to stop after the chunk that it is at; what is done stays done."""
    return Changed(await call.gateway.client.run(StopJob((await _seen(call)).job_id)))


def _id(call: Call) -> UUID:
    try:
        return UUID(call.path["job"])
    except ValueError:
        raise InvalidInput(f"{call.path['job']!r:.100} is not the id of a job") from None


async def _seen(call: Call) -> JobInfo:
    """Return the job of the path, if the caller may see its queue."""
    found = await _job(call.gateway.client, _id(call))
    await call.show(found.queue, _no_such_job(found.job_id))
    return found


def _no_such_job(job_id: UUID) -> str:
    return f"there is no job {job_id}; jobs are kept for a week"


async def _job(client: AsyncClient, job_id: UUID) -> JobInfo:
    found = await client.run(ListJobs(job_id))
    if not found:
        raise NotFound(_no_such_job(job_id))
    return found[0]


async def _work(gateway: Gateway, job_id: UUID, wanted: LetterJob, total: int) -> None:
    """Move chunk after chunk, until nothing is left or somebody says stop.

    The oldest come first, and no more than there were: those that die again meanwhile are not taken again, or a job
    whose letters die at once would never end.
    """
    client = gateway.client
    kind = Redrive if wanted.kind == "redrive" else Discard
    done, failures, pauses = 0, 0, backoff(0.1, 5.0)
    try:
        while True:
            try:
                moved = await client.run(
                    kind(wanted.queue, wanted.group, wanted.reason, None, max(1, min(_CHUNK, total - done)))
                )
                done += moved
                over = moved == 0 or done >= total
                stop = await client.run(NoteJob(job_id, done, "done" if over else "running"))
                failures = 0
            except (Unavailable, Retryable):
                failures += 1
                if failures > _MOST_FAILURES:
                    raise
                await asyncio.sleep(next(pauses))
                continue
            if over:
                return
            if stop or gateway.stopping.is_set():
                await client.run(NoteJob(job_id, done, "stopped"))
                return
    except PenstockError as error:
        log.warning("job %s failed: %s", job_id, error)
        await _note_failure(client, job_id, done, str(error))
    except asyncio.CancelledError:
        await _note_failure(client, job_id, done, "the gateway ended")
        raise


async def _note_failure(client: AsyncClient, job_id: UUID, done: int, error: str) -> None:
    try:
        await client.run(NoteJob(job_id, done, "failed", error))
    except PenstockError as second:
        # It is shown as lost in a minute.
        log.warning("the failure of job %s could not be noted: %s", job_id, second)
