"""A database for each page: the emptied one that all tests share, because a new one each time costs seconds."""

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from psycopg.conninfo import conninfo_to_dict

from sessions import end_spark


@pytest.fixture(scope="module")
def own_spark() -> Iterator[None]:
    """No Spark that others have left here, and none that is left to others."""
    end_spark()
    yield
    end_spark()


@pytest.fixture
def page_url(own_spark: None, dsn: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty penstock as a URL, which is what readers have; in PENSTOCK_URL, too."""
    known = {name: quote(str(value), safe="") for name, value in conninfo_to_dict(dsn).items()}
    login = known["user"] + (f":{known['password']}" if "password" in known else "")
    url = f"postgresql://{login}@{known['host']}:{known.get('port', 5432)}/{known['dbname']}"
    monkeypatch.setenv("PENSTOCK_URL", url)
    return url
