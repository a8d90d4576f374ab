"""The statements that read messages."""

from collections.abc import Sequence

from penstock.broker.messages import StoredMessage
from penstock.broker.operations.reading import Get, Read
from penstock.broker.packing import unpack
from penstock.broker.places import Slices
from penstock.errors import NotFound
from penstock.postgres.statements.call import Call, Row, select_slices, slice_of, statement


@statement(Read)
def read(wanted: Read) -> Call[Slices]:
    def parse(rows: Sequence[Row]) -> Slices:
        if not rows:
            return Slices(0, [], None)
        return Slices(rows[0][0], [slice_of(row[2:]) for row in rows], rows[0][1])

    return Call(
        select_slices(
            "partition_id, next_offset",
            "read_segments(%s::text, %s::text, %s::bigint, %s::bigint, %s::timestamptz, %s::timestamptz, %s::bigint)",
        ),
        (*wanted.place, wanted.start, wanted.stop, wanted.start_time, wanted.stop_time, wanted.max_bytes),
        parse,
    )


@statement(Get)
def get(wanted: Get) -> Call[StoredMessage]:
    def parse(rows: Sequence[Row]) -> StoredMessage:
        if not rows:
            raise NotFound(f"there is no message {wanted.message_id}, or retention has dropped it")
        queue, partition, partition_id, *columns = rows[0]
        return unpack(queue, partition, partition_id, slice_of(columns))[0]

    return Call(
        select_slices("queue_name, partition_name, partition_id", "get_segment(%s::uuid)"),
        (str(wanted.message_id),),
        parse,
    )
