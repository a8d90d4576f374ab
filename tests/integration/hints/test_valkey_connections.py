"""Connections to a Valkey of one's own: with a password, with TLS, and refused with a reason where it is unfit."""

import asyncio
import re
import socket
import ssl
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from penstock import MissingExtra, PenstockError, ValkeyUnavailable, ValkeyUnusable
from penstock.settings import resolve
from penstock.valkey import connect, connect_async, find
from valkeys import SOON, ValkeyServer, free_port, tls_in_front_of, valkey_server

SECRET = "s3cr3t"

Open = Callable[[str], None]


def settings_for(url: str, **others: Any) -> Any:
    return resolve({"url": "postgresql://unused", "valkey_url": url, **others}, {})


def open_one(url: str) -> None:
    """Connect, and prove it by a call."""
    address = find(settings_for(url))
    assert address is not None
    client = connect(address)
    assert client.ping()
    client.close()


def open_async_one(url: str) -> None:
    async def opened() -> None:
        address = find(settings_for(url))
        assert address is not None
        client = await connect_async(address)
        assert await client.ping()
        await client.aclose()

    asyncio.run(opened())


@pytest.fixture(params=[open_one, open_async_one], ids=["sync", "async"])
def opener(request: pytest.FixtureRequest) -> Open:
    found: Open = request.param
    return found


def refused(opener: Open, url: str) -> ValkeyUnusable:
    with pytest.raises(ValkeyUnusable) as raised:
        opener(url)
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    return raised.value


def test_a_password_opens(opener: Open, server: ValkeyServer) -> None:
    opener(server.url(f":{SECRET}"))
    opener(server.url(f"default:{SECRET}", database=3))


def test_a_wrong_password_is_refused_and_never_shown(opener: Open, server: ValkeyServer) -> None:
    error = refused(opener, server.url(f":{SECRET}x"))
    assert (error.code, "PENSTOCK_VALKEY_URL" in str(error)) == ("valkey_login", True)
    assert refused(opener, server.url()).code == "valkey_login"
    assert refused(opener, server.url(f"nobody:{SECRET}")).code == "valkey_login"


def test_a_user_without_permission_is_told_which_it_lacks(opener: Open, server: ValkeyServer) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "reader", "on", f">{SECRET}", "~*", "&*", "+@all", "-function")
    error = refused(opener, server.url(f"reader:{SECRET}"))
    assert (error.code, "function" in str(error).lower()) == ("valkey_permission", True)


def test_one_that_evicts_is_refused(opener: Open, server: ValkeyServer) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            error = refused(opener, server.url(f":{SECRET}"))
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    assert (error.code, "allkeys-lru" in str(error)) == ("valkey_policy", True)


def test_a_replica_is_refused(opener: Open, server: ValkeyServer) -> None:
    with valkey_server(replicaof=f"127.0.0.1 {server.port}") as replica:
        assert refused(opener, replica.url()).code == "valkey_replica"


def test_a_cluster_of_one_is_used_and_a_larger_one_refused() -> None:
    buses = free_port(), free_port()
    with (
        valkey_server(cluster_enabled="yes", cluster_port=str(buses[0])) as one,
        valkey_server(cluster_enabled="yes", cluster_port=str(buses[1])) as other,
        one.client() as first,
        other.client() as second,
    ):
        first.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        eventually(lambda: "cluster_state:ok" in cluster_info(first))
        open_one(one.url())
        first.execute_command("CLUSTER DELSLOTSRANGE", 8192, 16383)
        second.execute_command("CLUSTER ADDSLOTSRANGE", 8192, 16383)
        first.execute_command("CLUSTER MEET", "127.0.0.1", other.port, buses[1])
        eventually(lambda: "cluster_size:2" in cluster_info(first))
        error = refused(open_one, one.url())
    assert (error.code, "2 primaries" in str(error)) == ("valkey_cluster", True)


def cluster_info(client: Any) -> str:
    return " ".join(f"{name}:{value}" for name, value in client.execute_command("CLUSTER INFO").items())


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def tls_port(server: ValkeyServer, authority: trustme.CA) -> Iterator[int]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    with tls_in_front_of(server.port, context) as port:
        yield port


