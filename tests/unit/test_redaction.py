"""What is shown or logged of an address never has its password."""

import contextlib
import traceback
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from penstock import AsyncClient, Client, PenstockError, SetupError
from penstock.postgres.address import redact
from penstock.settings import resolve

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://ann@db:5432/app", "postgresql://ann@db:5432/app"),
        ("postgresql://db/app?sslmode=require", "postgresql://db/app?sslmode=require"),
        (f"postgresql://ann:{SECRET}@db:5432/app", "postgresql://ann:***@db:5432/app"),
        (f"postgres://ann:{SECRET}@a,b:5433/app?sslmode=require", "postgres://ann:***@a,b:5433/app?sslmode=require"),
        (f"postgresql://:{SECRET}@db/app", "postgresql://:***@db/app"),
        (f"https://ann:{SECRET}@gateway/x", "https://***@gateway/***"),
        ("http://gateway:8080/", "http://gateway:8080/"),
        ("postgresql://ann%40tenant@[::1]:5432/app", "postgresql://ann%40tenant@[::1]:5432/app"),
        ("postgresql:///app?host=/run/pg&connect_timeout=3", "postgresql://%2Frun%2Fpg/app?connect_timeout=3"),
        ("postgresql://db/app?sslkey=/etc/ann.key", "postgresql://db/app?sslkey=%2Fetc%2Fann.key"),
        (f"postgresql://db/app?options=-cx.y%3D{SECRET}", "postgresql://db/app?options=***"),
        ("postgresql://", "postgresql://"),
        (f"postgresql+psycopg://ann:{SECRET}@db/app", "postgresql://ann:***@db/app"),
        (f"postgresql+asyncpg://ann:{SECRET}@db/app?sslmode=require", "postgresql://ann:***@db/app?sslmode=require"),
        ("host=db user=ann", "user=ann host=db"),
    ],
)
def test_the_rest_of_the_address_stays_readable(dsn: str, shown: str) -> None:
    assert sorted(redact(dsn).split()) == sorted(shown.split())


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://ann@db/app?password={SECRET}",
        f"postgresql://ann@db/app?sslmode=require&password={SECRET}&application_name=x",
        f"postgresql://ann@db/app?sslpassword={SECRET}",
        f"postgresql://ann@db/app?pass%77ord={SECRET}",
        f"postgresql://ann:x@db/app?password={SECRET}",
        f"host=db user=ann password={SECRET}",
        f"host=db user=ann password='a {SECRET}' dbname=x",
        f"host=db user=ann password = {SECRET}",
        f"host=db sslpassword={SECRET}",
        f"postgresql://ann:a@{SECRET}@db/app",
        f"postgresql://ann:a?{SECRET}@db/app",
        f"postgresql://ann:a#{SECRET}@db/app",
        f"postgresql://ann:a/{SECRET}@db/app",
        f"postgresql://ann:a:{SECRET}@db/app",
        f"postgresql://ann:a[{SECRET}@db/app",
        f"postgresql://ann:%zz{SECRET}@db/app",
        f"host=db password={SECRET} nonsense",
        f"host=db pasword={SECRET}",
        f"postgresql+psycopg://ann:{SECRET}@127.0.0.1:1/app",
        f"postgresql+psycopg2://ann:a@{SECRET}@127.0.0.1:1/app",
        f"postgresql+psycopg://ann:{SECRET}@127.0.0.1:1/app?ssl=require",
        f"postgres+x://ann@127.0.0.1:1/app?password={SECRET}",
        f"mysql://ann:{SECRET}@127.0.0.1:1/app",
        f"https://ann:{SECRET}@gateway/x",
        f"https://{SECRET}@gateway/x",
        f"https://gateway/x?password={SECRET}",
        f"https://gateway/x?token={SECRET}&api_key={SECRET}#{SECRET}",
        f"https://gateway/{SECRET}",
        f"https://ann:a/{SECRET}@gateway/x",
        f"https://gateway/x?token=a@{SECRET}",
        f"postgresql://ann:x@db/app?oauth_client_secret={SECRET}",
        f"postgresql://ann@db/app?scram_client_key={SECRET}",
        f"postgresql://ann@db/app?scram_server_key={SECRET}",
        f"postgresql://ann@db/app?options=-c%20x.y%3D{SECRET}",
        f"host=db oauth_client_secret={SECRET} scram_client_key={SECRET}",
        f"postgresql://ann:x@db/app?password=a@{SECRET}",
        f"postgresql://127.0.0.1:1/app?password=a@{SECRET}",
        f"postgresql://ann:12/{SECRET}@db/app",
        f"postgresql://ann:{SECRET}@a:1,bob:{SECRET}@b:2/app",
        f"postgresql://ann%3A{SECRET}@db/app",
        f"host=db dbname='postgresql://ann:{SECRET}@db/app'",
        f"host=db dbname='user=ann password={SECRET}'",
    ],
)
def test_a_password_is_never_shown(dsn: str) -> None:
    assert SECRET not in redact(dsn)
    settings = resolve({"url": dsn, "connect_timeout": 2}, {})
    assert SECRET not in repr(settings)
    local = dsn.replace("@db", "@127.0.0.1:1").replace("host=db", "host=127.0.0.1 port=1")
    with pytest.raises(PenstockError) as raised:
        Client(local, connect_timeout=2)
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    # The address of a gateway that cannot be read is refused at once, as above.
    with contextlib.suppress(SetupError):
        assert SECRET not in repr(AsyncClient(local))


def test_an_address_of_sqlalchemy_is_taken_as_it_is_without_the_driver() -> None:
    assert resolve({"url": "postgresql+asyncpg://ann@db/app"}, {}).url == "postgresql://ann@db/app"
    assert resolve({}, {"PENSTOCK_URL": "postgres+psycopg://db"}).url == "postgres://db"
    assert resolve({"url": "host=db+x://y"}, {}).url == "host=db+x://y"


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=4))
def test_no_password_is_shown_in_either_form(password: str) -> None:
    marked = f"<{password}>"
    assert marked not in redact(f"postgresql://ann:{quote(marked, safe='')}@db/app")
    assert quote(marked, safe="") not in redact(f"postgresql://ann:{quote(marked, safe='')}@db/app")
    assert marked not in redact(make_conninfo("", host="db", password=marked))
