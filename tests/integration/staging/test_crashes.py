"""A database that crashes between staging and publishing has all that the tasks were told it has."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from penstock import Client, embedded
from penstock.broker.operations.ranges import NoteEpoch, SaveSnapshot
from penstock.broker.operations.staging import BeginStage, FlushStages, StageSegments
from penstock.broker.staging import StagedPart

from .steps import note, publish, read, stage, value


@pytest.fixture
def crashing() -> Iterator[str]:
    """A server of its own, which writes its log to disk when a commit asks for it and hardly otherwise."""
    home = Path(tempfile.mkdtemp(prefix="penstock-crash-"))
    home.chmod(0o755)
    embedded.start_detached(home)
    try:
        with embedded.attach(home) as instance, Client(instance.dsn), psycopg.connect(instance.dsn) as connection:
            connection.autocommit = True
            connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
            connection.execute("ALTER SYSTEM SET synchronous_commit = on")
            connection.execute("SELECT pg_reload_conf()")
            yield instance.dsn
    finally:
        embedded.stop(home, timeout=30)
        shutil.rmtree(home, ignore_errors=True)


def connect(dsn: str) -> psycopg.Connection[tuple[object, ...]]:
    """Connect to a server that may just be recovering."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return psycopg.connect(dsn, autocommit=True)
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, "the server did not come back"


def crash(dsn: str, sql: psycopg.Connection[tuple[object, ...]]) -> None:
    """Kill a backend, and wait until PostgreSQL takes that for a crash: what was in shared memory only is gone."""
    with closing(connect(dsn)) as other, suppress(psycopg.OperationalError):
        os.kill(value(sql, "SELECT pg_backend_pid()"), signal.SIGKILL)
        while True:
            other.execute("SELECT 1")


def test_what_was_staged_can_be_published_after_a_crash(crashing: str) -> None:
    with connect(crashing) as sql:
        snapshot = value(sql, "SELECT snapshot_id FROM penstock.save_snapshot(0, NULL, '{}', '{}', '{}', '{}', '{}')")
        note(sql, snapshot)
        number = stage(sql, {"p": ["a", "b"]})
        crash(crashing, sql)
    with connect(crashing) as sql:
        assert publish(sql, {number: 2}) == ("published", 2)
        assert read(sql) == ["a", "b"]
        assert value(sql, "SELECT sources FROM penstock.sink_commits") == [snapshot]


def test_what_a_task_has_flushed_can_be_published_after_a_crash(crashing: str) -> None:
    with Client(crashing) as client, connect(crashing) as sql:
        run = client._transport.run
        saved = run(SaveSnapshot(None, [], [], [], [], []))
        run(NoteEpoch("query", "run-1", 0, saved.name.snapshot_id))
        number = run(BeginStage("query", "run-1", 0))
        ends = b"\x01\x00\x00\x00\x02\x00\x00\x00"
        run(StageSegments(number, 0, StagedPart(["q"], ["p"], [2], b"ab", ends, None, None, None, None)))
        run(FlushStages())
        crash(crashing, sql)
    with connect(crashing) as sql:
        assert publish(sql, {number: 2}) == ("published", 2)
        assert read(sql) == ["a", "b"]
        assert value(sql, "SELECT sources FROM penstock.sink_commits") == [saved.name.snapshot_id]
