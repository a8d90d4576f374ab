"""Filters of messages by their fields: `status = failed customer.id >= 42 "late delivery"`. All terms must match.

A term is a path, an operator and a value, with or without spaces: `=`, `!=`, `<`, `<=`, `>`, `>=`, `~` (contains, in
any case). A path names fields of JSON, separated by dots; a number is a place in a list. `@key` is the message's key,
`@header.name` one of its headers. A value is a JSON literal or else a text. A term without an operator is a text that
the value has anywhere. Numbers are compared exactly, however long they are.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import msgspec

from penstock.broker.messages import StoredMessage
from penstock.errors import InvalidInput

_QUOTED = r'"(?:[^"\\]|\\.)*"'
# What begins like an operator must be quoted.
_BARE = r"[^\s\"=!<>~][^\s\"]*"
_TERM = re.compile(
    rf"\s*(?:(?P<path>(?:{_QUOTED}|[^\s=!<>~\"])+)\s*(?P<op>!=|<=|>=|=|<|>|~)\s*(?P<value>{_QUOTED}|{_BARE})"
    rf"|(?P<text>{_QUOTED}|{_BARE}))(?=\s|$)"
)
_STEP = re.compile(rf"({_QUOTED}|[^.\"]+)(?:\.|$)")
_LONGEST = 1000
_MISSING = object()
_decode = msgspec.json.Decoder(float_hook=Decimal).decode
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


@dataclass(frozen=True)
class Term:
    """One condition."""

    path: tuple[str, ...]
    operator: str
    value: Any

    def matches(self, message: StoredMessage, body: Any) -> bool:
        """Say whether a message fulfils it; `body` is its decoded value."""
        found = self._find(message, body)
        if self.operator == "~":
            return found is not _MISSING and str(self.value).casefold() in _text(found).casefold()
        if found is _MISSING:
            return self.operator == "!="
        if self.operator in ("=", "!="):
            same = type(found) is type(self.value) or (_is_number(found) and _is_number(self.value))
            # A text in the filter may have been meant as one, although it looks like a number.
            equal = found == self.value if same else isinstance(found, str) and found == _text(self.value)
            return equal == (self.operator == "=")
        both = (_is_number(found) and _is_number(self.value)) or (
            isinstance(found, str) and isinstance(self.value, str)
        )
        return both and _OPERATORS[self.operator](found, self.value)

    def _find(self, message: StoredMessage, body: Any) -> Any:
        match self.path:
            case ("@key",):
                return _MISSING if message.key is None else message.key
            case ("@header", *name):
                return (message.headers or {}).get(".".join(name), _MISSING)
        for step in self.path:
            if isinstance(body, dict):
                body = body.get(step, _MISSING)
            elif isinstance(body, list) and step.isdecimal() and int(step) < len(body):
                body = body[int(step)]
            else:
                return _MISSING
        return body


@dataclass(frozen=True)
class Filter:
    """Conditions that must all hold, and texts that a value must have."""

    terms: tuple[Term, ...] = ()
    texts: tuple[bytes, ...] = ()
    key: str | None = None

    def matches(self, message: StoredMessage) -> bool:
        """Say whether a message fulfils all."""
        if self.key is not None and message.key != self.key:
            return False
        if any(text not in (message.value or b"") for text in self.texts):
            return False
        if not self.terms:
            return True
        return all(term.matches(message, body) for body in (_body(message.value),) for term in self.terms)


def parse(text: str | None, key: str | None = None) -> Filter:
    """Read a filter; refuses what it does not understand."""
    if text is None or not text.strip():
        return Filter(key=key)
    if len(text) > _LONGEST:
        raise InvalidInput(f"a filter may have {_LONGEST} characters")
    terms: list[Term] = []
    texts: list[bytes] = []
    at = 0
    while at < len(text.rstrip()):
        found = _TERM.match(text, at)
        if found is None:
            raise InvalidInput(
                f"the filter is not understood from {text[at:].strip()!r:.60} on; see the help beside it"
            )
        at = found.end()
        if found["text"] is not None:
            texts.append(str(_literal(found["text"], plain=True)).encode())
        else:
            path = tuple(str(_literal(step, plain=True)) for step in _STEP.findall(found["path"]))
            terms.append(Term(path, found["op"], _literal(found["value"])))
    return Filter(tuple(terms), tuple(texts), key)


def _literal(text: str, *, plain: bool = False) -> Any:
    if plain and not text.startswith('"'):
        return text
    try:
        return _decode(text.encode())
    except (msgspec.DecodeError, UnicodeError):
        return text


def _body(value: bytes | None) -> Any:
    try:
        return _MISSING if value is None else _decode(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _MISSING


def _is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
