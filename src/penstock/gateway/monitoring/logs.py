"""The log of a gateway: a line of text or of JSON for each record, to the standard error."""

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.gateway import request_ids

TEXT, JSON = "text", "json"


def configure(form: str = TEXT, level: str = "info") -> None:
    """Log to the standard error in this form, from this level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == JSON else TextLines())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return what a record says besides its message; those that are unknown are left out."""
    fields: dict[str, Any] = dict(getattr(record, "fields", {}))
    fields.setdefault("request_id", request_ids.current.get())
    return {name: value for name, value in fields.items() if value is not None}


class JsonLines(logging.Formatter):
    """Each record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return _encoder.encode(line).decode()


class TextLines(logging.Formatter):
    """Each record as one line that people read, and a traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        words = [_time(record), record.levelname, record.name, record.getMessage()]
        words += [f"{name}={value}" for name, value in fields_of(record).items()]
        # What others have named must not look like another line.
        line = " ".join(words).replace("\r", "\\r").replace("\n", "\\n")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


_encoder = msgspec.json.Encoder(enc_hook=str)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"
