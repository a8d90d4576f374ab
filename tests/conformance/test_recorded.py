"""The tests that run through a recorder are enough: every operation of a client is among what they send."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from penstock import Client, Message
from penstock.broker.items import ItemNote, ItemNotes, ItemOutcome, Output, SettledClaim
from penstock.broker.operations.claiming import HasPending, HasPendingMany, Pop
from penstock.broker.operations.groups import CreateGroup
from penstock.broker.operations.items import (
    CancelMessages,
    GetResult,
    GetState,
    ListCancelled,
    NoteItems,
    ReadNotes,
    SaveStep,
    SettleItems,
)
from penstock.broker.operations.warm import (
    ClaimForWindow,
    FailWarmClaims,
    GetDatabaseIdentity,
    HoldWarmLease,
    ListQueuedWork,
    ListWarmClaims,
    ListWarmGroups,
    ReleaseWarmClaims,
)
from penstock.broker.operations.workers import (
    GetRunStop,
    ListTasks,
    RegisterActions,
    RegisteredAction,
    ReportTasks,
    StopRun,
)
from penstock.broker.places import Place
from penstock.broker.pushing import PushBatch
from penstock.broker.tasks import ReportedTask
from penstock.broker.warm import FailedPart
from penstock.http.encoding import operations
from penstock.postgres.database import Database
from penstock.settings import resolve

from . import recorder
from .conftest import EVERY_OPERATION

# The modules of operations that Spark runs, on connections of its own; tests/spark runs them.
OF_SPARK = ("archives", "flows", "ranges", "staging")
BUT_A_CLIENT_RUNS = {"ForgetFlow", "ListActions", "ListArchives", "ListFlows", "PauseFlow"}
REASONS = {
    **dict.fromkeys(
        ("BeginSession", "EndSession", "FindKey", "FindSession", "FinishAct", "NoteKeyUse", "NoteRequest", "RecordAct"),
        "a gateway runs it, on connections of its own",
    ),
    **dict.fromkeys(
        ("BeginJob", "ListJobs", "NoteJob", "StopJob"),
        "a gateway runs it; tests/integration/gateway has its tests",
    ),
    **dict.fromkeys(
        ("GetOutline", "ListTotals", "MapLag", "SearchPartitions"),
        "a gateway runs it for the page; tests/integration/browsing has its tests",
    ),
    "ListFailingTimers": "`penstock doctor` runs it, on a connection of its own",
    "ListMeasuredQueues": "`penstock rollup` runs it",
    "StoreRollups": "`penstock rollup` runs it, in the tasks of a Spark job",
}


def is_of_a_client(kind: type[object]) -> bool:
    if kind.__name__ in BUT_A_CLIENT_RUNS:
        return True
    return kind.__module__.rpartition(".")[2] not in OF_SPARK and kind.__name__ not in REASONS


def test_what_a_client_asks_only_when_it_has_waited_for_long_goes_through_a_recorder(dsn: str) -> None:
    with Client(dsn) as client:
        for group in ("full", "empty"):
            client.create_group(group, "g")
        client.push("full", "x", partition="p")
    through = recorder.Recorder(Database(resolve({"url": dsn})))
    through.open()
    assert through.run(HasPending("q", "g")) is False
    asks = [
        HasPending("empty", "g"),
        HasPending("full", "g", "p"),
        HasPending("full", "g", "other"),
        HasPending("q", "g"),
    ]
    assert through.run(HasPendingMany(asks)) == [False, True, False, False]
    assert through.run(HasPendingMany([HasPending("full", "g", ready_from=[0]), *asks[:1]])) == [True, False]
    assert through.run(HasPendingMany([])) == []
    through.close()


def test_what_a_dispatcher_asks_goes_through_a_recorder(dsn: str) -> None:
    with Client(dsn) as client:
        group_id = client._transport.run(CreateGroup("q", "g", config={"warm": True}))
        client.push("q", "x", partition="p")
    through = recorder.Recorder(Database(resolve({"url": dsn})))
    through.open()
    held = through.run(HoldWarmLease(group_id, "me"))
    (claim,) = through.run(ClaimForWindow(group_id, 1, "q", 10, 1, 1000, 60.0, "window")) or []
    found = through.run(ListWarmClaims(group_id, "window"))
    part = FailedPart(claim.partition_id, UUID(int=1), 0, 1)

    assert held is not None
    assert (held.epoch, held.obstacle, held.capacity) == (1, None, 5000)
    assert found == [(claim.partition_id, claim.lease_id)]
    assert through.run(ClaimForWindow(group_id, 1, "q", 10, 1, 1000, 60.0, "window")) == []
    assert through.run(ClaimForWindow(group_id, 2, "q", 10, 1, 1000, 60.0, "window")) is None
    assert through.run(FailWarmClaims(group_id, [part])) == [None]
    partitions, leases = [claim.partition_id], [lease for _, lease in found]
    assert through.run(ReleaseWarmClaims(group_id, 2, partitions, leases)) is None
    assert through.run(ReleaseWarmClaims(group_id, 1, partitions, leases)) == 1
    assert [group.live for group in through.run(ListWarmGroups())] == [True]
    assert through.run(ListQueuedWork()) == []
    assert len(through.run(GetDatabaseIdentity())) == 12
    through.close()


def test_what_is_asked_about_items_goes_through_a_recorder(dsn: str) -> None:
    with Client(dsn) as client:
        client.create_group("q", "g")
        client.push("q", "x", partition="p")
    through = recorder.Recorder(Database(resolve({"url": dsn})))
    through.open()
    (claim,) = through.run(Pop("q", "g"))
    settled = SettledClaim(claim.lease, outcomes=[ItemOutcome(0, "failed", 0.0, "oops")], release_rest=True)
    output = Output(0, PushBatch.of(Place("out", "p"), [Message(b"y")]))
    reply = through.run(SettleItems([settled], [output], Pop("q", "g")))
    assert (reply.settled, reply.outcomes, reply.claims[0].attempt) == (["settled"], [["retry"]], 2)
    lease = reply.claims[0].lease
    assert through.run(NoteItems([ItemNote(lease, 0, 50, "half", b"[1]")])) == [True]
    assert through.run(SaveStep(lease, 0, "charge", b"7")) == b"7"
    assert through.run(ReadNotes(lease, 0)) == ItemNotes(50, "half", b"[1]", {"charge": b"7"})
    assert through.run(ListCancelled([(lease.group_id, lease.partition_id)])) == []
    through.run(RegisterActions([RegisteredAction("f", "a", "DATA_SINK", "m.a", "p:1", "q", None)]))
    task = ReportedTask("m.a", "f", "a", UUID(int=1), UUID(int=2), datetime.now(UTC), 1, 50.0, "half")
    through.run(ReportTasks("w", [task]))
    (found,) = through.run(ListTasks("f"))
    assert (found.did, found.flow_type, found.progress, found.text) == (UUID(int=1), "DATA_SINK", 50.0, "half")
    assert through.run(GetRunStop("r")) is None
    through.run(StopRun("r", at_once=True))
    through.run(StopRun("r"))
    assert through.run(GetRunStop("r")) is True
    which = reply.claims[0].messages[0].id
    assert [each.state for each in through.run(GetState(which)) or []] == ["in flight"]
    assert [each.state for each in through.run(GetResult(which))] == ["in flight"]
    assert through.run(CancelMessages([which])) == [which]
    assert len(through.run(ListCancelled([(lease.group_id, lease.partition_id)]))) == 1
    through.close()


def test_every_operation_of_a_client_went_through_a_recorder(request: pytest.FixtureRequest) -> None:
    """Runs after all others of its process: see tests/conftest.py."""
    files = {item.path.stem.removeprefix("test_") for item in request.session.items}
    if not files >= EVERY_OPERATION or request.config.getoption("keyword"):
        pytest.skip("only a run of all conformance tests tells")
    seen = recorder.Record.kinds
    assert [kind.__name__ for kind in operations().values() if is_of_a_client(kind) and kind not in seen] == []
