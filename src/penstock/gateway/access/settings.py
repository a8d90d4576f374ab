"""How a gateway finds out who calls: what `penstock serve` is told, checked before anything listens."""

import ssl
from dataclasses import dataclass

from penstock.client.async_client import AsyncClient
from penstock.errors import SetupError
from penstock.gateway.access.authority import Doorkeeper
from penstock.gateway.access.jwks import load_keys
from penstock.gateway.access.keyring import KeyRing
from penstock.gateway.access.tokens import Tokens
from penstock.gateway.scopes import is_loopback


@dataclass(frozen=True)
class Access:
    """Who may call, and how. It names files and holds no secrets, so it may be passed to other processes."""

    keys: bool = False
    jwt_keys: str | None = None
    jwt_secret_file: str | None = None
    jwt_issuer: str | None = None
    jwt_audience: str = "penstock"
    jwt_leeway: float = 30.0
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure_http: bool = False
    read_only: bool = False

    @property
    def tokens(self) -> bool:
        """Whether it takes tokens."""
        return self.jwt_keys is not None or self.jwt_secret_file is not None

    @property
    def open(self) -> bool:
        """Whether it lets in callers whom it does not know."""
        return not (self.keys or self.tokens)

    @property
    def scheme(self) -> str:
        """How it is addressed."""
        return "http" if self.tls_cert is None else "https"

    def check(self, host: str) -> None:
        """Refuse what would let in anybody, or send keys over a network in the clear; read all files once."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SetupError("--tls-cert and --tls-key belong together: give both")
        if self.tokens and not self.jwt_issuer:
            raise SetupError("tokens need --jwt-issuer: say whose tokens are taken")
        if not is_loopback(host):
            if self.open:
                raise SetupError(
                    f"--host {host} can be reached from other machines, and this gateway would serve anybody: "
                    "set up authentication with --keys or --jwt-keys, or use --host 127.0.0.1"
                )
            if self.tls_cert is None and not self.insecure_http:
                raise SetupError(
                    f"--host {host} can be reached from other machines, and keys would be sent in the clear: "
                    "give --tls-cert and --tls-key, or --insecure-http where a proxy does the encryption"
                )
        if self.tls_cert is not None and self.tls_key is not None:
            _check_tls(self.tls_cert, self.tls_key)
        if self.tokens:
            load_keys(self.jwt_keys, self.jwt_secret_file)

    def doorkeeper(self, client: AsyncClient) -> Doorkeeper:
        """Return who decides about callers, in the process that serves."""
        tokens = None
        if self.tokens:
            tokens = Tokens(
                load_keys(self.jwt_keys, self.jwt_secret_file),
                issuer=self.jwt_issuer or "",
                audience=self.jwt_audience,
                leeway=self.jwt_leeway,
            )
        keys = KeyRing(client, read_only=self.read_only) if self.keys else None
        return Doorkeeper(keys, tokens, read_only=self.read_only)

    def host_names(self, host: str) -> frozenset[str] | None:
        """Return the names that it may be called by; None for any, which is safe where it asks who calls."""
        return frozenset([host.lower()]) if self.open else None


def _check_tls(cert: str, key: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "reason", None) or error.strerror or "they cannot be read"
        raise SetupError(f"{cert} and {key} cannot be used for TLS: {reason}") from None


def _no_password() -> str:
    raise ssl.SSLError("the key has a password; remove it and protect the file instead")
