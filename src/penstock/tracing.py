"""Traces of messages with OpenTelemetry: from the push over the queue to the handler, and on to what that pushes.

Off, nothing of OpenTelemetry is imported, and each place that could record something asks one question. On, a push is a
span whose context goes with its messages in the header `traceparent` (W3C); a handler runs in a span below it. Where
spans go is up to the program: penstock uses the API of OpenTelemetry, and whatever provider is set.
"""

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from functools import wraps
from typing import Any, Protocol
from uuid import UUID

from penstock.errors import MissingExtra

# The headers of a trace: the W3C ones, and the bare id of a trace that other systems give.
TRACEPARENT, TRACESTATE, TRACE_ID = "traceparent", "tracestate", "traceId"
PASSED_ON = (TRACEPARENT, TRACESTATE, TRACE_ID)
_SYSTEM = "penstock"
# A span of a batch has links to so many of its messages.
_MOST_LINKS = 32
_NOTHING: AbstractContextManager[None] = nullcontext()

_tracer: Any = None


class TracedMessage(Protocol):
    """What is looked at of a message."""

    @property
    def id(self) -> UUID:
        """Its id."""

    @property
    def queue(self) -> str:
        """Its queue."""

    @property
    def partition(self) -> str:
        """Its partition."""

    @property
    def offset(self) -> int:
        """Its offset."""

    @property
    def timestamp(self) -> datetime:
        """When it was pushed."""

    @property
    def headers(self) -> Mapping[str, str] | None:
        """Its headers."""


def enable() -> None:
    """Record spans in this process from now on."""
    global _tracer
    if _tracer is None:
        try:
            from opentelemetry import trace
        except ModuleNotFoundError as error:
            raise MissingExtra("otel", "tracing") from error
        _tracer = trace.get_tracer("penstock")


def is_on() -> bool:
    """Say whether spans are recorded."""
    return _tracer is not None


def sending(queue: str) -> AbstractContextManager[Any]:
    """Surround a push with a span, which is then the current one."""
    if _tracer is None:
        return _NOTHING
    from opentelemetry.trace import SpanKind

    attributes = {
        "messaging.system": _SYSTEM,
        "messaging.operation.type": "send",
        "messaging.destination.name": queue,
    }
    span: AbstractContextManager[Any] = _tracer.start_as_current_span(
        f"send {queue}", kind=SpanKind.PRODUCER, attributes=attributes
    )
    return span


def with_context(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return headers with the context of the current span; those that have one already keep it."""
    if _tracer is None or (headers is not None and (TRACEPARENT in headers or TRACE_ID in headers)):
        return headers
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(context)
    return {**(headers or {}), **context} if context else headers


def received(queue: str, group: str, messages: Sequence[TracedMessage], began: int) -> None:
    """Record the pop of a batch, from a time in nanoseconds on, with links to the pushes of its messages."""
    if _tracer is None:
        return
    from opentelemetry.trace import Link, SpanKind, get_current_span

    found = {(message.headers or {}).get(TRACEPARENT): message for message in messages}
    found.pop(None, None)
    links = [
        Link(get_current_span(parent_of(message)).get_span_context()) for message in list(found.values())[:_MOST_LINKS]
    ]
    span = _tracer.start_span(
        f"receive {queue}",
        kind=SpanKind.CONSUMER,
        links=links,
        start_time=began,
        attributes={
            "messaging.system": _SYSTEM,
            "messaging.operation.type": "receive",
            "messaging.destination.name": queue,
            "messaging.consumer.group.name": group,
            "messaging.batch.message_count": len(messages),
        },
    )
    span.end()


@contextmanager
def handling(message: TracedMessage, name: str | None = None, group: str | None = None) -> Iterator[None]:
    """Run what handles a message in a span below its push; the time from push to now is a span of its own.

    Loops over batches use it themselves: `with tracing.handling(message): …`. It does nothing where tracing is off.
    """
    if _tracer is None:
        yield
        return
    from opentelemetry.trace import SpanKind, set_span_in_context

    attributes: dict[str, Any] = {
        "messaging.system": _SYSTEM,
        "messaging.destination.name": message.queue,
        "messaging.destination.partition.id": message.partition,
        "messaging.message.id": str(message.id),
    }
    if group is not None:
        attributes["messaging.consumer.group.name"] = group
    now = time.time_ns()
    # The clock of the server, which may be ahead of ours.
    pushed = min(now, int(message.timestamp.timestamp() * 1e9))
    waited = _tracer.start_span(
        f"receive {message.queue}",
        context=parent_of(message),
        kind=SpanKind.CONSUMER,
        start_time=pushed,
        attributes={**attributes, "messaging.operation.type": "receive"},
    )
    waited.end(now)
    with _tracer.start_as_current_span(
        f"process {name or message.queue}",
        context=set_span_in_context(waited),
        kind=SpanKind.CONSUMER,
        attributes={**attributes, "messaging.operation.type": "process"},
    ):
        yield


def handled_by(function: Callable[..., Any], group: str) -> Callable[..., Any]:
    """Return a handler of messages that runs in spans; the handler itself where tracing is off."""
    if _tracer is None:
        return function
    call = type(function).__call__
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):

        @wraps(function)
        async def traced_async(message: TracedMessage) -> Any:
            with handling(message, group=group):
                return await function(message)

        return traced_async

    @wraps(function)
    def traced(message: TracedMessage) -> Any:
        with handling(message, group=group):
            return function(message)

    return traced


def parent_of(message: TracedMessage) -> Any:
    """Return the context that a message came with: empty where it has none that can be read."""
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers = message.headers or {}
    if TRACEPARENT in headers:
        return TraceContextTextMapPropagator().extract(headers, Context())
    try:
        trace = UUID(headers[TRACE_ID]).int
    except (KeyError, ValueError):
        return Context()
    # A bare id says nothing of a span: the message stands for it.
    span = message.id.int & 0xFFFF_FFFF_FFFF_FFFF or 1
    context = SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(context), Context())


@contextmanager
def serving(headers: Mapping[str, str], method: str) -> Iterator[Callable[[str, int], None]]:
    """Answer a request in a span below that of its caller; what it yields is told route and status at the end."""
    if _tracer is None:
        yield lambda route, status: None
        return
    from opentelemetry.trace import SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = TraceContextTextMapPropagator().extract(headers)
    with _tracer.start_as_current_span(method, context=parent, kind=SpanKind.SERVER) as span:

        def answered(route: str, status: int) -> None:
            span.update_name(f"{method} {route}")
            span.set_attributes(
                {"http.request.method": method, "http.route": route, "http.response.status_code": status}
            )
            if status >= 500:
                span.set_status(Status(StatusCode.ERROR))

        yield answered
