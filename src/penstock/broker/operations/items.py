"""What workers handle item by item: settle, note, remember steps; and what others want to know of a message."""

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import msgspec

from penstock.broker.arguments import delay_time, storable
from penstock.broker.claims import Lease
from penstock.broker.ids import parse_id
from penstock.broker.infos import MessageState
from penstock.broker.items import (
    OUTCOMES,
    RESULTS,
    CancelledItem,
    ItemNote,
    ItemNotes,
    ItemOutcome,
    ItemResult,
    KeptResult,
    Output,
    SettledClaim,
    SettledItems,
)
from penstock.broker.names import check_names, check_offset, check_step
from penstock.broker.operations.claiming import Pop
from penstock.broker.operations.operation import Operation, Repeatable
from penstock.errors import InvalidInput


class SettleItems(Operation[SettledItems], frozen=True):
    """Settle items of claims, each in its own way, push their outputs, and claim what is next, in one transaction.

    Each claim is settled, or nothing of it changes and none of its outputs is pushed; see `SettledItems`. So it can be
    run again when nobody knows whether it took effect: outputs are pushed once. Where it raises, nothing was settled.
    The pop neither creates queue nor group; it claims nothing where there is none.
    """

    claims: Sequence[SettledClaim]
    outputs: Sequence[Output] = ()
    pop: Pop | None = None
    durable: bool = True
    results: Sequence[ItemResult] = ()

    def __post_init__(self) -> None:
        if not self.claims:
            raise InvalidInput("give at least one claim to settle")
        if len({claim.lease for claim in self.claims}) < len(self.claims):
            raise InvalidInput("each claim is settled once; give all of its items together")
        msgspec.structs.force_setattr(self, "claims", [_checked(claim) for claim in self.claims])
        for output in self.outputs:
            if not 0 <= output.claim < len(self.claims):
                raise InvalidInput(f"an output is of claim {output.claim!r}, and there are {len(self.claims)} claims")
            if output.push.unique_keys is not None:
                raise InvalidInput("an output cannot have a unique_key; it is pushed once as it is")
        if self.results:
            results = [_checked_result(each, len(self.claims)) for each in self.results]
            msgspec.structs.force_setattr(self, "results", results)


class NoteItems(Operation[list[bool]], frozen=True):
    """Note how far items are; for each, whether its lease was live and it is noted."""

    notes: Sequence[ItemNote]

    def __post_init__(self) -> None:
        if not self.notes or len({(note.lease, note.offset) for note in self.notes}) < len(self.notes):
            raise InvalidInput("give at least one note, and one for each item")
        msgspec.structs.force_setattr(self, "notes", [_checked_note(note) for note in self.notes])


class SaveStep(Operation[bytes | None], frozen=True):
    """Remember the result of a step, as JSON; the reply is the result that is kept, None where the lease is lost.

    The first result stays, so it does no harm to save it again.
    """

    lease: Lease
    offset: int
    name: str
    result: bytes

    def __post_init__(self) -> None:
        _check_held(self.lease, self.offset)
        check_step(self.name)


class ReadNotes(Repeatable[ItemNotes | None], frozen=True):
    """Read what earlier attempts of an item noted, and its steps; None where the lease is lost."""

    lease: Lease
    offset: int

    def __post_init__(self) -> None:
        _check_held(self.lease, self.offset)


class GetResult(Repeatable[list[KeptResult]], frozen=True):
    """Return what is known of the result of a message, in one group or in each."""

    message_id: UUID
    group: str | None = None

    def __post_init__(self) -> None:
        if self.group is not None:
            check_names(self.group, what=("group",))


class GetState(Repeatable[list[MessageState] | None], frozen=True):
    """Return what a message is to each group; None where there is no such message."""

    message_id: UUID


class CancelMessages(Operation[list[UUID]], frozen=True):
    """Cancel messages, for one group or all; the reply has the ids for which it was in time."""

    message_ids: Sequence[UUID]
    group: str | None = None

    def __post_init__(self) -> None:
        if self.group is not None:
            check_names(self.group, what=("group",))
        msgspec.structs.force_setattr(self, "message_ids", _message_ids(self.message_ids))


class ListCancelled(Repeatable[list[CancelledItem]], frozen=True):
    """List what was cancelled, and waits or is in flight, of (group id, partition id) pairs."""

    places: Sequence[tuple[int, int]]


_MOST_PERCENT = 100


def _message_ids(given: Iterable[UUID | str]) -> list[UUID]:
    if isinstance(given, str | bytes | Mapping | UUID) or not isinstance(given, Iterable):
        raise InvalidInput(f"{given!r} is not a list of message ids")
    return [parse_id(each) for each in given]


def _check_held(lease: Lease, offset: int) -> None:
    check_offset(offset)
    if lease.lease_id is None or offset is None:
        raise InvalidInput("give the lease_id of the claim and the offset of the item")


def _checked_note(given: ItemNote) -> ItemNote:
    _check_held(given.lease, given.offset)
    progress = given.progress
    if progress is not None and not 0 <= progress <= _MOST_PERCENT:
        raise InvalidInput(f"progress is {progress!r} but must be from 0 to 100 percent")
    return given._replace(
        progress=None if progress is None else float(progress),
        note=None if given.note is None else storable(given.note),
    )


def _checked_result(given: ItemResult, claims: int) -> ItemResult:
    check_offset(given.offset)
    if not 0 <= given.claim < claims or given.offset is None or given.state not in RESULTS:
        raise InvalidInput(f"{given!r:.200} is not a result of an item: it is one of {', '.join(RESULTS)}")
    keep_for = delay_time(given.keep_for)
    if not keep_for:
        raise InvalidInput(f"keep_for is {given.keep_for!r} but must be more than 0 seconds")
    return given._replace(keep_for=keep_for, error=None if given.error is None else storable(given.error))


def _checked(claim: SettledClaim) -> SettledClaim:
    """Return a claim to settle with texts that can be stored."""
    if claim.lease.lease_id is None:
        raise InvalidInput("give the lease_id of each claim")
    if not (claim.done or claim.outcomes or claim.release_rest):
        raise InvalidInput("nothing of the claim is settled; give what is done, outcomes, or release_rest")
    for start, stop in claim.done:
        check_offset(start)
        check_offset(stop)
        if (start is None) != (stop is None) or (start is not None and stop is not None and start >= stop):
            raise InvalidInput(f"({start!r}, {stop!r}) is not a range of offsets that are done")
    for offset in claim.noted:
        check_offset(offset)
    if not claim.outcomes:
        return claim
    return claim._replace(outcomes=[_checked_outcome(each) for each in claim.outcomes])


def _checked_outcome(given: ItemOutcome) -> ItemOutcome:
    check_offset(given.offset)
    if given.offset is None or given.outcome not in OUTCOMES:
        raise InvalidInput(f"{given!r:.200} is not an outcome: it is one of {', '.join(OUTCOMES)}, of an offset")
    if given.outcome == "snoozed" and given.wait is None:
        raise InvalidInput(f"offset {given.offset} is snoozed; say for how long with wait")
    return ItemOutcome(
        given.offset,
        given.outcome,
        delay_time(given.wait),
        *(None if text is None else storable(text) for text in (given.error, given.reason, given.traceback)),
    )
