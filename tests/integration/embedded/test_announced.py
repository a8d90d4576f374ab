"""Who did not ask for an embedded server is told that this is one, once; or is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock import AsyncClient, Client, SetupError
from penstock.postgres.address import open_address
from penstock.settings import Settings, resolve


def by_default(home: Path) -> Settings:
    """Settings with which this home is the default one."""
    settings = resolve({"home": home}, {})
    return replace(settings, origins=tuple(replace(each, source="default") for each in settings.origins))


def test_an_embedded_server_that_nobody_asked_for_is_told_of_once(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(home=home):
        assert capsys.readouterr().err == ""
        for _ in range(2):
            open_address(by_default(home)).close()
    said = capsys.readouterr().err
    assert said.count("PENSTOCK_URL is not set") == 1
    assert str(home) in said
    assert "PENSTOCK_URL=postgresql://" in said


async def test_an_embedded_server_may_be_forbidden(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_EMBEDDED", "never")
    with pytest.raises(SetupError, match="Set PENSTOCK_URL="):
        Client(home=home)
    with pytest.raises(SetupError, match="Set PENSTOCK_URL="):
        await AsyncClient(home=home).open()
    monkeypatch.setenv("PENSTOCK_EMBEDDED", "sometimes")
    with pytest.raises(SetupError, match="must be auto or never"):
        Client(home=home)
