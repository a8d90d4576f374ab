"""The error hierarchy.

Every error of penstock is a `PenstockError`. Its class tells the caller whether the input is wrong, the set-up is
wrong, or a retry may help. Its message says what was wrong and what to do.
"""


class PenstockError(Exception):
    """The base class of all errors of penstock."""


class InvalidInput(PenstockError, ValueError):
    """The input is invalid; nothing was changed."""


class InvalidFlows(InvalidInput):
    """The flows of a file are invalid; each line of the message is one problem, with its line in the file."""


class MessageTooLarge(InvalidInput):
    """A message is over its queue's `max_message_bytes`; nothing was changed."""


class AlreadyExists(InvalidInput):
    """The object to be created exists; nothing was changed."""


class NotFound(PenstockError, LookupError):
    """The queue, partition, group or message does not exist."""


class CheckpointError(PenstockError):
    """A query's checkpoint does not fit what was published; nothing was changed."""


class DataLost(PenstockError):
    """Messages that a query has not read were dropped or deleted; nothing was changed."""


class LeaseLost(PenstockError):
    """The lease has expired, or another consumer holds the messages, which are delivered again; nothing was changed."""


class Retryable(PenstockError):
    """Nothing was changed, and a retry may succeed: a lock timeout, a deadlock, a stale snapshot."""


class LockTimeout(Retryable):
    """Somebody else's transaction held a lock for too long; nothing was changed."""


class Unavailable(PenstockError, ConnectionError):
    """The database cannot be reached, or the connection broke during the call."""


class TimedOut(Unavailable, TimeoutError):
    """The call did not finish in time."""


class HandlerTimeout(PenstockError, TimeoutError):
    """A handler exceeded the timeout of `process`; its message is retried, and finally becomes a dead letter."""


class SetupError(PenstockError):
    """The installation, a setting, the schema or a permission is wrong."""


class ReadOnlyServer(SetupError):
    """The server takes no writes: it is a standby, or still becoming the primary. Nothing was changed."""


class MissingExtra(SetupError, ImportError):
    """A feature was used whose optional packages are not installed."""

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs more packages: pip install 'penstock[{extra}]'")
        self.extra = extra


class EmbeddedError(SetupError):
    """The embedded services could not be started, reached or stopped."""
