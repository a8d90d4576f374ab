"""Operations are plain data, and every transport's table of them is complete."""

from typing import Any

import msgspec
import pytest

from penstock.broker.operations.operation import Operation
from penstock.http.encoding import operations, reply_type
from penstock.postgres.statements.call import known_operations


def test_every_operation_has_a_statement() -> None:
    assert known_operations() == set(operations().values())


@pytest.mark.parametrize("kind", operations().values(), ids=lambda kind: kind.__name__)
def test_an_operation_and_its_reply_can_be_decoded(kind: type[Operation[Any]]) -> None:
    msgspec.msgpack.Decoder(kind)
    msgspec.msgpack.Decoder(reply_type(kind))
    msgspec.json.Decoder(reply_type(kind))
