"""The table of routes: closed by default, and nothing is served that it does not have."""

import pytest

from penstock import AsyncClient, ui
from penstock.broker.hints import Hint
from penstock.broker.operations.pushing import Push
from penstock.broker.packing import pack_values
from penstock.broker.places import Place
from penstock.broker.pushing import PushBatch
from penstock.gateway.app import create_app
from penstock.gateway.endpoint import Endpoint
from penstock.gateway.gateway import Gateway
from penstock.gateway.needs import SCOPES, needs_of
from penstock.gateway.route import Route
from penstock.gateway.routes.service import healthz
from penstock.gateway.scopes import Scope
from penstock.gateway.table import TABLE
from penstock.http import encoding

# What only Spark, flows and jobs ask for, which have the address of the database.
NOT_OFFERED = {
    *("GetRunStop", "StopRun"),
    # What dispatchers ask for: they write to PostgreSQL what Valkey was told.
    *(
        "ClaimForWindow",
        "FailWarmClaims",
        "GetDatabaseIdentity",
        "HoldWarmLease",
        "ListWarmClaims",
        "ReleaseWarmClaims",
    ),
    *("AbortStages", "AddPoison", "AdvanceReader", "BeginArchive", "BeginStage", "CopyLetters", "DropArchived"),
    *("EnsureReader", "FindArchivable", "FindArchivedAt", "FindOffsets", "FindPartitions", "FindPoison"),
    *("FlushStages", "ForgetArchive", "GetArchivedFloors", "GetBacklog", "GetDeletedEnds", "GetEpochRanges"),
    *("GetHeads", "GetLimits", "GetNextSnapshot", "GetPublishedBatch", "GetReaderPositions", "GetSnapshots"),
    # What the gateway itself asks for, to know its callers.
    *("BeginSession", "EndSession", "FindKey", "FindSession", "FinishAct", "NoteKeyUse", "RecordAct"),
    "NoteRequest",
    *("HeartbeatFlow", "KeepSnapshot", "ListArchivedLetters", "ListStages", "NoteEpoch", "PlanArchived"),
    *("PlanRanges", "PublishEpoch", "PublishStages", "ReadRanges", "RecordArchive", "RegisterFlow", "ResetFlow"),
    *("SaveSnapshot", "StageDeadLetters", "StageSegments"),
}


def test_the_application_serves_the_table_and_nothing_else() -> None:
    app = create_app(Gateway(AsyncClient("postgresql://127.0.0.1:1/nowhere")))

    served = set()
    for route in app.routes:
        endpoint = getattr(route, "endpoint", None)
        assert isinstance(endpoint, Endpoint), f"{route} is not in gateway/table.py"
        served |= {(method, row.path) for method, row in endpoint.routes.items()}

    assert served == {(row.method, row.path) for row in TABLE}
    assert len(TABLE) == len(served), "a route is in the table twice"


def test_a_route_that_may_change_something_is_never_open_to_readers() -> None:
    assert [row for row in TABLE if row.scope is Scope.READ and row.method not in ("GET", "HEAD")] == []
    with pytest.raises(ValueError, match="cannot be read"):
        Route("POST", "/harmless", healthz, Scope.READ, "Look")


def test_only_the_gateway_itself_is_open_to_everybody() -> None:
    assert {row.path for row in TABLE if row.scope is Scope.NONE} == {
        "/healthz",
        "/readyz",
        "/openapi.json",
        "/docs",
        "/docs/{file}",
        # Signing in, and asking who one is.
        "/api/v2/session",
        # The page, which has no data in it.
        *ui.PAGES,
        "/ui/{file}",
        "/ui/{folder}/{file}",
        "/ui/{version}/{folder}/{file}",
    }


def test_each_operation_is_offered_with_a_scope_or_is_known_not_to_be() -> None:
    offered = {kind.__name__ for kind in SCOPES}

    assert offered | NOT_OFFERED == set(encoding.operations())
    assert offered.isdisjoint(NOT_OFFERED)


def test_only_operations_that_do_no_harm_twice_are_for_readers() -> None:
    assert [kind for kind, scope in SCOPES.items() if scope is Scope.READ and not kind.repeatable] == []


def test_a_push_needs_the_right_to_every_queue_that_its_hint_names() -> None:
    push = Push(
        [PushBatch(Place("mine", "0"), pack_values([b"x"], None, None))], hint=Hint("sender", ["mine", "secret"])
    )
    assert set(needs_of(push)) == {(Scope.PUSH, "mine"), (Scope.PUSH, "secret")}
