"""Notes and steps of an item: kept over its attempts, written only by who holds it, and gone with it."""

import json
from typing import Any
from uuid import uuid4

import pytest
from groups.steps import MODES, create_group, must_pop, pass_time, push_some, reply, run, start, sweep, violations
from psycopg import errors

from databases import Connection, Connections
from penstock import InvalidInput, MessageTooLarge
from penstock.broker.claims import Claim, Lease
from penstock.broker.items import ItemNote, ItemNotes, ItemResult, SettledClaim
from penstock.broker.operations.items import NoteItems, ReadNotes, SaveStep, SettleItems
from penstock.postgres.failures import translated

from .steps import ALL, dead, failed, settle_one, settled, snoozed


@pytest.fixture(params=MODES)
def claim(request: pytest.FixtureRequest, sql: Connection) -> Claim:
    """A claim of four messages, of a group of either mode."""
    create_group(sql, mode=request.param, max_attempts=2)
    push_some(sql, 4)
    return must_pop(sql)


def note(sql: Connection, claim: Claim, offset: int = 0, **what: Any) -> bool:
    return run(sql, NoteItems([ItemNote(claim.lease, offset, **what)]))[0]


def step(sql: Connection, claim: Claim, name: str, result: Any, offset: int = 0) -> Any:
    kept = run(sql, SaveStep(claim.lease, offset, name, json.dumps(result).encode()))
    return None if kept is None else json.loads(kept)


def notes(sql: Connection, claim: Claim, offset: int = 0) -> ItemNotes | None:
    return run(sql, ReadNotes(claim.lease, offset))


def rows(sql: Connection) -> tuple[int, int]:
    (found,) = sql.execute(
        "SELECT (SELECT count(*) FROM penstock.item_notes), (SELECT count(*) FROM penstock.item_steps)"
    ).fetchall()
    return tuple(found)


def trim(sql: Connection) -> None:
    sql.execute("UPDATE penstock.item_notes SET looked_at = looked_at - interval '2 hours'")
    sql.execute("SELECT penstock.maintain()")


def test_an_item_without_notes_has_none(sql: Connection, claim: Claim) -> None:
    assert notes(sql, claim) == ItemNotes(None, None, None, {})


def test_what_is_not_given_stays_as_it_was(sql: Connection, claim: Claim) -> None:
    assert note(sql, claim, progress=40, note="decoded", checkpoint=b'{"page": 3}')
    assert note(sql, claim, progress=50)
    assert note(sql, claim, note="half")
    assert note(sql, claim, checkpoint=b"null")
    assert notes(sql, claim) == ItemNotes(50.0, "half", b"null", {})


def test_notes_and_steps_are_there_at_the_next_attempt(sql: Connection, claim: Claim) -> None:
    note(sql, claim, checkpoint=b"[1]")
    assert step(sql, claim, "charge", {"id": 7}) == {"id": 7}
    settle_one(sql, claim, failed(0), release=True)
    again = must_pop(sql) if not claim.shared else next(c for c in iter(lambda: must_pop(sql), None) if c.start == 0)
    assert again.attempt == 2
    assert notes(sql, again) == ItemNotes(None, None, b"[1]", {"charge": b'{"id": 7}'})
    assert notes(sql, claim) is None


def test_the_first_result_of_a_step_stays(sql: Connection, claim: Claim) -> None:
    assert step(sql, claim, "charge", 1) == 1
    assert step(sql, claim, "charge", 2) == 1
    assert step(sql, claim, "mail", None) is None
    assert notes(sql, claim) == ItemNotes(None, None, None, {"charge": b"1", "mail": b"null"})


@pytest.mark.parametrize("how", ["foreign", "expired", "settled", "given back", "not in the claim"])
def test_nobody_notes_what_he_does_not_hold(sql: Connection, claim: Claim, how: str) -> None:
    offset = 0
    if how == "foreign":
        claim.lease_id = uuid4()
    elif how == "expired":
        pass_time(sql, "c")
    elif how == "settled":
        settle_one(sql, claim, done=[(0, 1)])
    elif how == "given back":
        settle_one(sql, claim, release=True)
    else:
        offset = 4
    assert not note(sql, claim, offset, progress=1)
    assert step(sql, claim, "charge", 1, offset) is None
    assert notes(sql, claim, offset) is None
    assert rows(sql) == (0, 0)


@pytest.mark.parametrize("how", ["done", "all done", "dead", "failed for the last time"])
def test_notes_and_steps_go_with_an_item_that_is_settled(sql: Connection, claim: Claim, how: str) -> None:
    if how.startswith("failed"):
        sql.execute("SELECT penstock.configure_group('q', 'g', '{\"max_attempts\": 1}')")
    note(sql, claim, progress=1)
    step(sql, claim, "charge", 1)
    note(sql, claim, 1, progress=1)
    settling = {
        "done": settled(claim, done=[(0, 1)]),
        "all done": settled(claim, done=ALL),
        "dead": settled(claim, dead(0)),
        "failed for the last time": settled(claim, failed(0), release=True),
    }[how]
    run(sql, SettleItems([settling._replace(noted=[0])]))
    assert rows(sql) == (1, 0)


