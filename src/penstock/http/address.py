"""Where a gateway is: what an `http://…` address says, and what every request to it begins with."""

import ssl
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import unquote, urlsplit

from penstock.errors import SetupError

API = "/api/v2"
_PORTS = {"http": 80, "https": 443}


def is_gateway(url: str | None) -> bool:
    """Say whether an address is that of a gateway."""
    return url is not None and url.partition("://")[0].lower() in _PORTS


@dataclass(frozen=True)
class GatewayAddress:
    """Where a gateway is. The key is what stands before the host, as in `http://KEY@host:8080`."""

    scheme: str
    host: str
    port: int
    prefix: str = ""
    key: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        # A path may hold a secret, too, so it is not shown.
        return f"{self.scheme}://{self._authority}"

    @property
    def _authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        """How to encrypt, where the address says so: certificates of the system, or of SSL_CERT_FILE."""
        return ssl.create_default_context() if self.scheme == "https" else None

    @cached_property
    def _constant(self) -> bytes:
        key = "" if self.key is None else f"Authorization: Bearer {self.key}\r\n"
        return f" HTTP/1.1\r\nHost: {self._authority}\r\nUser-Agent: penstock\r\n{key}".encode("latin-1")

    def get(self, path: str, arguments: bytes | None = None) -> bytes:
        """Return a GET request; arguments are in the query."""
        query = b"" if arguments is None else b"?arguments=" + urlsafe_b64encode(arguments).rstrip(b"=")
        return b"GET " + (self.prefix + path).encode() + query + self._constant + b"\r\n"

    def post(self, path: str, body: bytes, media: str) -> bytes:
        """Return a POST request."""
        kind = f"Content-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        return b"POST " + (self.prefix + path).encode() + self._constant + kind + body


def parse_address(url: str) -> GatewayAddress:
    """Read the address of a gateway."""
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        host = port = None
        parts = urlsplit("")
    scheme = parts.scheme.lower()
    if not host or scheme not in _PORTS or parts.query or parts.fragment:
        # Nothing of it is shown: any part of it may be a key.
        raise SetupError("the address of the gateway is not of the form http://host:port or https://KEY@host")
    key = unquote(parts.password or parts.username or "")
    if any(not 32 < ord(character) < 127 for character in key):
        raise SetupError("the key in the address of the gateway has characters that a header cannot hold")
    return GatewayAddress(scheme, host, port or _PORTS[scheme], parts.path.rstrip("/"), key or None)
