"""Operations are plain data, and every transport's table of them is complete."""

from typing import Any

import msgspec
import pytest

from penstock.broker.operations.groups import ConfigureGroup, CreateGroup
from penstock.broker.operations.log import CreateQueue
from penstock.broker.operations.metrics import ConfigureCheck
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.rules import AddRule
from penstock.errors import InvalidInput
from penstock.http.encoding import operations, reply_type
from penstock.postgres.statements.call import known_operations


def test_every_operation_has_a_statement() -> None:
    assert known_operations() == set(operations().values())


@pytest.mark.parametrize("kind", operations().values(), ids=lambda kind: kind.__name__)
def test_an_operation_and_its_reply_can_be_decoded(kind: type[Operation[Any]]) -> None:
    msgspec.msgpack.Decoder(kind)
    msgspec.msgpack.Decoder(reply_type(kind))
    msgspec.json.Decoder(reply_type(kind))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_setting_that_is_no_number_is_refused_and_not_taken_away(number: float) -> None:
    with pytest.raises(InvalidInput, match=r"rate_limit is .* but must be a number"):
        ConfigureGroup("q", "g", {"rate_limit": number})
    with pytest.raises(InvalidInput, match="must be a number"):
        CreateGroup("q", "g", config={"breaker_pause": number})
    with pytest.raises(InvalidInput, match="must be a number"):
        CreateQueue("q", {"push_rate_limit": number})
    with pytest.raises(InvalidInput, match="must be a number"):
        ConfigureCheck("oldest_too_old", {"threshold": number})


def test_more_redrives_than_a_number_of_the_broker_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="max_redrives is 1000000000000 but must be from 1 to 1000"):
        AddRule("often", max_redrives=10**12)
