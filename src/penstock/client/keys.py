# Generated from async_keys.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""The part of a synchronous client that manages API keys of the gateway, and reads the audit log."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from penstock.broker.arguments import Seconds, delay_time
from penstock.broker.audit import ActInfo
from penstock.broker.keys import KeyInfo, NewKey, check_limit, new_secret, parse_grants
from penstock.broker.operations.keys import CreateKey, HasKeys, ListActs, ListKeys, RevokeKey, RotateKey
from penstock.client.scheduling import Schedules


class Keys(Schedules):
    """The part of a client that says who may use the gateway, and tells who changed what."""

    def create_api_key(
        self,
        name: str,
        scopes: Iterable[str],
        *,
        expires: datetime | Seconds | None = None,
        rate_limit: float | None = None,
        burst: int | None = None,
    ) -> NewKey:
        """Create an API key with scopes such as `push:orders-*`; raises AlreadyExists. Its secret is shown only now.

        `expires` is a time or a number of seconds; None for never. `rate_limit` is in requests a second.
        """
        secret = new_secret()
        until = expires if isinstance(expires, datetime | None) else _after(delay_time(expires) or 0.0)
        rate, at_once = check_limit(rate_limit, burst)
        info = self._transport.run(
            CreateKey(secret.key_id, name, secret.hash, parse_grants(scopes).texts(), until, rate, at_once)
        )
        return NewKey(info, secret.text)

    def api_keys(self, *, revoked: bool = False) -> list[KeyInfo]:
        """Describe the API keys, with those that are revoked or without."""
        return self._transport.run(ListKeys(revoked))

    def has_api_keys(self) -> bool:
        """Say whether there is an API key that is neither revoked nor expired."""
        return self._transport.run(HasKeys())

    def revoke_api_key(self, key: str) -> KeyInfo:
        """Revoke an API key by its name or id; raises NotFound. Gateways refuse it within seconds."""
        return self._transport.run(RevokeKey(key))

    def rotate_api_key(self, key: str, *, grace: Seconds = 0.0) -> NewKey:
        """Give an API key a new secret; the old one is valid for `grace` seconds more. Raises NotFound."""
        for each in self.api_keys():
            if key in (each.name, each.key_id):
                key = each.key_id
                break
        secret = new_secret(key)
        info = self._transport.run(RotateKey(key, secret.hash, delay_time(grace) or 0.0))
        return NewKey(info, secret.text)

    def acts(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[ActInfo]:
        """Describe administrative acts of the audit log, newest first; `before` is the last id of a page."""
        return self._transport.run(ListActs(before, limit, actor, action, since))


def _after(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)
