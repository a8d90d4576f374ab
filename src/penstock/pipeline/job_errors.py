"""Turns the failure of a Spark job into an error of penstock, of the same class if penstock raised it."""

from typing import TYPE_CHECKING

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.errors import PySparkException


def as_penstock(error: "PySparkException", sign: str) -> PenstockError:
    """Return what to raise for an error of Spark; the errors of the job were signed."""
    from penstock.pipeline.running import explain, own_error

    own = own_error(error, sign)
    return PenstockError(explain(error)) if own is None else own.kind(own.text)
