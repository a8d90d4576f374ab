"""API keys and the audit log from the command line."""

import signal
from pathlib import Path

import pytest

from acceptance.commandline import CommandLine
from penstock import Client
from penstock.errors import Forbidden, Unauthenticated


def test_a_key_is_created_listed_rotated_and_revoked(penstock: CommandLine) -> None:
    made = penstock("keys", "create", "shop", "--scope", "push:orders-*", "--scope", "read", "--expires", "90d")
    [key] = made.lines
    assert key.startswith("pstk_")
    assert "not shown again" in made.stderr
    [row] = penstock("keys", "list").rows
    assert row[0:3] == ["shop", key.split("_")[1], '["push:orders-*","read:*"]']
    [other] = penstock("keys", "rotate", "shop", "--grace", "1h").lines
    assert other[:17] == key[:17]
    assert other != key
    assert penstock("keys", "revoke", "shop", "--yes").text == f"revoked key shop ({row[1]})\n"
    assert penstock("keys", "list").text == ""
    assert penstock("keys", "list", "--revoked", "--json").objects[0]["revoked_at"] is not None
    acts = penstock("audit", "--since", "1h").rows
    assert [act[3:5] for act in acts] == [["revoke_key", "shop"], ["rotate_key", "shop"], ["create_key", "shop"]]
    assert penstock("audit", "--action", "create_key", "--json").objects[0]["details"]["grants"][1] == "read:*"


def test_a_new_key_as_json_has_all_fields(penstock: CommandLine) -> None:
    [made] = penstock("keys", "create", "shop", "--scope", "push", "--rate-limit", "10", "--json").objects
    assert made["key"].startswith(f"pstk_{made['key_id']}_")
    assert (made["scopes"], made["rate_limit"], made["burst"]) == (["push:*"], 10.0, 10)


def test_errors_say_what_to_do_and_change_nothing(penstock: CommandLine, client: Client) -> None:
    assert "push, pop, read or admin" in penstock("keys", "create", "shop", "--scope", "write", code=2).stderr
    assert (
        "neither a duration"
        in penstock("keys", "create", "shop", "--scope", "push", "--expires", "soon", code=2).stderr
    )
    assert "Missing option '--scope'" in penstock("keys", "create", "shop", code=2).stderr
    assert "no key" in penstock("keys", "revoke", "shop", "--yes", code=3).stderr
    assert "give --yes" in penstock("keys", "revoke", "shop", code=2).stderr
    assert client.api_keys(revoked=True) == []
    client.create_api_key("shop", ["push"])
    assert "already" in penstock("keys", "create", "shop", "--scope", "push", code=2).stderr


def test_a_gateway_that_anybody_could_use_does_not_start(penstock: CommandLine, tmp_path: Path) -> None:
    assert "would serve anybody" in penstock("serve", "--host", "0.0.0.0", "--port", "0", code=5).stderr
    assert "in the clear" in penstock("serve", "--host", "0.0.0.0", "--port", "0", "--keys", code=5).stderr
    secret = tmp_path / "secret"
    secret.write_text("too short to be a secret")
    refused = penstock("serve", "--jwt-secret-file", str(secret), "--jwt-issuer", "me", code=5).stderr
    assert "has 24 bytes" in refused
    assert "too short to be" not in refused
    # Each option can come from the environment.
    assert "in the clear" in penstock("serve", "--host", "0.0.0.0", "--port", "0", code=5, PENSTOCK_KEYS="1").stderr


def test_a_gateway_says_that_there_is_no_key_and_never_says_one(penstock: CommandLine, client: Client) -> None:
    with penstock.running("serve", "--port", "0", "--keys") as serving:
        address = serving.line()
        made = client.create_api_key("shop", ["push:orders"])
        other = made.key[:-1] + ("0" if made.key[-1] != "0" else "1")
        with Client(address.replace("//", f"//{made.key}@")) as shop:
            shop.push("orders", 1, partition="p")
            with pytest.raises(Forbidden):
                shop.push("other", 1)
        with Client(address.replace("//", f"//{other}@")) as thief, pytest.raises(Unauthenticated):
            thief.push("orders", 1)
        started = Path(f"/proc/{serving.process.pid}/cmdline")
        shown = started.read_bytes().decode() if started.exists() else ""
        ended = serving.end(signal.SIGTERM)
    assert "there is no API key yet" in ended.stderr
    assert not [text for text in (made.key[-64:], other[-64:]) if text in ended.text + ended.stderr + shown]
    assert [message.headers for message in client.read("orders", "p")] == [{"penstock-pushed-by": "key:shop"}]
