"""The statements of jobs."""

from typing import Any
from uuid import UUID

import msgspec

from penstock.broker.jobs import JobInfo
from penstock.broker.operations.jobs import BeginJob, ListJobs, NoteJob, StopJob
from penstock.postgres.statements.call import Call, json_text, scalar, statement


@statement(BeginJob)
def begin_job(wanted: BeginJob) -> Call[UUID]:
    return Call(
        "SELECT penstock.begin_job(%s::text, %s::text, %s::jsonb, %s::bigint, %s::text)",
        (wanted.kind, wanted.queue, json_text(wanted.filter), wanted.total, wanted.started_by),
        scalar,
    )


@statement(NoteJob)
def note_job(wanted: NoteJob) -> Call[bool]:
    return Call(
        "SELECT penstock.note_job(%s::uuid, %s::bigint, %s::text, %s::text)",
        (wanted.job_id, wanted.done, wanted.state, wanted.error),
        scalar,
    )


@statement(ListJobs)
def list_jobs(wanted: ListJobs) -> Call[list[JobInfo]]:
    return Call(
        "SELECT job_id, kind, queue, filter::text, started_by, state, total, done, error, created_at, changed_at"
        " FROM penstock.list_jobs(%s::uuid, %s::integer)",
        (wanted.job_id, wanted.limit),
        lambda rows: [_job(*row) for row in rows],
    )


@statement(StopJob)
def stop_job(wanted: StopJob) -> Call[bool]:
    return Call("SELECT penstock.stop_job(%s::uuid)", (wanted.job_id,), scalar)


def _job(job_id: UUID, kind: str, queue: str, wanted: str, *rest: Any) -> JobInfo:
    return JobInfo(job_id, kind, queue, msgspec.json.decode(wanted), *rest)
