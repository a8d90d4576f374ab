"""The one retry helper: growing pauses until a deadline."""

import random
import time
from collections.abc import Iterator


def pauses(seconds: float, first: float = 0.05, most: float = 1.0) -> Iterator[float]:
    """Yield how long to wait before each further attempt, and end when so many seconds have passed.

    Pauses double and are shortened at random, so that clients that failed together do not come back together.
    """
    deadline = time.monotonic() + seconds
    pause = first
    while (left := deadline - time.monotonic()) > 0:
        yield min(left, pause * random.uniform(0.5, 1))  # noqa: S311
        pause = min(most, pause * 2)
