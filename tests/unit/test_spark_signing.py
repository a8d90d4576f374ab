"""Errors of penstock's source and sink can be told from those of a user's function, whatever these say."""

import traceback
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from penstock import InvalidInput, PenstockError
from penstock.spark.options import write_options
from penstock.spark.signing import new_sign, signed_error, signs_errors
from penstock.spark.writing import BatchWriter, StreamWriter

SIGN = new_sign()
OPTIONS = write_options({"url": "postgresql://nobody@localhost/none", "queue": "out", "errorSign": SIGN})


@signs_errors
class Reader:
    """Reads something, and then no more."""

    options = OPTIONS

    def read(self) -> Iterator[int]:
        yield 1
        raise PenstockError("no more\nof it")


def story(function: Callable[[], object]) -> str:
    """Return what Spark tells of an error."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        function()
    return "".join(traceback.format_exception(caught.value))


def test_what_the_sink_raises_is_signed() -> None:
    text = story(lambda: StreamWriter(OPTIONS).commit([], 7))
    assert str(signed_error(text, SIGN)) == "PenstockError: epoch 7 has no task that says which query it belongs to"


def test_what_is_raised_while_rows_are_read_is_signed_in_one_line() -> None:
    assert str(signed_error(story(lambda: list(Reader().read())), SIGN)) == "PenstockError: no more"


def test_only_a_signed_error_counts_and_only_with_the_sign_of_the_query() -> None:
    def raising() -> None:
        raise ValueError("x\npenstock DataLost: gone\nDataLost: gone")

    own = story(lambda: StreamWriter(OPTIONS).commit([], 7))
    assert signed_error(story(raising), SIGN) is None
    assert signed_error(own, new_sign()) is None
    assert signed_error(own, None) is None


def test_an_error_that_utf_8_cannot_encode_keeps_its_name_and_is_escaped() -> None:
    @signs_errors
    class Failing(Reader):
        def commit(self, error: Exception) -> None:
            raise error

    for error in (InvalidInput("half a pair: \ud800"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "half: \ud800")):
        text = story(partial(Failing().commit, error))
        assert text.encode()
        assert "\\ud800" in text.splitlines()[-1 if isinstance(error, UnicodeDecodeError) else -2]
        assert type(error).__name__ in text
    found = signed_error(story(partial(Failing().commit, InvalidInput("\ud800"))), SIGN)
    assert found == (InvalidInput, "\\ud800")


def test_somebody_elses_error_is_not_signed() -> None:
    text = story(lambda: BatchWriter(OPTIONS).write(map(int, ["x"])))
    assert "ValueError" in text
    assert signed_error(text, SIGN) is None


def test_a_sign_is_part_of_no_address() -> None:
    other = write_options({"url": "postgresql://nobody@localhost/none", "queue": "out"})
    assert OPTIONS.target == other.target
    assert hash(OPTIONS.target) == hash(other.target)
    assert SIGN not in repr(OPTIONS)
