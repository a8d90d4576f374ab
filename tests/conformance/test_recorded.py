"""The tests that run through a recorder are enough: every operation of a client is among what they send."""

import pytest

from penstock.broker.operations.claiming import HasPending
from penstock.postgres.database import Database
from penstock.settings import resolve

from . import recorder
from .conftest import EVERY_OPERATION

# The modules of operations that Spark runs, on connections of its own; tests/spark runs them.
OF_SPARK = ("archives", "flows", "ranges", "staging")
BUT_A_CLIENT_RUNS = {"ForgetFlow", "ListActions", "ListArchives", "ListFlows", "PauseFlow"}
REASONS = {"ListFailingTimers": "`penstock doctor` runs it, on a connection of its own"}


def is_of_a_client(kind: type[object]) -> bool:
    if kind.__name__ in BUT_A_CLIENT_RUNS:
        return True
    return kind.__module__.rpartition(".")[2] not in OF_SPARK and kind.__name__ not in REASONS


def test_what_a_client_asks_only_when_it_has_waited_for_long_goes_through_a_recorder(dsn: str) -> None:
    through = recorder.Recorder(Database(resolve({"url": dsn})))
    through.open()
    assert through.run(HasPending("q", "g")) is False
    through.close()


def test_every_operation_of_a_client_went_through_a_recorder(request: pytest.FixtureRequest) -> None:
    """Runs after all others of its process: see tests/conftest.py."""
    files = {item.path.stem.removeprefix("test_") for item in request.session.items}
    if not files >= EVERY_OPERATION or request.config.getoption("keyword"):
        pytest.skip("only a run of all conformance tests tells")
    seen = recorder.Record.kinds
    assert [kind.__name__ for kind in recorder.operations() if is_of_a_client(kind) and kind not in seen] == []
