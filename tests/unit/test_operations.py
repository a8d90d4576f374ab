"""Operations are plain data, and every transport's table of them is complete."""

import importlib
import inspect
import pkgutil
from typing import Any, get_args

import msgspec
import pytest

import penstock.broker.operations
from penstock.broker.operations.operation import Operation, Repeatable
from penstock.postgres.statements.call import known_operations

OPERATIONS: list[type[Operation[Any]]] = sorted(
    {
        kind
        for room in pkgutil.iter_modules(penstock.broker.operations.__path__)
        for _, kind in inspect.getmembers(
            importlib.import_module(f"penstock.broker.operations.{room.name}"), inspect.isclass
        )
        if issubclass(kind, Operation) and kind not in (Operation, Repeatable)
    },
    key=lambda kind: kind.__name__,
)


def test_every_operation_has_a_statement() -> None:
    assert known_operations() == set(OPERATIONS)


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.__name__)
def test_an_operation_and_its_reply_can_be_decoded(kind: type[Operation[Any]]) -> None:
    (base,) = kind.__orig_bases__  # type: ignore[attr-defined]
    (reply,) = get_args(base)
    msgspec.msgpack.Decoder(kind)
    msgspec.msgpack.Decoder(reply)
    msgspec.json.Decoder(reply)


def test_the_names_of_operations_tell_them_apart() -> None:
    union: Any = OPERATIONS[0]
    for kind in OPERATIONS[1:]:
        union = union | kind
    msgspec.msgpack.Decoder(union)
