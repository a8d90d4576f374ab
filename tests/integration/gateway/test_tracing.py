"""Traces: push, pop, action and what the action pushes are one trace, joined through the headers of messages."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from workers.processes import running, values

from databases import Connection
from gateways import gateway
from penstock import Client, Item, Message, tracing
from penstock.workers.items import Place
from penstock.workers.verdicts import returned

# A worker whose spans go to a file, one line of JSON each.
APP = """
import json, os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from penstock import Item, action

class ToFile(SpanExporter):
    def export(self, spans):
        with open(os.environ["SPANS"], "a") as file:
            for span in spans:
                context = span.get_span_context()
                file.write(json.dumps({"name": span.name, "trace": f"{context.trace_id:032x}",
                    "span": f"{context.span_id:016x}", "parent": f"{span.parent.span_id:016x}" if span.parent else None,
                    "ok": span.status.is_ok}) + "\\n")
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ToFile()))
trace.set_tracer_provider(provider)

@action(queue="incoming", to="parsed", flow="orders")
async def parse(item: Item) -> object:
    return item.json()

@action(queue="parsed", to="stored", flow="orders", run_in="process")
def store(item: Item) -> object:
    return item.json()
"""


@pytest.fixture
def spans(untraced: None) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield exporter
    provider.shutdown()


def named(spans: InMemorySpanExporter, name: str) -> Any:
    [found] = [span for span in spans.get_finished_spans() if span.name == name]
    return found


def test_push_pop_action_and_its_pushes_are_one_trace(
    dsn: str, spans: InMemorySpanExporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "spans"
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.setenv("SPANS", str(written))
    monkeypatch.setenv("PENSTOCK_TRACING", "on")
    with Client(dsn) as client:
        client.create_group("stored", "test")
        with running(dsn, tmp_path / "app.py"):
            client.push("incoming", "one")
            assert values(client, "stored", 1) == ["one"]
            while not written.exists() or len(written.read_text().splitlines()) < 4:
                time.sleep(0.01)
    pushed = named(spans, "send incoming").get_span_context()
    of_worker = {line["name"]: line for line in map(json.loads, written.read_text().splitlines())}
    assert set(of_worker) == {"receive incoming", "process orders.parse", "receive parsed", "process orders.store"}
    assert {line["trace"] for line in of_worker.values()} == {f"{pushed.trace_id:032x}"}
    chain = ["receive incoming", "process orders.parse", "receive parsed", "process orders.store"]
    parent = f"{pushed.span_id:016x}"
    for name in chain:
        assert of_worker[name]["parent"] == parent
        parent = of_worker[name]["span"]
    popped = named(spans, "receive stored")
    [link] = popped.links
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (f"{pushed.trace_id:032x}", parent)


def test_a_handler_of_process_runs_below_the_push_also_one_that_fails(dsn: str, spans: InMemorySpanExporter) -> None:
    with Client(dsn, tracing=True) as client:
        client.create_group("q", "g", max_attempts=1)
        with client.transaction() as tx:
            tx.push("q", Message(b"1", headers={"mine": "kept"}))

        def handle(message: Any) -> None:
            assert message.headers["mine"] == "kept"
            client.push("next", b"2")
            raise OSError("no")

        client.process("q", handle, group="g", idle_timeout=0, handle_signals=False)
    sent, handled, after = (named(spans, name) for name in ("send transaction", "process q", "send next"))
    assert {span.context.trace_id for span in (sent, handled, after)} == {sent.context.trace_id}
    assert after.parent.span_id == handled.context.span_id
    assert handled.status.status_code is trace.StatusCode.ERROR


def test_a_bare_trace_id_is_joined_and_one_that_is_none_is_left_alone(dsn: str, spans: InMemorySpanExporter) -> None:
    ids = "0af7651916cd43dd8448eb211c80319c"
    with Client(dsn, tracing=True) as client:
        client.create_group("q", "g")
        for given in ({"traceId": ids}, {"traceId": "nonsense"}, {"traceparent": "nonsense"}):
            client.push("q", b"1", headers=given)
        client.process("q", lambda message: None, group="g", idle_timeout=0, handle_signals=False)
    handled = [span for span in spans.get_finished_spans() if span.name == "process q"]
    assert len(handled) == 3
    assert [f"{span.context.trace_id:032x}" == ids for span in handled].count(True) == 1


def test_a_request_is_a_span_below_that_of_its_caller(dsn: str, spans: InMemorySpanExporter) -> None:
    tracing.enable()
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with gateway(dsn) as running_gateway, Client(dsn) as client:
        body = {"messages": [{"value": 1}]}
        headers = {"traceparent": f"00-{trace_id}-{span_id}-01"}
        answer = running_gateway.ask("POST", "/queues/q/messages", body, headers)
        assert answer.status == 201
        [message] = client.read("q", "0")
    request, sent = named(spans, "POST /api/v2/queues/{queue}/messages"), named(spans, "send q")
    assert (f"{request.context.trace_id:032x}", f"{request.parent.span_id:016x}") == (trace_id, span_id)
    assert sent.parent.span_id == request.context.span_id
    assert message.headers == {"traceparent": f"00-{trace_id}-{sent.context.span_id:016x}-01"}


def test_off_nothing_is_imported_and_messages_have_no_headers(dsn: str, sql: Connection) -> None:
    code = (
        "import sys; from penstock import Client\n"
        f"with Client({dsn!r}) as client:\n"
        "    client.push('q', b'1', partition='p')\n"
        "    with client.pop('q') as batch: assert batch.messages[0].headers is None\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules), 'imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_worker_that_does_not_trace_passes_the_trace_on(client: Client) -> None:
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    client.push("in", 1, headers={"traceparent": given}, partition="p")
    [message] = client.read("in", "p")
    memory: Any = None
    verdict = returned(Item(message, Place("f", "a", memory), None), 2, True)
    assert verdict is not None
    assert verdict.outputs[0].headers["traceparent"] == given
