"""The engine, as SQL files. This module only reads them.

- `structure/`: every table, index and sequence as it is today, a file per room. An empty database is made from it.
- `api/<room>/`: the functions that users and clients call, one per file. Its header says which roles it is granted to.
- `internal/<room>/`: the functions that only other functions call. They are granted to nobody.
- `views/`: the views, and in `views/helpers/` the functions that they call: a view's functions run as its reader.
- `migrations/`: numbered steps from one version of the structure to the next. Released ones never change.

Functions and views carry no data and are written anew by every migrate, so that they always belong to the code that
calls them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

ROLES = ("producer", "consumer", "gateway", "admin")

_FOLDER = Path(__file__).parent
# Later files refer to tables of earlier ones.
_STRUCTURE = (
    "log",
    "groups",
    "timers",
    "pushing",
    "staging",
    "flows",
    "archive",
    "limits",
    "workers",
    "health",
    "metrics",
    "items",
    "rules",
    "schedules",
    "jobs",
    "keys",
    "warm",
)
_GRANTED = re.compile(r"^-- Granted to: ([a-z, ]+)\.$", re.MULTILINE)
_INCLUDE = re.compile(r"^\\ir (\S+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Migration:
    """One numbered, forward step of the schema."""

    number: int
    name: str
    sql: str


@dataclass(frozen=True)
class Source:
    """A file with one function or view: `api/groups/ack.sql` makes the function `ack`."""

    path: Path
    name: str
    place: str
    text: str

    @property
    def granted(self) -> tuple[str, ...]:
        """The roles that may call it or select from it. Admins may do all that the others may."""
        found = _GRANTED.search(self.text)
        return tuple(found[1].split(", ")) if found else ()


@cache
def migrations() -> tuple[Migration, ...]:
    """Return the numbered migrations in order. The first is the structure as it was first released."""
    return tuple(
        Migration(int(path.stem[:4]), path.stem[5:], _read(path))
        for path in sorted((_FOLDER / "migrations").glob("[0-9]*.sql"))
    )


def steps(before: int | None) -> tuple[Migration, ...]:
    """Return what brings a database of this version to ours, each step with what it runs; None: an empty one."""
    if before is not None:
        return tuple(step for step in migrations() if step.number > before)
    first, *others = migrations()
    # The structure has all that the migrations did.
    return (replace(first, sql=structure()), *(replace(step, sql="") for step in others))


def version() -> int:
    """Return the schema version that this code needs."""
    return migrations()[-1].number


def oldest() -> int:
    """Return the oldest schema version that this code works with: the one before its own, if there is one."""
    return max(version() - 1, migrations()[0].number)


@cache
def structure() -> str:
    """Return what makes the tables of an empty database."""
    return "\n".join(_read(_FOLDER / "structure" / f"{room}.sql") for room in _STRUCTURE)


@cache
def functions() -> dict[str, Source]:
    """Return the files of all functions, by name."""
    folders = ("api/*", "internal/*", "views/helpers")
    return {source.name: source for folder in folders for source in _sources(folder)}


@cache
def views() -> dict[str, Source]:
    """Return the files of all views, by name."""
    return {source.name: source for source in _sources("views")}


@cache
def repeatable() -> str:
    """Return what every migrate writes anew: compression, functions, views, privileges, the settings of queues."""
    texts = [_read(_FOLDER / "structure" / "compression.sql")]
    texts += [source.text for source in functions().values()]
    texts += [source.text for source in views().values()]
    texts += [_read(_FOLDER / f"{last}.sql") for last in ("old_functions", "privileges", "settings")]
    # Functions may call one another; the order of files must not matter.
    return "SET LOCAL check_function_bodies = off;\n\n" + "\n".join(texts)


@cache
def roles() -> str:
    """Return the script that makes the roles and grants them what the headers of functions and views say."""
    return "\n".join([_read(_FOLDER / "roles.sql"), *_grants(), ""])


def _grants() -> Iterator[str]:
    for role in ROLES:
        for kind, sources in (("EXECUTE ON FUNCTION", functions()), ("SELECT ON", views())):
            names = [f"    penstock.{name}" for name, source in sorted(sources.items()) if role in source.granted]
            if names:
                yield f"GRANT {kind}\n" + ",\n".join(names) + f"\nTO penstock_{role};"


@cache
def granted() -> dict[str, tuple[str, ...]]:
    """Return which of the roles may call a function, by its name; admins may all."""
    return {name: source.granted for name, source in functions().items() if source.granted}


def script() -> str:
    """Return the whole schema for psql: an empty database becomes what `penstock migrate` makes of it."""
    made = [
        f"{step.sql}\nINSERT INTO penstock.migrations (number, name) VALUES ({step.number}, '{step.name}');\n"
        for step in steps(None)
    ]
    return "\n".join(["\\set ON_ERROR_STOP on", "BEGIN;\n", *made, repeatable(), "COMMIT;", ""])


def _sources(folder: str) -> Iterator[Source]:
    for path in sorted(_FOLDER.glob(f"{folder}/*.sql")):
        yield Source(path, path.stem, path.parent.relative_to(_FOLDER).as_posix(), _read(path))


def _read(path: Path) -> str:
    r"""Read a file, with psql's `\ir` lines replaced by the files that they name."""
    return _INCLUDE.sub(lambda match: _read(path.parent / match[1]), path.read_text("utf-8"))