@pytest.mark.parametrize("outcome", [failed(0), snoozed(0)])
def test_they_stay_with_an_item_that_comes_back(sql: Connection, claim: Claim, outcome: Any) -> None:
    step(sql, claim, "charge", 1)
    run(sql, SettleItems([settled(claim, outcome, release=True)._replace(noted=[0])]))
    assert rows(sql) == (1, 1)
    trim(sql)
    assert rows(sql) == (1, 1)


def test_they_stay_where_the_settlement_came_too_late(sql: Connection, claim: Claim) -> None:
    step(sql, claim, "charge", 1)
    late = SettledClaim(claim.lease._replace(lease_id=uuid4()), ALL, noted=[0])
    assert run(sql, SettleItems([late])).settled == [None]
    assert rows(sql) == (1, 1)


def test_maintenance_deletes_those_of_items_that_ended_otherwise(sql: Connection, claim: Claim) -> None:
    step(sql, claim, "charge", 1)
    note(sql, claim, 2, progress=1)
    trim(sql)
    assert rows(sql) == (2, 1)
    settle_one(sql, claim, done=[(0, 1)])
    sql.execute("SELECT penstock.maintain()")
    assert rows(sql) == (2, 1), "looked at within the hour"
    trim(sql)
    assert rows(sql) == (1, 0)
    assert violations(sql) == {}


def test_a_seek_back_forgets_those_of_items_that_are_done_and_leaves_the_others(sql: Connection, claim: Claim) -> None:
    for offset in (0, 1):
        step(sql, claim, "charge", 1, offset)
    # The last delivery of the first one did not say that it may have notes.
    assert settle_one(sql, claim, failed(1), done=[(0, 1)], release=True) == "settled"
    assert rows(sql) == (2, 2)
    sql.execute("SELECT penstock.seek_partitions('q', 'g', to_end => 'earliest')")
    assert rows(sql) == (1, 1)
    again = must_pop(sql)
    assert notes(sql, again, 0) == ItemNotes(None, None, None, {})
    assert notes(sql, again, 1) == ItemNotes(None, None, None, {"charge": b"1"})


@pytest.mark.parametrize("what", ["delete_group('q', 'g')", "delete_queue('q')", "delete_partition('q', 'p')"])
def test_they_go_with_their_group_and_partition(sql: Connection, claim: Claim, what: str) -> None:
    step(sql, claim, "charge", 1)
    sql.execute(f"SELECT penstock.{what}".encode())
    assert rows(sql) == (0, 0)
    assert violations(sql) == {}


def test_verify_finds_those_of_nobody(sql: Connection, claim: Claim) -> None:
    step(sql, claim, "charge", 1)
    sql.execute("UPDATE penstock.item_notes SET group_id = group_id + 1000")
    assert violations(sql) == {"orphan_items": 2}
    sql.execute("UPDATE penstock.item_notes SET group_id = group_id - 1000, message_offset = 4")
    assert violations(sql) == {"orphan_items": 2}


EVIL = [
    '"\\u0000"',
    '"\\ud800"',
    '"\u202e"',
    '"' + "x" * 100_000 + '"',
    "1e400",
    '{"a": 1, "a": 2}',
    "[" * 500 + "]" * 500,
]


@pytest.mark.parametrize("text", EVIL, ids=range(len(EVIL)))
def test_any_json_is_kept_as_it_is(sql: Connection, claim: Claim, text: str) -> None:
    kept = run(sql, SaveStep(claim.lease, 0, "\u202e'; --", text.encode()))
    assert kept == text.encode()
    assert note(sql, claim, note="\0\ud800", checkpoint=text.encode())
    found = notes(sql, claim)
    assert found == ItemNotes(None, "\\x00\\ud800", text.encode(), {"\u202e'; --": text.encode()})


@pytest.mark.parametrize("text", [b"", b"{", b"nul", b"\xff", b"'", b"1 2"])
def test_what_is_no_json_is_refused(sql: Connection, claim: Claim, text: bytes) -> None:
    with pytest.raises(InvalidInput), translated():
        run(sql, SaveStep(claim.lease, 0, "step", text))
    with pytest.raises(InvalidInput), translated():
        note(sql, claim, checkpoint=text)
    assert rows(sql) == (0, 0)


def test_what_is_too_large_is_refused(sql: Connection, claim: Claim) -> None:
    large = b'"' + b"x" * 1_000_000 + b'"'
    with pytest.raises(MessageTooLarge), translated():
        run(sql, SaveStep(claim.lease, 0, "step", large))
    for what in ({"checkpoint": large}, {"note": "x" * 1_000_001}):
        with pytest.raises(MessageTooLarge), translated():
            note(sql, claim, **what)


