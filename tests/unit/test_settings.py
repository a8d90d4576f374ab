"""A setting comes from an argument, else the environment, else its default; and says which."""

from pathlib import Path

import pytest

from penstock import SetupError
from penstock.settings import OPTIONS, Setting, resolve


def test_defaults_hold_when_nothing_is_given() -> None:
    settings = resolve({}, {})
    assert (settings.url, settings.timeout, settings.connect_timeout, settings.pool_size) == (None, 30.0, 10.0, 8)
    assert {setting.source for setting in settings.origins} == {"default"}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("url", "postgresql://somewhere/x", "postgresql://somewhere/x"),
        ("home", "/some/where", Path("/some/where")),
        ("timeout", "2.5", 2.5),
        ("connect_timeout", "3", 3.0),
        ("pool_size", "4", 4),
    ],
)
def test_an_argument_beats_the_environment_which_beats_the_default(name: str, text: str, value: object) -> None:
    variable = f"PENSTOCK_{name.upper()}"
    from_environment = resolve({}, {variable: text})
    assert getattr(from_environment, name) == value
    assert _source(from_environment.origins, name) == variable
    from_argument = resolve({name: value}, {variable: "9"})
    assert getattr(from_argument, name) == value
    assert _source(from_argument.origins, name) == "argument"


def test_an_argument_of_none_and_an_empty_variable_count_as_not_given() -> None:
    settings = resolve({"timeout": None}, {"PENSTOCK_TIMEOUT": ""})
    assert settings.timeout == 30.0


@pytest.mark.parametrize("name", ["timeout", "connect_timeout"])
@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", "1e999"])
def test_seconds_must_be_a_number_above_zero(name: str, text: str) -> None:
    with pytest.raises(SetupError, match=f"argument {name}='{text}' is invalid"):
        resolve({name: text}, {})
    with pytest.raises(SetupError, match=f"PENSTOCK_{name.upper()}='{text}' is invalid"):
        resolve({}, {f"PENSTOCK_{name.upper()}": text})


@pytest.mark.parametrize("text", ["0", "-3", "1.5", "many"])
def test_a_pool_has_a_whole_number_of_connections(text: str) -> None:
    with pytest.raises(SetupError, match="maximum number of connections of a client"):
        resolve({"pool_size": text}, {})


def test_every_setting_says_what_it_means() -> None:
    assert all(option.help for option in OPTIONS)
    assert [option.variable for option in OPTIONS][:2] == ["PENSTOCK_URL", "PENSTOCK_HOME"]


def _source(origins: tuple[Setting, ...], name: str) -> str:
    return next(setting.source for setting in origins if setting.option.name == name)
