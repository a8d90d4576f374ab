"""The one hierarchy of errors.

Whatever penstock raises is a `PenstockError`. Each child answers one question of the caller: is it my
input, my set-up, or a moment to try again? The message always says what to do next.
"""


class PenstockError(Exception):
    """The parent of all that penstock raises."""


class InvalidInput(PenstockError, ValueError):
    """The caller's input cannot be taken; nothing was changed."""


class InvalidFlows(InvalidInput):
    """Flows cannot run as they are written; each line of the message is a problem, with the line of the file."""


class MessageTooLarge(InvalidInput):
    """A message is over its queue's `max_message_bytes`; nothing was changed."""


class AlreadyExists(InvalidInput):
    """What was to be created is there already; nothing was changed."""


class NotFound(PenstockError, LookupError):
    """The queue, partition or message that was named does not exist."""


class CheckpointError(PenstockError):
    """A query's checkpoint does not fit what was published; nothing was changed."""


class DataLost(PenstockError):
    """Messages that a query has still to read are gone, by retention or by deletion; nothing was changed."""


class LeaseLost(PenstockError):
    """A claim's lease has expired or is another consumer's; nothing was changed, and the messages come again."""


class Retryable(PenstockError):
    """Nothing was changed and the same call may succeed: a lock timeout, a deadlock, a stale snapshot."""


class LockTimeout(Retryable):
    """Somebody else's transaction held a lock for too long; nothing was changed."""


class Unavailable(PenstockError, ConnectionError):
    """The database cannot be reached, or went away during the call."""


class TimedOut(Unavailable, TimeoutError):
    """The call did not finish in time."""


class HandlerTimeout(PenstockError, TimeoutError):
    """A handler took longer than `process` allows; its message is retried, and finally becomes a dead letter."""


class SetupError(PenstockError):
    """The installation, a setting, the schema or a permission is not what penstock needs."""


class ReadOnlyServer(SetupError):
    """The server takes no writes: it is a standby, or still becoming the primary. Nothing was changed."""


class MissingExtra(SetupError, ImportError):
    """A part of penstock was asked for whose packages are not installed."""

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs more packages: pip install 'penstock[{extra}]'")
        self.extra = extra


class EmbeddedError(SetupError):
    """The embedded services could not be started, reached or stopped."""
