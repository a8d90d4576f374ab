"""API keys and the audit log, through every client."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import AlreadyExists, InvalidInput, NotFound


def test_a_key_is_created_and_listed_without_its_secret(api: Any) -> None:
    until = datetime.now(UTC) + timedelta(days=1)
    assert api.has_api_keys() is False
    made = api.create_api_key("shop", ["push:orders-*", "read"], expires=until, rate_limit=5)
    assert api.has_api_keys() is True
    [key] = api.api_keys()
    assert (key.name, key.scopes, key.rate_limit, key.burst) == ("shop", ["push:orders-*", "read:*"], 5.0, 5)
    assert (key.expires_at, key.last_used_at, key.revoked_at) == (until, None, None)
    assert made.info == key
    assert made.key.startswith(f"pstk_{key.key_id}_")
    secret = made.key.rpartition("_")[2]
    assert secret not in repr(made) + repr(key)


def test_a_name_is_taken_until_its_key_is_revoked(api: Any) -> None:
    api.create_api_key("shop", ["push"])
    with pytest.raises(AlreadyExists, match='a key "shop" already'):
        api.create_api_key("shop", ["push"])
    assert api.revoke_api_key("shop").revoked_at is not None
    again = api.create_api_key("shop", ["push"])
    assert [key.key_id for key in api.api_keys()] == [again.info.key_id]
    assert len(api.api_keys(revoked=True)) == 2


def test_a_key_is_rotated_by_name_or_id_and_keeps_its_id(api: Any) -> None:
    made = api.create_api_key("shop", ["push"])
    other = api.rotate_api_key("shop", grace=60)
    third = api.rotate_api_key(made.info.key_id)
    assert len({made.key, other.key, third.key}) == 3
    assert {made.info.key_id, other.info.key_id, third.info.key_id} == {made.info.key_id}


@pytest.mark.parametrize(
    ("scopes", "options"),
    [
        ([], {}),
        ("push", {}),
        (["write"], {}),
        (["push:"], {}),
        (["push:a\0"], {}),
        (["push:\ud800"], {}),
        (["push"] + [f"pop:{n}" for n in range(100)], {}),
        (["push"], {"rate_limit": 0}),
        (["push"], {"burst": 2}),
        (["push"], {"expires": datetime(2020, 1, 1, tzinfo=UTC)}),
        (["push"], {"expires": datetime(2020, 1, 1)}),
        (["push"], {"expires": -1}),
    ],
)
def test_what_cannot_be_a_key_is_refused(api: Any, scopes: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        api.create_api_key("shop", scopes, **options)
    assert api.api_keys() == []


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256, "\ud800", "\0"])
def test_a_bad_name_is_refused(api: Any, name: str) -> None:
    with pytest.raises(InvalidInput):
        api.create_api_key(name, ["push"])


def test_a_key_that_is_not_there_is_not_found(api: Any) -> None:
    with pytest.raises(NotFound, match='no key "shop"'):
        api.revoke_api_key("shop")
    with pytest.raises(NotFound, match='no key "shop"'):
        api.rotate_api_key("shop")


def test_changes_of_keys_are_in_the_audit_log_newest_first_and_without_secrets(api: Any) -> None:
    made = api.create_api_key("shop", ["push"])
    other = api.rotate_api_key("shop")
    api.revoke_api_key("shop")
    acts = api.acts()
    assert [act.action for act in acts] == ["revoke_key", "rotate_key", "create_key"]
    assert {act.target for act in acts} == {"shop"}
    assert all(act.actor.partition(":")[0] in ("user", "anybody") and act.result == "ok" for act in acts)
    assert [act.action for act in api.acts(before=acts[1].act_id)] == ["create_key"]
    assert [act.action for act in api.acts(action="rotate_key", actor=acts[0].actor, limit=5)] == ["rotate_key"]
    assert api.acts(since=datetime.now(UTC) + timedelta(hours=1)) == []
    assert not any(key.key[-64:] in repr(acts) for key in (made, other))