LEASE = Lease(1, 1, uuid4())


@pytest.mark.parametrize(
    "make",
    [
        lambda: NoteItems([]),
        lambda: NoteItems([ItemNote(LEASE, 0), ItemNote(LEASE, 0)]),
        lambda: NoteItems([ItemNote(LEASE, -1)]),
        lambda: NoteItems([ItemNote(LEASE._replace(lease_id=None), 0)]),
        lambda: NoteItems([ItemNote(LEASE, 0, 101)]),
        lambda: NoteItems([ItemNote(LEASE, 0, float("nan"))]),
        lambda: SaveStep(LEASE, 0, "", b"1"),
        lambda: SaveStep(LEASE, 0, "x" * 256, b"1"),
        lambda: SaveStep(LEASE, 0, "\0", b"1"),
        lambda: SaveStep(LEASE, 0, "\ud800", b"1"),
        lambda: SaveStep(LEASE, -1, "x", b"1"),
        lambda: ReadNotes(LEASE._replace(lease_id=None), 0),
    ],
)
def test_what_cannot_be_noted_is_refused_before_it_is_sent(make: Any) -> None:
    with pytest.raises(InvalidInput):
        make()


def test_sql_refuses_what_cannot_be_noted(sql: Connection) -> None:
    for arguments in (
        "'{1}', '{1}', ARRAY[gen_random_uuid()], '{1}', '{101}', '{x}', '{null}'",
        "'{1}', '{1}', ARRAY[gen_random_uuid()], '{1}', '{NaN}', '{x}', '{null}'",
        "'{1}', '{1}', ARRAY[gen_random_uuid()], '{1,2}', '{1}', '{x}', '{null}'",
    ):
        with pytest.raises(errors.InvalidParameterValue):
            sql.execute(f"SELECT penstock.note_items({arguments})".encode())
    for name in ("''", "NULL", "repeat('x', 256)"):
        with pytest.raises(errors.InvalidParameterValue):
            sql.execute(f"SELECT penstock.save_step(1, 1, gen_random_uuid(), 0, {name}, '1')".encode())


def test_nobody_ends_a_claim_while_a_step_is_being_saved(connections: Connections, sql: Connection) -> None:
    """Whoever gets the item next must see the step."""
    create_group(sql)
    push_some(sql, 1)
    claim = must_pop(sql)
    one, other = connections.open(), connections.open(autocommit=True)
    assert step(one, claim, "charge", 1) == 1
    second = SettleItems([settled(claim, snoozed(0))])
    settling = start(other, second)
    assert settling.waits(sql)
    assert sweep(sql) is not None
    one.commit()
    assert reply(second, settling.rows()).settled == ["settled"]
    assert notes(sql, must_pop(sql)) == ItemNotes(None, None, None, {"charge": b"1"})


def test_of_two_who_save_a_step_the_second_gets_what_the_first_has_saved(
    connections: Connections, sql: Connection, claim: Claim
) -> None:
    one, other = connections.open(), connections.open(autocommit=True)
    assert step(one, claim, "charge", 1) == 1
    second = SaveStep(claim.lease, 0, "charge", b"2")
    saving = start(other, second)
    assert saving.waits(sql)
    one.commit()
    assert reply(second, saving.rows()) == b"1"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("done", [ALL, [(0, 1)]], ids=["all", "a part"])
@pytest.mark.parametrize("offset", [2, 9])
def test_notes_and_results_of_what_the_claim_does_not_have_are_refused(
    sql: Connection, mode: str, done: Any, offset: int
) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 4)
    first = must_pop(sql, most=2)
    second = must_pop(sql, most=2) if mode == "shared" else None
    if second is not None:
        note(sql, second, 2, progress=5)
    for wrong in (
        SettleItems([SettledClaim(first.lease, done, noted=[offset])]),
        SettleItems([SettledClaim(first.lease, done)], results=[ItemResult(0, offset, "returned", b"1")]),
    ):
        with pytest.raises(errors.InvalidParameterValue, match=f"offset {offset} of claim 1"):
            run(sql, wrong)
    assert sql.execute("SELECT count(*) FROM penstock.item_results").fetchall() == [(0,)]
    assert rows(sql) == (int(second is not None), 0)
    # Nothing was changed: it can still be settled, with what is its own.
    results = [ItemResult(0, 0, "returned", b"1")]
    right = SettleItems([SettledClaim(first.lease, [(0, 1)], noted=[0])], results=results)
    assert run(sql, right).settled == ["settled"]
    # So does a call that is repeated, because its answer was lost.
    assert run(sql, right).settled == ["repeated"]
    assert sql.execute("SELECT message_offset FROM penstock.item_results").fetchall() == [(0,)]
