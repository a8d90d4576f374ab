"""Lengths of time and names: what is taken for one, in which form, and what is refused by its name."""

import math
import threading
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from penstock import InvalidInput
from penstock.broker.arguments import as_text, delay_time, lease_time, patience, positive

KINDS: dict[str, Callable[[Any], float | None]] = {
    "timeout": lambda given: positive("timeout", given),
    "wait": lambda given: patience("wait", given),
    "lease": lease_time,
    "delay": delay_time,
}


class Number(int, Enum):
    SEVEN = 7


class Text(StrEnum):
    EU = "europe"


class Plain(IntEnum):
    SEVEN = 7


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("given", [math.nan, True, "5", Decimal(5), 5j, [5], np.float64("nan"), np.bool_(True)])
def test_what_is_no_length_of_time_is_refused_by_its_name(name: str, given: object) -> None:
    with pytest.raises(InvalidInput, match=f"^{name} is "):
        KINDS[name](given)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("given", [5, 5.0, timedelta(seconds=5), Fraction(5), np.int64(5), np.float32(5)])
def test_any_real_number_and_a_timedelta_are_seconds(name: str, given: object) -> None:
    taken = KINDS[name](given)
    assert taken == 5.0
    assert type(taken) is float


@pytest.mark.parametrize("name", ["lease", "delay"])
@pytest.mark.parametrize("given", [math.inf, -1, -math.inf, 10**400, 1e12, timedelta.max])
def test_a_lease_or_a_delay_that_no_server_takes_is_refused(name: str, given: object) -> None:
    with pytest.raises(InvalidInput, match=f"^{name} is "):
        KINDS[name](given)


@pytest.mark.parametrize("name", ["timeout", "wait"])
@pytest.mark.parametrize("given", [math.inf, 10**400, timedelta.max])
def test_a_limit_without_end_is_as_long_as_locks_can_be_waited_for(name: str, given: object) -> None:
    taken = KINDS[name](given)
    assert taken is not None
    assert 86_400 < taken <= threading.TIMEOUT_MAX


@pytest.mark.parametrize("given", [0, -1, -math.inf, -(10**400), timedelta(0)])
def test_a_limit_is_above_0_and_who_waits_for_less_does_not_wait(given: Any) -> None:
    with pytest.raises(InvalidInput, match="more than 0"):
        positive("timeout", given)
    assert patience("wait", given) == 0.0


def test_a_member_of_an_enum_is_named_by_its_value() -> None:
    assert [as_text(given) for given in (Number.SEVEN, Plain.SEVEN, Text.EU, 7)] == ["7", "7", "europe", "7"]
    assert type(as_text(Text.EU)) is str
