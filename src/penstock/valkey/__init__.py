"""Valkey, as far as everything that uses it needs the same: where it is, and how to connect to it.

`find` says which Valkey the settings name; `connect` and `connect_async` open checked clients of it.
"""

from penstock.valkey.address import Address, find, redact
from penstock.valkey.connecting import PREFIX, connect, connect_alone, connect_async, failures
from penstock.valkey.hints import HintExchange

__all__ = [
    "PREFIX",
    "Address",
    "HintExchange",
    "connect",
    "connect_alone",
    "connect_async",
    "failures",
    "find",
    "redact",
]
