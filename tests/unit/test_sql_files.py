"""Every SQL file is where its kind belongs, and its header says what its body does."""

import hashlib
import re
from pathlib import Path

import pytest

import penstock
from penstock import sql

FOLDER = Path(sql.__file__).parent
FUNCTIONS = sql.functions()
STRUCTURE = sql.structure()
TABLES = set(re.findall(r"^CREATE (?:UNLOGGED )?TABLE penstock\.(\w+)", STRUCTURE, re.MULTILINE))
# Written by structure/compression.sql, as the server is.
WRITTEN = {*FUNCTIONS, "lz4_available"}
CALL = re.compile(r"\bpenstock\.(\w+)\(")
TABLE = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE|USING|TABLE)\s+(?:ONLY\s+)?penstock\.(\w+)\b(?!\()")
EACH = pytest.mark.parametrize("name", sorted(FUNCTIONS))


def split(name: str) -> tuple[str, str]:
    """Return the header of a function's file and its body, without comments."""
    text = FUNCTIONS[name].text
    begin = text.index("CREATE OR REPLACE FUNCTION")
    return text[:begin], re.sub(r"--.*", "", text[begin:]).replace(f"penstock.{name}(", "(", 1)


def said(header: str, word: str) -> set[str]:
    """Return the names that the header lists after a word: `Calls: a, b.` or `Tables: a, b (read), c (insert).`."""
    flat = re.sub(r"\n-- ?", " ", header)
    found = re.search(rf"{word}: ([^.]*)\.", flat)
    assert found is not None, f"the header has no {word}:"
    listed = re.sub(r"\([^)]*\)", "", found[1])
    return set() if listed in ("nothing", "none", "none of its own") else set(re.findall(r"\w+", listed))


@EACH
def test_a_file_holds_one_function_of_its_name_with_a_header(name: str) -> None:
    header, _ = split(name)
    made = re.findall(r"^CREATE (?:OR REPLACE )?FUNCTION penstock\.(\w+)\(", FUNCTIONS[name].text, re.MULTILINE)
    assert made == [name]
    assert header.startswith(f"-- penstock.{name}(")
    assert all(line.startswith("--") for line in header.splitlines())
    assert "-- Returns: " in header


@EACH
def test_the_header_names_the_functions_that_the_body_calls(name: str) -> None:
    header, body = split(name)
    assert said(header, "Calls") == {called for called in CALL.findall(body) if called in WRITTEN}


@EACH
def test_the_header_names_the_tables_that_the_body_uses(name: str) -> None:
    header, body = split(name)
    known = TABLES | set(sql.views())
    assert said(header, "Tables") == {table for table in TABLE.findall(body) if table in known}


def test_no_two_files_make_the_same_function_or_view() -> None:
    files = [path.stem for place in ("api", "internal", "views") for path in (FOLDER / place).rglob("*.sql")]
    assert sorted(files) == sorted([*FUNCTIONS, *sql.views()])


@EACH
def test_what_may_be_called_is_in_api_and_nothing_else_is(name: str) -> None:
    source = FUNCTIONS[name]
    assert bool(source.granted) == (not source.place.startswith("internal/"))
    assert set(source.granted) <= set(sql.ROLES)


@EACH
def test_a_function_that_may_be_called_runs_as_its_owner_unless_it_touches_no_table(name: str) -> None:
    source = FUNCTIONS[name]
    header, body = split(name)
    uses = "SECURITY DEFINER" in body
    if source.place.startswith("api/"):
        internal = {
            called
            for called in said(header, "Calls")
            if called in FUNCTIONS and FUNCTIONS[called].place.startswith("internal/")
        }
        assert uses or not (internal or said(header, "Tables"))
    else:
        assert not uses


def test_the_clients_call_nothing_that_is_internal() -> None:
    package = Path(penstock.__file__).parent
    called = {name for path in package.rglob("*.py") for name in CALL.findall(path.read_text("utf-8"))}
    assert {name for name in called if name in FUNCTIONS and FUNCTIONS[name].place.startswith("internal/")} == set()


def test_every_room_of_functions_that_has_tables_has_a_file_of_structure() -> None:
    rooms = {path.stem for path in (FOLDER / "structure").glob("*.sql")} - {"compression"}
    assert {f"api/{room}" for room in rooms} <= {source.place for source in FUNCTIONS.values()}
    assert all(f"TABLE penstock.{table}" in STRUCTURE for table in TABLES)


def test_the_states_of_the_journal_are_those_that_have_a_name() -> None:
    letters = re.findall(r"WHEN '(\w)' THEN", FUNCTIONS["state_name"].text)
    used = {
        letter
        for source in [*FUNCTIONS.values(), *sql.views().values()]
        for group in re.findall(
            r"\bstate (?:=|<>|IN|IS DISTINCT FROM|IS NOT DISTINCT FROM) (\(?'\w'(?:, '\w')*)", source.text
        )
        for letter in re.findall(r"'(\w)'", group)
    }
    assert used <= set(letters)


def test_journal_rows_are_appended_in_the_places_that_append_state_names() -> None:
    writers = {name for name in FUNCTIONS if "INSERT INTO penstock.journal" in split(name)[1]} - {"append_state"}
    header, _ = split("append_state")
    assert said(header, "insert them themselves") == writers


def test_the_keys_of_all_advisory_locks_are_listed_in_one_place() -> None:
    listed = re.findall(r"^-- (\d{10}) - ", FUNCTIONS["queue_lock_class"].text, re.MULTILINE)
    used = {key for name in FUNCTIONS for key in re.findall(r"\b18856956\d\d\b", split(name)[1])}
    assert sorted(used) == listed


def test_the_text_of_a_released_migration_never_changes() -> None:
    folder = FOLDER / "migrations"
    lines = (folder / "checksums.txt").read_text().splitlines()
    listed = {name: checksum for checksum, name in map(str.split, lines)}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.sql")}
    assert {name: found[name] for name in listed} == listed
    # Only what the next release brings is not frozen.
    assert sorted(found)[: len(listed)] == sorted(listed)
    assert len(found) - len(listed) <= 1


def test_migrations_are_numbered_from_one_without_gaps() -> None:
    assert [step.number for step in sql.migrations()] == list(range(1, sql.version() + 1))
    assert sql.oldest() == max(1, sql.version() - 1)
