"""How long an item waits that failed: twice as long after each attempt, and not all that failed together at once."""

import random
from collections.abc import Mapping
from typing import Any

# A pause is longer or shorter by up to this share.
JITTER = 0.2


class Backoff:
    """The backoff of a group, by its settings."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._initial = float(settings["backoff_initial"])
        self._factor = float(settings["backoff_factor"])
        self._longest = float(settings["backoff_max"])

    def after(self, attempt: int) -> float:
        """Return how many seconds to wait after an attempt, numbered from 1."""
        # Not for secrets: it only has to spread retries over time.
        spread = 1 + JITTER * random.uniform(-1, 1)  # noqa: S311
        try:
            pause = self._initial * self._factor ** max(0, attempt - 1)
        except OverflowError:
            pause = self._longest
        return min(pause, self._longest) * spread
