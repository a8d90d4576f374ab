"""What a handler raises, or returns, to say what becomes of its item. Any other exception is a failure."""

from penstock.broker.arguments import Seconds, delay_time
from penstock.errors import InvalidInput


class Outcome(Exception):
    """The parent of all outcomes."""


class Retry(Outcome):
    """The item failed, which counts an attempt: it comes again after `after` seconds, or after the backoff."""

    def __init__(self, after: Seconds | None = None, reason: str | None = None) -> None:
        self.after = delay_time(after)
        self.reason = _checked(reason)
        super().__init__(reason or "the handler asked for a retry")


class Snooze(Outcome):
    """The item comes again after so many seconds. No attempt is counted."""

    def __init__(self, seconds: Seconds) -> None:
        wait = delay_time(seconds)
        if wait is None:
            raise InvalidInput("Snooze needs a number of seconds")
        self.seconds = wait
        super().__init__(f"snoozed for {wait:g} s")


class Discard(Outcome):
    """The item counts as done; nothing is pushed and it does not come again."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason = _checked(reason)
        super().__init__(reason or "discarded")


class DeadLetter(Outcome):
    """The item becomes a dead letter at once, whatever attempts it has left."""

    def __init__(self, reason: str) -> None:
        if not isinstance(reason, str) or not reason:
            raise InvalidInput(f"DeadLetter needs a reason, and {reason!r} is none")
        self.reason = reason
        super().__init__(reason)


def _checked(reason: str | None) -> str | None:
    if reason is not None and not isinstance(reason, str):
        raise InvalidInput(f"a reason is a text, and {reason!r:.100} is none")
    return reason
