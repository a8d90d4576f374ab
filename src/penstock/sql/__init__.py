"""The engine, as SQL files: tables in migrations, one function or view per file.

This module only reads them. Numbered migrations change tables and run once; functions and views carry no data and
are written anew by every migrate, so that they always belong to the code that calls them.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_GRANT = re.compile(r"GRANT EXECUTE ON FUNCTION([^;]*)TO penstock_(\w+);")
_INCLUDE = re.compile(r"^\\ir (\S+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Migration:
    """One numbered, forward step of the schema."""

    number: int
    name: str
    sql: str


@cache
def migrations() -> tuple[Migration, ...]:
    """Return the numbered migrations in order."""
    return tuple(
        Migration(int(path.stem[:4]), path.stem[5:], _read(path))
        for path in sorted((_FOLDER / "migrations").glob("[0-9]*.sql"))
    )


def version() -> int:
    """Return the schema version that this code needs."""
    return migrations()[-1].number


def oldest() -> int:
    """Return the oldest schema version that this code works with: the one before its own."""
    return migrations()[-2].number


@cache
def repeatable() -> str:
    """Return what every migrate writes anew: storage, functions, views, and who may call what."""
    paths = [_FOLDER / "storage.sql"]
    paths += sorted((_FOLDER / "functions").glob("*.sql"))
    paths += sorted((_FOLDER / "views").glob("*.sql"))
    paths += [_FOLDER / "stale.sql", _FOLDER / "privileges.sql"]
    # Functions may call one another; the order of files must not matter.
    return "SET LOCAL check_function_bodies = off;\n\n" + "\n".join(map(_read, paths))


@cache
def roles() -> str:
    """Return the script that makes the three roles and grants them what they need."""
    return _read(_FOLDER / "roles.sql")


@cache
def granted() -> dict[str, tuple[str, ...]]:
    """Return which of the roles producer, consumer and admin may call a function, by its name; admins may all."""
    found: dict[str, tuple[str, ...]] = {}
    for names, role in _GRANT.findall(re.sub("--.*", "", roles())):
        for name in re.findall(r"penstock\.(\w+)", names):
            found[name] = (*found.get(name, ()), role)
    return found


def script() -> str:
    """Return the whole schema for psql: an empty database becomes what `penstock migrate` makes of it."""
    steps = [
        f"{step.sql}\nINSERT INTO penstock.migrations (number, name) VALUES ({step.number}, '{step.name}');\n"
        for step in migrations()
    ]
    return "\n".join(["\\set ON_ERROR_STOP on", "BEGIN;\n", *steps, repeatable(), "COMMIT;", ""])


def _read(path: Path) -> str:
    r"""Read a file, with psql's `\ir` lines replaced by the files that they name."""
    return _INCLUDE.sub(lambda match: _read(path.parent / match[1]), path.read_text("utf-8"))
