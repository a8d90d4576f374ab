"""Opens the Spark session that flows run on: local, on a cluster, or of a Spark Connect server."""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from penstock import spark as connector
from penstock.errors import SetupError
from penstock.settings import Settings
from penstock.spark.sessions import DAEMON_MODULE, DAEMON_SETTING, prepared

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
_CONNECT_PORT = 15002


@contextmanager
def opened(
    settings: Settings, master: str | None, remote: str | None, said: Mapping[str, str]
) -> "Iterator[SparkSession]":
    """Open a session, and stop it at the end."""
    if settings.url is None:
        # Spark's processes find the embedded server where we do.
        os.environ["PENSTOCK_HOME"] = str(settings.home)
    if remote is not None:
        spark = _connect(remote, said)
    else:
        if master is None or master.startswith("local["):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        spark = connector.session("penstock run", master, _DEFAULTS | dict(said))
        _silence_accumulator_server(spark)
    try:
        yield spark
    finally:
        # A signal that ended us may have ended it too.
        with suppress(Py4JError, OSError):
            spark.stop()


def _silence_accumulator_server(spark: "SparkSession") -> None:
    """Keep PySpark's accumulator server from printing a traceback when Java ends first, as after a signal to all."""
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda request, client_address: None


def _connect(remote: str, said: Mapping[str, str]) -> "SparkSession":
    """Open a session of a Spark Connect server; `local[2]` starts one on this machine."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(remote)
    if remote.startswith("local"):
        _require_port()
        builder = builder.config("spark.connect.grpc.binding.address", "127.0.0.1")
        builder = builder.config(DAEMON_SETTING, DAEMON_MODULE)
    # What the server does not let a session set, it passes over and says so.
    for key, value in said.items():
        builder = builder.config(key, value)
    try:
        with prepared(remote):
            spark = builder.getOrCreate()
        connector.register(spark)
    except PySparkException as error:
        raise SetupError(f"the Spark Connect server {remote} cannot be used: {error}") from error
    return spark


def _require_port() -> None:
    """Refuse to start a Connect server where one is running: Spark's own client knows no other port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", _CONNECT_PORT))
        except OSError as error:
            raise SetupError(
                f"port {_CONNECT_PORT}, where a Spark Connect server of this machine listens, is taken: use that "
                f"server with --remote sc://localhost:{_CONNECT_PORT}, or run without --remote"
            ) from error