@pytest.fixture
def certificate(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


@pytest.mark.parametrize("scheme", ["valkeys", "rediss"])
def test_tls_is_used_with_an_authority_that_is_trusted(
    opener: Open, tls_port: int, certificate: Path, scheme: str
) -> None:
    opener(f"{scheme}://:{SECRET}@localhost:{tls_port}?ssl_ca_certs={certificate}")


def test_tls_refuses_a_stranger_and_another_name(opener: Open, tls_port: int, certificate: Path) -> None:
    with pytest.raises(ValkeyUnavailable, match=r"(?i)certificate verify failed"):
        opener(f"valkeys://:{SECRET}@localhost:{tls_port}")
    with pytest.raises(ValkeyUnavailable, match=r"(?i)not valid for|mismatch"):
        opener(f"valkeys://:{SECRET}@127.0.0.1:{tls_port}?ssl_ca_certs={certificate}")
    opener(f"valkeys://:{SECRET}@127.0.0.1:{tls_port}?ssl_cert_reqs=none")


def test_an_unreachable_one_is_said_to_be_so(opener: Open) -> None:
    with pytest.raises(ValkeyUnavailable) as raised:
        opener(f"valkey://ann:{SECRET}@127.0.0.1:{free_port()}")
    assert re.match(r"valkey://ann:\*\*\*@127.0.0.1:\d+ cannot be reached", str(raised.value))
    assert raised.value.code == "valkey_unavailable"


def test_one_that_never_answers_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"valkey://127.0.0.1:{silent.getsockname()[1]}"
        address = find(settings_for(url, timeout=0.3, connect_timeout=0.3))
        assert address is not None
        with pytest.raises(ValkeyUnavailable):
            connect(address)
        with pytest.raises(ValkeyUnavailable):
            asyncio.run(connect_async(address))


def test_without_the_package_an_address_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['valkey'] = None\n"
        "from penstock.settings import resolve\n"
        "from penstock.valkey import find\n"
        "assert find(resolve({}, {})) is None\n"
        "find(resolve({'valkey_url': 'valkey://h'}, {}))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert MissingExtra.__name__ in run.stderr
    assert "pip install 'penstock[warm]'" in run.stderr


def test_which_one_is_used() -> None:
    assert find(resolve({}, {})) is not None
    assert find(resolve({"valkey_url": "none"}, {})) is None
    assert find(resolve({"url": "postgresql://db"}, {})) is None
    given = find(resolve({"url": "postgresql://db"}, {"PENSTOCK_VALKEY_URL": "valkey://cache"}))
    assert given is not None
    assert not given.is_embedded


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("valkey://cache", "valkey://cache:6379"),
        ("valkey://cache:7000/2", "valkey://cache:7000/2"),
        (f"redis://:{SECRET}@cache", "redis://:***@cache:6379"),
        (f"rediss://ann:{SECRET}@[::1]:7000/1?ssl_cert_reqs=none", "rediss://ann:***@[::1]:7000/1"),
        (f"valkey://{SECRET}@cache", "valkey://***@cache:6379"),
        (f"valkey://ann:a@{SECRET}@cache", "valkey://ann:***@cache:6379"),
        (f"unix://:{SECRET}@/run/valkey/socket?db=2", "unix://:***@/run/valkey/socket?db=2"),
        ("unix:///run/valkey/socket", "unix:///run/valkey/socket"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    address = find(settings_for(url))
    assert address is not None
    assert address.shown == shown
    assert SECRET not in repr(address) + repr(settings_for(url))


@pytest.mark.parametrize(
    "url",
    [
        f"http://:{SECRET}@cache",
        f"valkey://ann:a#{SECRET}@cache",
        f"valkey://ann:a/{SECRET}@cache",
        f"valkey://ann:a?{SECRET}@cache",
        f"valkey://ann:x@cache:{SECRET}",
        f"valkey://cache/{SECRET}",
        f"valkey://cache?password={SECRET}",
        f"valkeys://cache?ssl_cert_reqs={SECRET}",
        f"unix://{SECRET}",
        f"unix://{SECRET}/run/socket",
        f"valkey://[{SECRET}",
        f"{SECRET}",
        f"valkey://:{SECRET}@",
    ],
)
def test_an_address_that_cannot_be_read_is_refused_and_not_quoted(url: str) -> None:
    with pytest.raises(PenstockError) as raised:
        find(settings_for(url))
    assert isinstance(raised.value, ValkeyUnusable)
    assert raised.value.code == "valkey_address"
    assert SECRET not in "".join(traceback.format_exception(raised.value))
