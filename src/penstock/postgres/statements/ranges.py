"""The statements of a reader of many partitions at once that keeps positions of its own."""

from penstock.broker.operations.ranges import (
    AdvanceReader,
    EnsureReader,
    FindOffsets,
    FindPartitions,
    GetBacklog,
    GetDeletedEnds,
    GetHeads,
    GetNextSnapshot,
    GetReaderPositions,
    GetSnapshots,
    KeepSnapshot,
    NoteEpoch,
    PlanRanges,
    ReadRanges,
    SaveSnapshot,
)
from penstock.broker.packing import Slice
from penstock.broker.ranges import (
    Advanced,
    Backlog,
    Heads,
    PartitionHead,
    PlannedPage,
    SavedSnapshot,
    SnapshotName,
    SnapshotRow,
)
from penstock.postgres.statements.call import Call, nothing, select_slices, slice_of, statement


@statement(GetHeads)
def get_heads(wanted: GetHeads) -> Call[Heads]:
    return Call(
        "SELECT * FROM penstock.source_heads(%s::text[], %s::text, %s::boolean, %s::text, %s::boolean)",
        (
            None if wanted.queues is None else list(wanted.queues),
            wanted.pattern,
            wanted.floors,
            wanted.reader,
            wanted.skip_missing,
        ),
        lambda rows: Heads(*[column or [] for column in rows[0]]),
    )


@statement(FindPartitions)
def find_partitions(wanted: FindPartitions) -> Call[dict[int, PartitionHead]]:
    return Call(
        "SELECT * FROM penstock.source_places(%s::bigint[])",
        (list(wanted.ids),),
        lambda rows: {row[0]: PartitionHead(*row) for row in rows},
    )


@statement(GetDeletedEnds)
def get_deleted_ends(wanted: GetDeletedEnds) -> Call[dict[int, int]]:
    return Call(
        "SELECT * FROM penstock.deleted_ends(%s::bigint[])",
        (list(wanted.ids),),
        lambda rows: dict(map(tuple, rows)),
    )


@statement(FindOffsets)
def find_offsets(wanted: FindOffsets) -> Call[list[int]]:
    return Call(
        "SELECT penstock.offsets_at(%s::bigint[], %s::timestamptz)",
        (list(wanted.ids), wanted.moment),
        lambda rows: rows[0][0] or [],
    )


@statement(PlanRanges)
def plan_ranges(wanted: PlanRanges) -> Call[list[PlannedPage]]:
    return Call(
        "SELECT * FROM penstock.plan_ranges(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint)",
        (list(wanted.ids), list(wanted.starts), list(wanted.stops), wanted.page_bytes),
        lambda rows: [PlannedPage(*row) for row in rows],
    )


@statement(GetBacklog)
def get_backlog(wanted: GetBacklog) -> Call[Backlog]:
    return Call(
        "SELECT * FROM penstock.backlog_by_time(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint, %s::integer)",
        (list(wanted.ids), list(wanted.starts), list(wanted.stops), wanted.max_messages, wanted.max_pieces),
        lambda rows: Backlog(*[column or [] for column in rows[0]]),
    )


@statement(ReadRanges)
def read_ranges(wanted: ReadRanges) -> Call[list[tuple[int, Slice]]]:
    return Call(
        select_slices("range_position", "read_ranges(%s::bigint[], %s::bigint[], %s::bigint[])"),
        (list(wanted.ids), list(wanted.starts), list(wanted.stops)),
        lambda rows: [(row[0] - 1, slice_of(row[1:])) for row in rows],
    )


@statement(SaveSnapshot)
def save_snapshot(wanted: SaveSnapshot) -> Call[SavedSnapshot]:
    return Call(
        "SELECT * FROM penstock.save_snapshot(%s::bigint, %s::text, %s::bigint[], %s::bigint[], %s::bigint[], "
        "%s::bigint[], %s::bigint[])",
        (
            *(wanted.parent or (0, None)),
            list(wanted.ids),
            list(wanted.starts),
            list(wanted.stops),
            None if wanted.all_ids is None else list(wanted.all_ids),
            None if wanted.all_positions is None else list(wanted.all_positions),
        ),
        lambda rows: SavedSnapshot(SnapshotName(*rows[0][:2]), rows[0][2]),
    )


@statement(GetSnapshots)
def get_snapshots(wanted: GetSnapshots) -> Call[list[SnapshotRow]]:
    return Call(
        "SELECT * FROM penstock.snapshot_chain(%s::bigint, %s::text, %s::bigint)",
        (*wanted.name, wanted.down_to),
        lambda rows: [SnapshotRow(*row) for row in rows],
    )


@statement(GetNextSnapshot)
def get_next_snapshot(wanted: GetNextSnapshot) -> Call[SnapshotName | None]:
    return Call(
        "SELECT * FROM penstock.next_snapshot(%s::bigint)",
        (wanted.snapshot_id,),
        lambda rows: SnapshotName(*rows[0]) if rows else None,
    )


@statement(KeepSnapshot)
def keep_snapshot(wanted: KeepSnapshot) -> Call[None]:
    return Call("SELECT penstock.keep_snapshot(%s::bigint)", (wanted.snapshot_id,), nothing)


@statement(NoteEpoch)
def note_epoch(wanted: NoteEpoch) -> Call[None]:
    return Call(
        # As with what is staged: `FlushStages` waits for the log on disk, and this one need not.
        "SELECT penstock.note_epoch(%s::text, %s::text, %s::bigint, %s::bigint) "
        "FROM set_config('synchronous_commit', 'off', true)",
        (wanted.writer, wanted.run, wanted.epoch, wanted.snapshot_id),
        nothing,
    )


@statement(EnsureReader)
def ensure_reader(wanted: EnsureReader) -> Call[None]:
    return Call("SELECT penstock.ensure_reader(%s::text, %s::text)", (wanted.queue, wanted.group), nothing)


@statement(AdvanceReader)
def advance_reader(wanted: AdvanceReader) -> Call[Advanced]:
    return Call(
        "SELECT * FROM penstock.advance_reader(%s::text, %s::text, %s::bigint[], %s::bigint[], %s::bigint, "
        "%s::boolean)",
        (wanted.queue, wanted.group, list(wanted.ids), list(wanted.offsets), wanted.lineage, wanted.takes_over),
        lambda rows: Advanced(*rows[0]),
    )


@statement(GetReaderPositions)
def get_reader_positions(wanted: GetReaderPositions) -> Call[tuple[list[int], list[int]]]:
    return Call(
        "SELECT * FROM penstock.reader_positions(%s::text[], %s::text)",
        (list(wanted.queues), wanted.group),
        lambda rows: (rows[0][0] or [], rows[0][1] or []),
    )
