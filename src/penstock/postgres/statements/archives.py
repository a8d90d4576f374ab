"""The statements of archives."""

from collections.abc import Sequence

from penstock.broker.archives import (
    Archivable,
    Archived,
    ArchivedLetter,
    ArchiveInfo,
    BegunArchive,
    DroppedArchived,
)
from penstock.broker.operations.archives import (
    BeginArchive,
    CopyLetters,
    DropArchived,
    FindArchivable,
    FindArchivedAt,
    ForgetArchive,
    GetArchivedFloors,
    GetPublishedBatch,
    ListArchivedLetters,
    ListArchives,
    PlanArchived,
    RecordArchive,
)
from penstock.postgres.statements.call import Call, Row, scalar, statement


@statement(ListArchives)
def list_archives(wanted: ListArchives) -> Call[list[ArchiveInfo]]:
    return Call(
        "SELECT * FROM penstock.list_archives(%s::text)",
        (wanted.queue,),
        lambda rows: [ArchiveInfo(*row) for row in rows],
    )


@statement(FindArchivable)
def find_archivable(wanted: FindArchivable) -> Call[list[Archivable]]:
    return Call(
        "SELECT * FROM penstock.archive_ranges(%s::text, %s::timestamptz, %s::text[])",
        (wanted.queue, wanted.before, None if wanted.partitions is None else list(wanted.partitions)),
        lambda rows: [Archivable(*row) for row in rows],
    )


@statement(BeginArchive)
def begin_archive(wanted: BeginArchive) -> Call[BegunArchive]:
    def parse(rows: Sequence[Row]) -> BegunArchive:
        run, runs, locations = rows[0]
        return BegunArchive(run, list(zip(runs or [], locations or [], strict=True)))

    return Call("SELECT * FROM penstock.begin_archive(%s::text, %s::text)", (wanted.queue, wanted.location), parse)


@statement(ForgetArchive)
def forget_archive(wanted: ForgetArchive) -> Call[bool]:
    return Call("SELECT penstock.forget_archive(%s::text)", (wanted.run,), lambda rows: bool(rows[0][0]))


@statement(RecordArchive)
def record_archive(wanted: RecordArchive) -> Call[int]:
    files = wanted.files
    rows = [(index, part) for index, file in enumerate(files, 1) for part in file.ranges]
    return Call(
        "SELECT penstock.record_archive(%s::text, %s::text[], %s::bigint[], %s::text[], %s::bigint[], %s::bigint[], "
        "%s::bigint[], %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], %s::timestamptz[], %s::timestamptz[])",
        (
            wanted.run,
            [file.path for file in files],
            [file.bytes for file in files],
            [file.checksum for file in files],
            [part.partition_id for _, part in rows],
            [part.start for _, part in rows],
            [part.stop for _, part in rows],
            [index for index, _ in rows],
            [part.row_group for _, part in rows],
            [part.first_row for _, part in rows],
            [part.bytes for _, part in rows],
            [part.first_time for _, part in rows],
            [part.last_time for _, part in rows],
        ),
        scalar,
    )


@statement(DropArchived)
def drop_archived(wanted: DropArchived) -> Call[DroppedArchived]:
    return Call(
        "SELECT * FROM penstock.drop_archived(%s::text, %s::text[], %s::bigint)",
        (wanted.queue, None if wanted.partitions is None else list(wanted.partitions), wanted.after),
        lambda rows: DroppedArchived(*rows[0]),
    )


@statement(GetArchivedFloors)
def get_archived_floors(wanted: GetArchivedFloors) -> Call[list[int]]:
    return Call(
        "SELECT penstock.archived_floors(%s::bigint[], %s::bigint[])",
        (list(wanted.ids), list(wanted.floors)),
        lambda rows: rows[0][0] or [],
    )


@statement(PlanArchived)
def plan_archived(wanted: PlanArchived) -> Call[list[Archived]]:
    return Call(
        "SELECT * FROM penstock.plan_archived(%s::bigint[], %s::bigint[], %s::bigint[])",
        (list(wanted.ids), list(wanted.starts), list(wanted.stops)),
        lambda rows: [Archived(*row) for row in rows],
    )


@statement(FindArchivedAt)
def find_archived_at(wanted: FindArchivedAt) -> Call[list[tuple[Archived, bool]]]:
    return Call(
        "SELECT * FROM penstock.archived_at(%s::bigint[], %s::timestamptz)",
        (list(wanted.ids), wanted.moment),
        lambda rows: [(Archived(*row[:-1]), row[-1]) for row in rows],
    )


@statement(GetPublishedBatch)
def get_published_batch(wanted: GetPublishedBatch) -> Call[int | None]:
    return Call(
        "SELECT messages FROM penstock.published_batch(%s::text)",
        (wanted.writer,),
        lambda rows: rows[0][0] if rows else None,
    )


@statement(ListArchivedLetters)
def list_archived_letters(wanted: ListArchivedLetters) -> Call[list[ArchivedLetter]]:
    return Call(
        "SELECT * FROM penstock.archived_letters(%s::bigint)",
        (wanted.stage_id,),
        lambda rows: [ArchivedLetter(*row) for row in rows],
    )


@statement(CopyLetters)
def copy_letters(wanted: CopyLetters) -> Call[int]:
    return Call(
        "SELECT penstock.copy_letters(%s::bigint, %s::bigint[], %s::bigint[], %b::bytea[], %s::text[], %s::text[], "
        "%s::timestamptz[])",
        (wanted.stage_id, *([copy[column] for copy in wanted.copies] for column in range(6))),
        scalar,
    )
