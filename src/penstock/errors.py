"""The error hierarchy.

Every error of penstock is a `PenstockError`. Its class tells the caller whether the input is wrong, the set-up is
wrong, or a retry may help. Its message says what was wrong and what to do.
"""


class PenstockError(Exception):
    """The base class of all errors of penstock."""

    # What tells it apart where there are no classes: in the answers of the gateway, and in logs.
    code: str = "error"
    # What strangers may be told instead of the message, where that names an address or a user.
    public: str | None = None


class InvalidInput(PenstockError, ValueError):
    """The input is invalid; nothing was changed."""

    code = "invalid_input"


class InvalidFlows(InvalidInput):
    """The flows of a file are invalid; each line of the message is one problem, with its line in the file."""

    code = "invalid_flows"


class MessageTooLarge(InvalidInput):
    """A message is over its queue's `max_message_bytes`; nothing was changed."""

    code = "message_too_large"


class AlreadyExists(InvalidInput):
    """The object to be created exists; nothing was changed."""

    code = "already_exists"


class IdempotencyKeyReused(InvalidInput):
    """The Idempotency-Key of a push was used for another one; nothing was changed."""

    code = "idempotency_key_reused"


class NotFound(PenstockError, LookupError):
    """The queue, partition, group or message does not exist."""

    code = "not_found"


class CheckpointError(PenstockError):
    """A query's checkpoint does not fit what was published; nothing was changed."""

    code = "checkpoint_error"


class DataLost(PenstockError):
    """Messages that a query has not read were dropped or deleted; nothing was changed."""

    code = "data_lost"


class LeaseLost(PenstockError):
    """The lease has expired, or another consumer holds the messages, which are delivered again; nothing was changed."""

    code = "lease_lost"


class Retryable(PenstockError):
    """Nothing was changed, and a retry may succeed: a lock timeout, a deadlock, a stale snapshot."""

    code = "retryable"


class LockTimeout(Retryable):
    """Somebody else's transaction held a lock for too long; nothing was changed."""

    code = "lock_timeout"


class QueuePaused(PenstockError):
    """Pushes to the queue are paused; nothing was changed."""

    code = "queue_paused"


class RateLimited(PenstockError):
    """The queue has had as many messages as its rate allows; nothing was changed. `retry_after` is in seconds."""

    code = "rate_limited"

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(PenstockError, ConnectionError):
    """The database cannot be reached, or the connection broke during the call."""

    code = "unavailable"


class ValkeyUnavailable(Unavailable):
    """Valkey cannot be reached, or the connection broke during the call; PostgreSQL may be fine."""

    code = "valkey_unavailable"


class TimedOut(Unavailable, TimeoutError):
    """The call did not finish in time."""

    code = "timed_out"


class HandlerTimeout(PenstockError, TimeoutError):
    """A handler exceeded the timeout of `process`; its message is retried, and finally becomes a dead letter."""

    code = "handler_timeout"


class HandlerFailed(PenstockError):
    """The handler of a message raised, and there is no other attempt: what `client.result` raises."""

    code = "handler_failed"


class Cancelled(PenstockError):
    """The message was cancelled before it was done: what `client.result` raises."""

    code = "cancelled"


class SetupError(PenstockError):
    """The installation, a setting, the schema or a permission is wrong."""

    code = "setup_error"


class Unauthenticated(SetupError):
    """The gateway wants to know who calls: no key or token was given, or it is wrong or expired."""

    code = "unauthenticated"


class Forbidden(SetupError):
    """The key or token is good, and does not allow this; nothing was changed."""

    code = "forbidden"


class NotOverHttp(SetupError):
    """The gateway does not offer this: SQL of your own, for example, needs a connection to the database."""

    code = "not_over_http"


class ReadOnlyServer(SetupError):
    """The server takes no writes: it is a standby, or still becoming the primary. Nothing was changed."""

    code = "read_only_server"


class MissingExtra(SetupError, ImportError):
    """A feature was used whose optional packages are not installed."""

    code = "missing_extra"

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs more packages: pip install 'penstock[{extra}]'")
        self.extra = extra


class ValkeyUnusable(SetupError):
    """The address of Valkey is wrong, or the server is one that penstock cannot use; `code` says which of them.

    | code | what is wrong |
    | --- | --- |
    | `valkey_address` | the address cannot be read |
    | `valkey_login` | the server refused the user, the password or the database |
    | `valkey_permission` | the user may not run a command that is needed, or touch our keys and channels |
    | `valkey_version` | the server is older than 7.2 |
    | `valkey_policy` | the server evicts keys when its memory is full |
    | `valkey_cluster` | the server is one of several that share the keys |
    | `valkey_replica` | the server takes no writes |
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class EmbeddedError(SetupError):
    """The embedded services could not be started, reached or stopped."""

    code = "embedded_error"
