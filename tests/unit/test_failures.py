"""One table turns SQLSTATEs, of any driver and however wrapped, into errors that say what to do."""

import pytest

from penstock import InvalidInput, PenstockError, Retryable, SetupError, TimedOut, Unavailable
from penstock.errors import LockTimeout, ReadOnlyServer
from penstock.postgres.failures import sqlstate_of, translate, translated


class DriverError(Exception):
    def __init__(self, message: str, **attributes: object) -> None:
        super().__init__(message)
        self.__dict__.update(attributes)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("40001", Retryable),
        ("40P01", Retryable),
        ("55P03", LockTimeout),
        ("25006", ReadOnlyServer),
        ("57014", TimedOut),
        ("57P01", Unavailable),
        ("08006", Unavailable),
        ("42501", SetupError),
        ("3D000", SetupError),
        ("22023", InvalidInput),
        ("22003", InvalidInput),
        ("XX000", PenstockError),
    ],
)
@pytest.mark.parametrize("attribute", ["sqlstate", "pgcode"])
def test_a_sqlstate_becomes_a_typed_error(code: str, kind: type[PenstockError], attribute: str) -> None:
    translated_error = translate(DriverError("the server said so", **{attribute: code}))
    assert type(translated_error) is kind
    assert "the server said so" in str(translated_error)


def test_the_sqlstate_is_found_in_what_a_library_wrapped() -> None:
    inner = DriverError("inner", sqlstate="40001")
    assert sqlstate_of(DriverError("outer", orig=inner)) == "40001"
    outer = DriverError("outer")
    outer.__cause__ = inner
    assert sqlstate_of(outer) == "40001"


def test_what_is_not_the_databases_doing_passes_through() -> None:
    with pytest.raises(KeyError), translated():
        raise KeyError("mine")
    assert translate(KeyError("mine")) is None


def test_each_error_is_caught_by_the_builtin_it_resembles() -> None:
    assert issubclass(InvalidInput, ValueError)
    assert issubclass(TimedOut, TimeoutError)
    assert issubclass(Unavailable, ConnectionError)
