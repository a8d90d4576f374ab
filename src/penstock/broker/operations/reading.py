"""Read messages by offset, by time or by id."""

from datetime import datetime
from uuid import UUID

from penstock.broker.ids import address
from penstock.broker.messages import StoredMessage
from penstock.broker.names import check_moment, check_names, check_offset
from penstock.broker.operations.operation import Repeatable
from penstock.broker.places import Place, Slices


class Read(Repeatable[Slices], frozen=True):
    """Read one page of a range, still packed."""

    place: Place
    start: int = 0
    stop: int | None = None
    start_time: datetime | None = None
    stop_time: datetime | None = None
    max_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        check_moment(self.start_time)
        check_moment(self.stop_time)
        check_offset(self.start)
        check_offset(self.stop)
        check_names(*self.place)


class Get(Repeatable[StoredMessage], frozen=True):
    """Find one message by its id; raises NotFound."""

    message_id: UUID

    def __post_init__(self) -> None:
        address(self.message_id)
