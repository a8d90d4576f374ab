"""The statements of what workers settle item by item."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any
from uuid import UUID

import msgspec

from penstock.broker.arguments import storable
from penstock.broker.claims import Claim, ClaimRange
from penstock.broker.infos import MessageState
from penstock.broker.items import (
    SETTLED,
    CancelledItem,
    ItemNotes,
    ItemResult,
    KeptResult,
    Output,
    SettledClaim,
    SettledItems,
)
from penstock.broker.operations.claiming import Ack, AckAndPop
from penstock.broker.operations.items import (
    CancelMessages,
    GetResult,
    GetState,
    ListCancelled,
    NoteItems,
    ReadNotes,
    SaveStep,
    SettleItems,
)
from penstock.broker.packing import Segment, join
from penstock.broker.places import Place
from penstock.broker.pushing import Due
from penstock.postgres.statements import claiming
from penstock.postgres.statements.call import Call, Row, scalar, segment_arrays, statement

_SETTLE = (
    "penstock.settle_items(%s::integer[], %s::bigint[], %s::uuid[], %s::boolean[], "
    "%s::integer[], %s::bigint[], %s::bigint[], "
    "%s::integer[], %s::bigint[], %s::text[], %s::float8[], %s::text[], %s::text[], %s::text[], "
    "%s::integer[], %s::integer[], %s::integer[], %s::text[], %s::text[], %s::integer[], %b::bytea[], %b::bytea[], "
    "%b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[], %s::float8[], %s::timestamptz[], %s::text[], "
    "%s::integer[], %s::bigint[], "
    "%s::integer[], %s::bigint[], %s::text[], %b::bytea[], %s::text[], %s::float8[], %s::boolean)"
)
_SETTLE_ALONE = f"SELECT s.settled, s.answers FROM {_SETTLE} s"  # noqa: S608
# The pop depends on what was settled, and so comes after it.
_SETTLE_AND_POP = claiming.select_claims(
    "ack_and_pop('{}', '{}', '{}', '{}', '{}', %s::text, %s::text, %s::text, %s::integer, %s::bigint, %s::integer, "
    "%s::float8, %s::text, %s::boolean, %s::bigint[], s.must_last OR %s::boolean)",
    "s.settled, s.answers,",
).replace("FROM penstock.ack_and_pop", f"FROM {_SETTLE} s CROSS JOIN LATERAL penstock.ack_and_pop")
_SETTLE_AND_POP_AHEAD = _SETTLE_AND_POP.replace(
    "s.must_last OR %s::boolean)", "s.must_last OR %s::boolean, ahead => true)"
)
_NOT_DUE = Due(None, None)


@statement(SettleItems)
def settle_items(wanted: SettleItems) -> Call[SettledItems]:
    claims, pop = wanted.claims, wanted.pop
    if not wanted.outputs and not wanted.results and all(claim.whole and not claim.noted for claim in claims):
        return _acknowledge(wanted)
    durable = wanted.durable or (pop is not None and (pop.durable or pop.auto_ack))
    columns = (
        *_claims(claims),
        *_done(claims),
        *_outcomes(claims),
        *_outputs(wanted.outputs),
        *_noted(claims),
        *_results(wanted.results),
        durable,
    )
    if pop is None:
        return Call(_SETTLE_ALONE, columns, lambda rows: _settled(claims, rows[0], []))
    queue = pop.queue

    def parse(rows: Sequence[Row]) -> SettledItems:
        found = [row[2:] for row in rows if row[3] is not None]
        return _settled(claims, rows[0], claiming.claims_of(queue, found))

    return Call(_SETTLE_AND_POP_AHEAD if pop.ahead else _SETTLE_AND_POP, (*columns, *claiming.pop_columns(pop)), parse)


def _acknowledge(wanted: SettleItems) -> Call[SettledItems]:
    """Return the call where all is done and nothing else: an acknowledgement, at its cost."""
    ranges = [ClaimRange(*claim.lease) for claim in wanted.claims]
    durable = wanted.durable

    def answer(acked: Sequence[bool], claims: list[Claim]) -> SettledItems:
        return SettledItems([SETTLED if each else None for each in acked], [[] for _ in acked], claims)

    if wanted.pop is None:
        ack = claiming.ack(Ack(ranges, durable=durable))
        return Call(ack.sql, ack.parameters, lambda rows: answer(ack.parse(rows), []), hot=True)
    pop = wanted.pop if wanted.pop.durable or not durable else msgspec.structs.replace(wanted.pop, durable=True)
    both = claiming.ack_and_pop(AckAndPop(ranges, pop))
    return Call(both.sql, both.parameters, lambda rows: answer(*both.parse(rows)), hot=True)


def _settled(claims: Sequence[SettledClaim], row: Row, popped: list[Claim]) -> SettledItems:
    settled, answers = row[0], iter(row[1])
    return SettledItems(settled, [[next(answers) for _ in claim.outcomes] for claim in claims], popped)


def _claims(claims: Sequence[SettledClaim]) -> tuple[Any, ...]:
    return (
        [claim.lease.group_id for claim in claims],
        [claim.lease.partition_id for claim in claims],
        [claim.lease.lease_id for claim in claims],
        [claim.release_rest for claim in claims],
    )


def _done(claims: Sequence[SettledClaim]) -> tuple[Any, ...]:
    done = [(number, start, stop) for number, claim in enumerate(claims, 1) for start, stop in claim.done]
    return tuple(map(list, zip(*done, strict=True))) if done else (None, None, None)


def _outcomes(claims: Sequence[SettledClaim]) -> tuple[Any, ...]:
    outcomes = [(number, *each) for number, claim in enumerate(claims, 1) for each in claim.outcomes]
    return tuple(map(list, zip(*outcomes, strict=True))) if outcomes else (None,) * 7


def _noted(claims: Sequence[SettledClaim]) -> tuple[Any, ...]:
    noted = [(number, offset) for number, claim in enumerate(claims, 1) for offset in claim.noted]
    return tuple(map(list, zip(*noted, strict=True))) if noted else (None, None)


def _results(results: Sequence[ItemResult]) -> tuple[Any, ...]:
    columns = [(each.claim + 1, *each[1:]) for each in results]
    return tuple(map(list, zip(*columns, strict=True))) if columns else (None,) * 6


class _Outputs:
    """The segments of outputs, and of which claims their messages are."""

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._segments: list[Segment] = []
        self._runs: list[tuple[int, int, int]] = []
        self._dues: list[Due] = []
        self._ids: list[str | None] = []

    def add(self, place: Place, outputs: Sequence[Output]) -> None:
        """Add what goes to one partition; small outputs become one segment, whichever claims they are of."""
        for plain, alike in groupby(outputs, lambda output: output.push.plain):
            if plain:
                parts = list(alike)
                owners = [(part.claim + 1, part.push.count) for part in parts if part.push.count]
                if owners:
                    self._append(place, join([each for part in parts for each in part.push.segments]), owners)
                self._ids += [None] * sum(count for _, count in owners)
                continue
            for part in alike:
                push = part.push
                self._append(place, push.segments, [(part.claim + 1, push.count)], push.due or _NOT_DUE)
                self._ids += push.dedupe_ids or [None] * push.count

    def _append(
        self, place: Place, segments: Sequence[Segment], owners: Sequence[tuple[int, int]], due: Due = _NOT_DUE
    ) -> None:
        rest = iter(owners)
        claim = left = 0
        for segment in segments:
            self._places.append(place)
            self._segments.append(segment)
            self._dues.append(due)
            free = segment.count
            while free:
                if not left:
                    claim, left = next(rest)
                taken = min(left, free)
                self._runs.append((len(self._segments), claim, taken))
                left -= taken
                free -= taken

    def columns(self) -> tuple[Any, ...]:
        """Return them as `settle_items` takes them."""
        if not self._segments:
            return (None,) * 15
        delays = [None if due.delay is None else float(due.delay) for due in self._dues]
        return (
            *map(list, zip(*self._runs, strict=True)),
            [place.queue for place in self._places],
            [place.partition for place in self._places],
            *segment_arrays(self._segments),
            _unless_empty(delays),
            _unless_empty([due.at for due in self._dues]),
            _unless_empty(self._ids),
        )


def _outputs(outputs: Sequence[Output]) -> tuple[Any, ...]:
    by_place: dict[Place, list[Output]] = {}
    for output in outputs:
        by_place.setdefault(output.push.place, []).append(output)
    found = _Outputs()
    for place, several in by_place.items():
        found.add(place, several)
    return found.columns()


def _unless_empty(column: list[Any]) -> list[Any] | None:
    return None if column.count(None) == len(column) else column


@statement(NoteItems)
def note_items(wanted: NoteItems) -> Call[list[bool]]:
    notes = wanted.notes
    return Call(
        "SELECT penstock.note_items(%s::integer[], %s::bigint[], %s::uuid[], %s::bigint[], %s::float8[], %s::text[], "
        "%s::json[])",
        (
            *(list(column) for column in zip(*(note.lease for note in notes), strict=True)),
            [note.offset for note in notes],
            [note.progress for note in notes],
            [note.note for note in notes],
            [None if note.checkpoint is None else _json(note.checkpoint) for note in notes],
        ),
        scalar,
    )


@statement(SaveStep)
def save_step(wanted: SaveStep) -> Call[bytes | None]:
    return Call(
        "SELECT penstock.save_step(%s::integer, %s::bigint, %s::uuid, %s::bigint, %s::text, %s::json)::text",
        (*wanted.lease, wanted.offset, wanted.name, _json(wanted.result)),
        lambda rows: None if rows[0][0] is None else rows[0][0].encode(),
    )


@statement(ReadNotes)
def read_notes(wanted: ReadNotes) -> Call[ItemNotes | None]:
    def parse(rows: Sequence[Row]) -> ItemNotes | None:
        if not rows:
            return None
        progress, note, checkpoint, names, results = rows[0]
        steps = {name: result.encode() for name, result in zip(names, results, strict=True)}
        return ItemNotes(progress, note, None if checkpoint is None else checkpoint.encode(), steps)

    return Call(
        "SELECT progress, note, checkpoint::text, step_names, step_results::text[] "
        "FROM penstock.read_notes(%s::integer, %s::bigint, %s::uuid, %s::bigint)",
        (*wanted.lease, wanted.offset),
        parse,
    )


@statement(GetResult)
def get_result(wanted: GetResult) -> Call[list[KeptResult]]:
    return Call(
        "SELECT * FROM penstock.get_result(%s::uuid, %s::text)",
        (wanted.message_id, wanted.group),
        lambda rows: [KeptResult(*row) for row in rows],
    )


@statement(GetState)
def get_state(wanted: GetState) -> Call[list[MessageState] | None]:
    def parse(rows: Sequence[Row]) -> list[MessageState] | None:
        # One row without a group where the queue has none; a group that began later has no state.
        return [MessageState(*row) for row in rows if row[1] is not None] if rows else None

    return Call(
        "SELECT consumer_group, state, attempt, due_at, consumer, error, dead_letter_id, cancelled_at, progress, note, "
        "noted_at FROM penstock.message_state(%s::uuid)",
        (wanted.message_id,),
        parse,
    )


@statement(CancelMessages)
def cancel_messages(wanted: CancelMessages) -> Call[list[UUID]]:
    return Call(
        "SELECT penstock.cancel_messages(%s::uuid[], %s::text)", (list(wanted.message_ids), wanted.group), scalar
    )


@statement(ListCancelled)
def list_cancelled(wanted: ListCancelled) -> Call[list[CancelledItem]]:
    return Call(
        "SELECT * FROM penstock.list_cancelled(%s::integer[], %s::bigint[])",
        ([group for group, _ in wanted.places], [partition for _, partition in wanted.places]),
        lambda rows: [CancelledItem(*row) for row in rows],
    )


def _json(encoded: bytes) -> str:
    """Return JSON as the text that PostgreSQL takes; it is refused there if it is none."""
    return storable(encoded.decode("utf-8", "backslashreplace"))
