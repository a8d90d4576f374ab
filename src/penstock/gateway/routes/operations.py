"""Operations of the port, as the Python clients send them: msgpack, one route for each type of operation.

An operation that only reads is a GET with its arguments in the query, so that no key that may only read can change
anything. The others are POST.
"""

from base64 import urlsafe_b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.broker.operations.groups import GetHistory
from penstock.broker.operations.items import GetResult, GetState
from penstock.broker.operations.jobs import BeginJob
from penstock.broker.operations.keys import CreateKey, RevokeKey, RotateKey
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.reading import Get
from penstock.errors import InvalidInput, LeaseLost
from penstock.gateway import auditing, shown
from penstock.gateway.call import Call, Reply
from penstock.gateway.needs import SCOPES, is_act, needs_of
from penstock.gateway.reports import check_report
from penstock.gateway.route import API, Route
from penstock.gateway.routes.groups import without_leases
from penstock.gateway.routes.messages import seen_message
from penstock.gateway.scopes import ANY_QUEUE, Scope
from penstock.http import encoding
from penstock.http.reads import READS

# What is asked of a message by its id, which does not say which queue it is in.
_BY_ID = (Get, GetResult, GetState)


class Arguments(msgspec.Struct, frozen=True):
    """An operation as msgpack in base64url."""

    arguments: str


def routes() -> Iterator[Route]:
    """Yield a route for each operation that the gateway offers."""
    for name, kind in encoding.operations().items():
        if kind not in SCOPES:
            continue
        scope = SCOPES[kind]
        reads = kind in READS
        yield Route(
            "GET" if reads else "POST",
            f"{API}/operations/{name}",
            _run_from_query if reads else _run_from_body,
            scope,
            f"Run {name}",
            query=Arguments if reads else None,
            body=None if reads else bytes,
            media=(encoding.MEDIA,),
            reply_media=encoding.MEDIA,
            described=False,
            in_body=True,
            audits=True,
        )


async def _run_from_query(call: Call) -> Reply:
    text = call.query.arguments
    try:
        sent = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (NotBase64, ValueError):
        raise InvalidInput("arguments in the query are not base64url") from None
    return await _run(call, sent)


async def _run_from_body(call: Call) -> Reply:
    return await _run(call, call.body)


async def _run(call: Call, sent: bytes) -> Reply:
    kind: type[Operation[Any]] = encoding.operations()[call.route.path.rpartition("/")[2]]
    operation = encoding.decode_operation(kind, sent)
    queues = []
    for scope, queue in needs_of(operation):
        # Of a list of everything, each caller is shown what it may see; of messages by their id, those of its queues.
        some = isinstance(operation, (*shown.LISTS, *_BY_ID))
        await call.authorize(scope, ANY_QUEUE if queue is None and some else queue)
        queues.append(queue if isinstance(queue, str) else queue.value if queue else "all queues")
    if isinstance(operation, _BY_ID) and not (await call.sight()).whole:
        await seen_message(call, operation.message_id)
    await check_report(call, operation)
    if isinstance(operation, BeginJob):
        operation = msgspec.structs.replace(operation, started_by=call.caller)
    if isinstance(operation, CreateKey | RevokeKey | RotateKey):
        # These write to the audit log by themselves.
        operation = msgspec.structs.replace(operation, actor=call.caller or "anybody", origin=auditing.origin_of(call))
    elif is_act(operation):
        async with auditing.act(call, kind.__name__, ", ".join(sorted(queues)), operation):
            return Reply(encoding.encode_reply(await call.gateway.client.run(operation)))
    reply = await call.gateway.client.run(operation)
    if isinstance(operation, GetHistory) and not await call.may(Scope.ADMIN, operation.queue):
        reply = without_leases(reply)
    if isinstance(operation, shown.LISTS):
        reply = await shown.part_of(call, operation, reply)
    return Reply(encoding.encode_reply(reply))


async def together(call: Call) -> Reply:
    """Acknowledge and push in one transaction: all of it takes effect, or nothing does."""
    wanted = encoding.decode_together(call.body)
    if wanted.acks:
        await call.authorize(Scope.POP, ANY_QUEUE)
    for push in wanted.pushes:
        for scope, queue in needs_of(push):
            await call.authorize(scope, queue)
    async with call.gateway.client.transaction() as tx:
        for ack in wanted.acks:
            acked = await tx.run(ack)
            if not all(acked):
                raise LeaseLost("a lease of the transaction has ended, or another consumer holds the messages")
        results = [await tx.run(push) for push in wanted.pushes]
    return Reply(encoding.encode_reply(results))
