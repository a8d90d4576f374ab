"""The Spark that flows run on: this machine's, a cluster's, or a Spark Connect server's."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock import spark as connector
from penstock.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEFAULTS = {
    # First come, first served: a flow has one job at a time, so flows take turns. With a pool for each, Spark's fair
    # scheduler settles ties by the pool's name, and with short tasks the last ones of the alphabet get nothing.
    "spark.scheduler.mode": "FIFO",
    "spark.sql.ansi.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


@contextmanager
def opened(
    settings: Settings, master: str | None, remote: str | None, said: Mapping[str, str]
) -> "Iterator[SparkSession]":
    """Open a session, and stop it at the end."""
    if settings.url is None:
        # Spark's processes find the embedded server where we do.
        os.environ["PENSTOCK_HOME"] = str(settings.home)
    if remote is not None:
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.remote(remote).getOrCreate()
        for key, value in said.items():
            spark.conf.set(key, value)
        connector.register(spark)
    else:
        if master is None:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        spark = connector.session("penstock run", master, _DEFAULTS | dict(said))
    try:
        yield spark
    finally:
        spark.stop()
