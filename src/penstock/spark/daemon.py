"""PySpark's daemon, which starts the Python workers of Spark, with workers that can report any exception.

PySpark announces an exception to Java before it encodes the text. A text that UTF-8 cannot encode, such as one with
half of a surrogate pair, is never sent, and Java waits for it: the query neither fails nor goes on. Workers that this
daemon starts escape such characters. And where the job asks for it, they say in which partition they failed.

Sessions that penstock makes use it. Any other session does with `spark.python.daemon.module=penstock.spark.daemon`.
"""

import io
import os
import struct
import traceback
from contextlib import redirect_stderr, suppress
from typing import IO, Any

from pyspark import daemon, util
from pyspark.serializers import SpecialLengths
from pyspark.taskcontext import TaskContext

from penstock.spark.signing import SIGN_PROPERTY

_handle = util.handle_worker_exception
# What announces an exception, before the text.
_ANNOUNCEMENT_BYTES = 4


def report_exception(e: BaseException, outfile: IO[Any], hide_traceback: bool | None = None) -> None:
    """Send an exception to Java, as PySpark does where it can, and otherwise with escaped characters."""
    _add_partition(e)
    report = io.BytesIO()
    # PySpark prints there what it cannot send.
    with redirect_stderr(io.StringIO()):
        _handle(e, report, hide_traceback)
    sent = report.getvalue()
    if len(sent) <= _ANNOUNCEMENT_BYTES:
        hidden = bool(os.environ.get("SPARK_HIDE_TRACEBACK")) if hide_traceback is None else hide_traceback
        lines = traceback.format_exception_only(e) if hidden else traceback.format_exception(e)
        text = "".join(lines).encode("utf-8", "backslashreplace")
        sent = struct.pack("!ii", SpecialLengths.PYTHON_EXCEPTION_THROWN, len(text)) + text
    # Java may have closed the socket.
    with suppress(OSError):
        outfile.write(sent)


def _add_partition(error: BaseException) -> None:
    context = TaskContext.get()
    sign = None if context is None else context.getLocalProperty(SIGN_PROPERTY)
    # The notes of somebody's own exception may be anything.
    with suppress(TypeError):
        if context is not None and sign is not None:
            error.add_note(f"{sign} {context.partitionId()}")


if __name__ == "__main__":
    # Workers are forks of this process and import the function afterwards.
    util.handle_worker_exception = report_exception
    daemon.manager()
