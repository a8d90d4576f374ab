"""The facts without which a figure says nothing: server, its settings, machine, versions."""

import os
import platform
from datetime import UTC, datetime
from typing import Any

import msgspec
import psycopg

import penstock
from penstock.bench.contenders import has_lz4


class Environment(msgspec.Struct, frozen=True):
    """Where and when a run was made."""

    measured_at: datetime
    penstock: str
    server: str
    lz4: bool
    fsync: str
    synchronous_commit: str
    shared_buffers: str
    python: str
    psycopg: str
    machine: str
    cores: int
    load: float

    @property
    def lines(self) -> list[str]:
        """The same as text."""
        lz4 = "with lz4" if self.lz4 else "without lz4"
        return [
            f"PostgreSQL {self.server} ({lz4}), fsync {self.fsync}, synchronous_commit {self.synchronous_commit}, "
            f"shared_buffers {self.shared_buffers}",
            f"penstock {self.penstock}, Python {self.python}, psycopg {self.psycopg}",
            f"{self.machine}, {self.cores} cores, load {self.load:.1f} at the start, "
            f"{self.measured_at:%Y-%m-%d %H:%M} UTC",
        ]


def look(connection: psycopg.Connection[Any]) -> Environment:
    """Find out where we are."""

    def show(setting: str) -> str:
        row = connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
        return str(row[0]) if row else "?"

    return Environment(
        measured_at=datetime.now(UTC),
        penstock=penstock.__version__,
        server=show("server_version"),
        lz4=has_lz4(connection),
        fsync=show("fsync"),
        synchronous_commit=show("synchronous_commit"),
        shared_buffers=show("shared_buffers"),
        python=platform.python_version(),
        psycopg=psycopg.__version__,
        machine=f"{platform.system()} {platform.machine()}",
        cores=os.cpu_count() or 1,
        load=os.getloadavg()[0],
    )
