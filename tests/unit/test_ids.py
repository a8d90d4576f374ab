"""A message id is an address: 48 bits of milliseconds, 32 of partition id, 42 of offset."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import InvalidInput
from penstock.broker.ids import Address, address, message_id, milliseconds

MOST_PARTITION, MOST_OFFSET, MOST_MS = (1 << 32) - 1, (1 << 42) - 1, (1 << 48) - 1
partition_ids = st.one_of(st.sampled_from([0, 1, MOST_PARTITION]), st.integers(0, MOST_PARTITION))
offsets = st.one_of(st.sampled_from([0, 1, MOST_OFFSET]), st.integers(0, MOST_OFFSET))
moments = st.one_of(st.sampled_from([0, 1, MOST_MS]), st.integers(0, MOST_MS))
addresses = st.builds(Address, partition_ids, offsets, moments)


@given(addresses)
def test_an_id_gives_back_the_address_it_was_made_of(where: Address) -> None:
    assert address(message_id(*where)) == where
    assert address(str(message_id(*where))) == where


@given(addresses)
def test_an_id_is_a_uuid_of_version_8(where: Address) -> None:
    made = message_id(*where)
    assert made.version == 8
    assert made.variant == "specified in RFC 4122"


@given(addresses, addresses)
def test_ids_sort_by_time_then_partition_then_offset(one: Address, other: Address) -> None:
    def order(where: Address) -> tuple[int, int, int]:
        return where.created_ms, where.partition_id, where.offset

    assert (message_id(*one) < message_id(*other)) == (order(one) < order(other))
    assert (message_id(*one) == message_id(*other)) == (one == other)


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)))
def test_milliseconds_are_exact(moment: datetime) -> None:
    elapsed = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert milliseconds(moment) == elapsed


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "12345678-1234-1234-1234-12345678901", str(UUID(int=0)), "a3bb189e-8bf9-4888-9912-ace4e6543002"],
)
def test_what_is_not_a_message_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a message id"):
        address(text)


@pytest.mark.parametrize("thing", [None, 7, b"x", 1.5])
def test_what_is_not_even_a_uuid_is_refused(thing: object) -> None:
    with pytest.raises(InvalidInput, match="is not a message id"):
        address(thing)  # type: ignore[arg-type]
