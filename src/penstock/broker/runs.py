"""The times of a merged segment: how many messages in a row share which.

They come as the function `array_send` writes them, and are read a whole array at a time: a driver that makes an object
of every entry takes longer for it than all else takes that is done for a message.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import accumulate

# An array begins with twenty bytes about itself; before each entry stands its length, in four.
_ARRAY_HEAD = 20
_ENTRY_HEAD = 4
# When the server's clock is at 0.
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def read_runs(counts: bytes, times: bytes, skip: int, count: int) -> "tuple[array[int], array[int]]":
    """Return the runs of so many messages after the first `skip`: how many there are of each, and their times."""
    lengths, stamps = _numbers(counts, "i"), _numbers(times, "q")
    ends = list(accumulate(lengths))
    stop = skip + count
    first, last = bisect_right(ends, skip), bisect_left(ends, stop)
    begin = ends[first] - lengths[first]
    lengths = lengths[first : last + 1]
    lengths[0] -= skip - begin
    lengths[-1] -= ends[last] - stop
    return lengths, stamps[first : last + 1]


def moments(stamps: Iterable[int]) -> list[datetime]:
    """Turn times as the server counts them into datetimes."""
    return [EPOCH + timedelta(0, 0, stamp) for stamp in stamps]


def stamp_of(moment: datetime) -> int:
    """Turn a datetime into a time as the server counts them."""
    return (moment - EPOCH) // _MICROSECOND


def _numbers(sent: bytes, code: str) -> "array[int]":
    numbers = array(code)
    size = numbers.itemsize
    step = _ENTRY_HEAD + size
    packed = bytearray((len(sent) - _ARRAY_HEAD) // step * size)
    for byte in range(size):
        packed[byte::size] = sent[_ARRAY_HEAD + _ENTRY_HEAD + byte :: step]
    numbers.frombytes(packed)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
