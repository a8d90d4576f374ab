"""Answers of an HTTP/1.1 server, read from the bytes that arrive, whatever pieces they come in."""

from typing import NamedTuple

from penstock.errors import Unavailable

_MOST_HEAD = 64 << 10
_NO_BODY = (204, 304)


class Answer(NamedTuple):
    """A whole answer; `keep` says whether the connection may be used again."""

    status: int
    headers: dict[str, str]
    body: bytes
    keep: bool


class AnswerReader:
    """Reads one answer."""

    def __init__(self) -> None:
        self._arrived = bytearray()
        self._head: tuple[int, dict[str, str], int] | None = None

    @property
    def begun(self) -> bool:
        """Whether anything has arrived."""
        return bool(self._arrived)

    @property
    def head(self) -> tuple[int, dict[str, str]] | None:
        """Status and headers, once they are there."""
        return None if self._head is None else self._head[:2]

    def feed(self, arrived: bytes) -> Answer | None:
        """Take what arrived, nothing at the end of the connection; return the answer once it is whole."""
        self._arrived += arrived
        if self._head is None:
            self._head = self._read_head()
        if self._head is None:
            if not arrived:
                raise Unavailable("the gateway closed the connection before it answered")
            return None
        status, headers, begin = self._head
        keep = "close" not in headers.get("connection", "").lower()
        if status in _NO_BODY:
            return Answer(status, headers, b"", keep)
        if "chunked" in headers.get("transfer-encoding", "").lower():
            body = self._chunks(begin)
        elif "content-length" in headers:
            body = self._counted(begin, headers["content-length"])
        else:
            body, keep = (None, False) if arrived else (bytes(self._arrived[begin:]), False)
        if body is not None:
            return Answer(status, headers, body, keep)
        if not arrived:
            raise Unavailable("the gateway closed the connection in the middle of an answer")
        return None

    def _read_head(self) -> tuple[int, dict[str, str], int] | None:
        end = self._arrived.find(b"\r\n\r\n")
        if end < 0:
            if len(self._arrived) > _MOST_HEAD:
                raise Unavailable("what answers there is no gateway: the head of its answer has no end")
            return None
        first, *lines = bytes(self._arrived[:end]).decode("latin-1").split("\r\n")
        protocol, _, rest = first.partition(" ")
        status = rest[:3]
        if not protocol.startswith("HTTP/1.") or not status.isdecimal():
            raise Unavailable("what answers there does not speak HTTP/1.1")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return int(status), headers, end + 4

    def _counted(self, begin: int, length: str) -> bytes | None:
        if not length.isdecimal():
            raise Unavailable("what answers there does not speak HTTP/1.1")
        end = begin + int(length)
        return bytes(self._arrived[begin:end]) if len(self._arrived) >= end else None

    def _chunks(self, begin: int) -> bytes | None:
        parts: list[bytes] = []
        while True:
            end = self._arrived.find(b"\r\n", begin)
            if end < 0:
                return None
            try:
                size = int(bytes(self._arrived[begin:end]).partition(b";")[0], 16)
            except ValueError:
                raise Unavailable("what answers there does not speak HTTP/1.1") from None
            begin = end + 2
            if len(self._arrived) < begin + size + 2:
                return None
            if size == 0:
                return b"".join(parts)
            parts.append(bytes(self._arrived[begin : begin + size]))
            begin += size + 2
