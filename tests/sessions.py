"""Spark within the processes of the tests: what it does with the environment is settled when its Java starts."""

import sys


def end_spark() -> None:
    """Stop the session of this process, and its Java: the next one starts with the environment of then."""
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    if SparkContext._gateway is not None:
        SparkContext._gateway.shutdown()
        SparkContext._gateway.proc.stdin.close()
        SparkContext._gateway.proc.wait(60)
        SparkContext._gateway = SparkContext._jvm = None


def leave_handlers_alone() -> None:
    """Keep PySpark from changing the format of a handler that its loggers get: pytest's is that of all other tests."""
    from pyspark.logger import PySparkLogger

    if "addHandler" in vars(PySparkLogger):
        del PySparkLogger.addHandler
