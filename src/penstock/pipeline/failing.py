"""What a job of Spark fails with becomes an error of penstock: the innermost one, of its own kind."""

from typing import TYPE_CHECKING

from penstock import errors
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

_KINDS = (
    "CheckpointError",
    "DataLost",
    "InvalidInput",
    "MessageTooLarge",
    "NotFound",
    "Retryable",
    "SetupError",
    "TimedOut",
    "Unavailable",
)


def as_penstock(error: "PySparkException") -> PenstockError:
    """Return what to raise for an error of Spark."""
    from penstock.pipeline.running import explain

    text = explain(error)
    kind, colon, words = text.partition(": ")
    if colon and kind in _KINDS:
        found: PenstockError = getattr(errors, kind)(words)
        return found
    return PenstockError(words if colon and kind == "PenstockError" else text)
