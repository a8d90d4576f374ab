"""JSON Web Tokens: who signed one, for whom, until when, and what it allows.

Which algorithm may be used is said by the key, never by the token: an RSA key verifies RS256 and nothing else, so a
token cannot be signed with `none`, nor with a public key taken for a secret.
"""

from collections.abc import Mapping
from typing import Any

import jwt

from penstock.broker.keys import Grants, parse_grants
from penstock.errors import InvalidInput, Unauthenticated
from penstock.gateway.access.callers import Caller
from penstock.gateway.access.jwks import KeySet, SigningKey

# Verifying costs more the longer a token is.
LONGEST = 8192
_PREFIX = "penstock:"
_REFUSED = "the token is wrong or expired, or not meant for this gateway"


class Tokens:
    """Verifies tokens by a set of keys."""

    def __init__(self, keys: KeySet, *, issuer: str, audience: str, leeway: float) -> None:
        self._keys = keys
        self._issuer = issuer
        self._audience = audience
        self._leeway = leeway

    async def by_token(self, text: str) -> Caller:
        """Return who a token is about; raises Unauthenticated."""
        if len(text) > LONGEST or text.count(".") != 2:
            raise Unauthenticated(_REFUSED)
        try:
            header = jwt.get_unverified_header(text)
        except (jwt.InvalidTokenError, ValueError, RecursionError):
            raise Unauthenticated(_REFUSED) from None
        if "crit" in header:
            raise Unauthenticated("the token has critical headers, which this gateway does not know")
        kid = header.get("kid")
        key = await self._keys.find(kid if isinstance(kid, str) else None, str(header.get("alg")))
        if key is None:
            raise Unauthenticated(_REFUSED)
        return self._caller(self._verified(text, key))

    def _verified(self, text: str, key: SigningKey) -> Mapping[str, Any]:
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                key.key,
                algorithms=[key.algorithm],
                issuer=self._issuer,
                audience=self._audience,
                leeway=self._leeway,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            # What exactly was wrong would help who tries out tokens.
            raise Unauthenticated(_REFUSED) from None
        return claims

    def _caller(self, claims: Mapping[str, Any]) -> Caller:
        subject = claims["sub"]
        if not isinstance(subject, str) or not subject or len(subject) > 200 or not subject.isprintable():
            raise Unauthenticated("the token's subject is not a name of at most 200 printable characters")
        return Caller(f"jwt:{subject}", grants_of(claims))


def grants_of(claims: Mapping[str, Any]) -> Grants:
    """Return what claims allow: the list `penstock`, or what begins with `penstock:` in `scope`."""
    listed = claims.get("penstock")
    if listed is None:
        words = claims.get("scope", "")
        if not isinstance(words, str):
            raise Unauthenticated("the token's claim `scope` is not a text of words")
        listed = [word.removeprefix(_PREFIX) for word in words.split() if word.startswith(_PREFIX)]
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        # An object would be read as the list of its names.
        raise Unauthenticated("the token's claim `penstock` is not a list of texts such as push:orders-*")
    if not listed:
        return Grants()
    try:
        return parse_grants(listed)
    except InvalidInput as error:
        raise Unauthenticated(f"the token's scopes are wrong: {error}") from None
