"""Lines from a pipe, in batches: when enough of them came, or when the first of them has waited long enough.

So a large file goes in few transactions, and of a program that says something once a minute nothing is held back.
"""

import os
import select
import time
from collections.abc import Iterator

_PATIENCE = 1.0
_CHUNK = 1 << 20
# A batch is one transaction, and one piece of memory.
_BATCH_BYTES = 8 << 20


def batches(descriptor: int, most: int) -> Iterator[list[bytes]]:
    """Yield lists of at most so many lines, without the line feeds."""
    lines: list[bytes] = []
    size = 0
    deadline = 0.0
    for line in _lines(descriptor):
        if line is not None:
            if not lines:
                deadline = time.monotonic() + _PATIENCE
            lines.append(line)
            size += len(line)
        if len(lines) >= most or size >= _BATCH_BYTES or (lines and line is None and time.monotonic() >= deadline):
            yield lines
            lines, size = [], 0
    if lines:
        yield lines


def _lines(descriptor: int) -> Iterator[bytes | None]:
    """Yield lines as they come, and None while none does."""
    begun: list[bytes] = []
    while True:
        if not select.select([descriptor], [], [], _PATIENCE / 4)[0]:
            yield None
            continue
        chunk = os.read(descriptor, _CHUNK)
        first, *more = chunk.split(b"\n")
        begun.append(first)
        for part in more:
            yield b"".join(begun)
            begun = [part]
        if not chunk:
            break
        yield None
    if any(begun):
        yield b"".join(begun)
