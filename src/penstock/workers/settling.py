"""Settles what a lane has handled: builds one operation of many claims, and finds the item that one is refused for."""

import logging
from collections.abc import Callable, Iterable, Sequence

from penstock.broker.claims import Claim
from penstock.broker.items import REPEATED, SETTLED, ItemOutcome, Output, SettledItems
from penstock.broker.messages import Message
from penstock.broker.operations.claiming import Pop
from penstock.broker.operations.items import SettleItems
from penstock.broker.places import Place
from penstock.broker.pushing import PushBatch
from penstock.client.pushes import needs_spread, place
from penstock.consuming.failures import describe
from penstock.consuming.outages import Outage, is_outage
from penstock.errors import PenstockError, QueuePaused, RateLimited
from penstock.workers.actions import Action
from penstock.workers.held import HeldClaim
from penstock.workers.parts import Part
from penstock.workers.source import Source
from penstock.workers.verdicts import Produced

log = logging.getLogger("penstock.worker")

# What the queue of the outputs says that takes nothing for a while: nobody's failure.
REFUSED_FOR_NOW = (QueuePaused, RateLimited)

_Parts = Sequence[tuple[HeldClaim, Part]]


class Settling:
    """Settles the claims of one lane.

    It calls `settled` with outcomes and what the broker answered to each, `lose` for a claim whose lease is lost, and
    `end` for one that ended earlier than its handlers know.
    """

    def __init__(
        self,
        source: Source,
        action: Action,
        settled: Callable[[Action, Sequence[ItemOutcome], Sequence[str | None]], None],
        lose: Callable[[HeldClaim], None],
        end: Callable[[HeldClaim], None],
    ) -> None:
        self._source = source
        self._action = action
        self._settled = settled
        self._lose = lose
        self._end = end

    async def settle(self, ripe: Sequence[HeldClaim], wanted: Pop | None, outage: Outage) -> list[Claim] | None:
        """Settle claims and pop, in one call. Where that is refused, find what it is refused for, and return None.

        Raises what an outage raises; then nothing is forgotten but what was settled, and it can be called again.
        """
        parts = [(held, held.part()) for held in ripe]
        try:
            reply = await self._send(parts, wanted, outage)
        except Exception as error:
            if _is_for_now(error):
                raise
            said = "what %s has handled is settled in pieces, because all in one call failed: %s"
            log.debug(said, self._action.group, describe(error))
        else:
            self._came(parts, reply)
            return reply.claims
        for held in ripe:
            await self._settle_in_pieces(held, outage)
        return None

    async def _settle_in_pieces(self, held: HeldClaim, outage: Outage) -> None:
        """Settle a claim; an item for which that is refused has failed, and no other one."""
        while held.parts:
            part = held.parts[0]
            try:
                reply = await self._send([(held, part)], None, outage)
            except Exception as error:
                if _is_for_now(error):
                    raise
                if part.divisible:
                    held.divide()
                elif part.bare:
                    # It is no item's fault.
                    raise
                else:
                    held.parts[0] = failed = part.failed(held.messages, describe(error), type(error).__name__)
                    said = "what %s gave for offset %d was refused: %s"
                    log.warning(said, self._action.group, failed.outcomes[0].offset, failed.outcomes[0].error)
            else:
                self._came([(held, part)], reply)

    async def _send(self, parts: _Parts, wanted: Pop | None, outage: Outage) -> SettledItems:
        """Settle the next part of each claim, and pop; raises what refuses that, and then nothing is settled."""
        for held, _ in parts:
            held.settling = True
        try:
            claims = [part.settled_claim(held.claim) for held, part in parts]
            outputs = [
                Output(number, batch)
                for number, (_, part) in enumerate(parts)
                if part.outputs
                for batch in await self._batches(produced for _, produced in part.outputs)
            ]
            results = [each._replace(claim=number) for number, (_, part) in enumerate(parts) for each in part.results]
            operation = SettleItems(claims, outputs, wanted, results=results)
            return await self._source.settle_items(operation, outage)
        except PenstockError as error:
            if is_outage(error):
                for _, part in parts:
                    part.unknown = True
            raise
        finally:
            for held, _ in parts:
                held.settling = False

    def _came(self, parts: _Parts, reply: SettledItems) -> None:
        """Take note of what came of the next part of each claim."""
        for (held, part), settled, answers in zip(parts, reply.settled, reply.outcomes, strict=True):
            # The same part was settled before, if an outage hid what came of it.
            if settled == SETTLED or (settled == REPEATED and part.unknown):
                held.settled()
                self._settled(self._action, part.outcomes, answers)
                if part.refused and not held.shared:
                    # Those behind it come again: they must not overtake it.
                    held.end()
                    self._end(held)
            else:
                held.parts.clear()
                self._lose(held)

    async def _batches(self, outputs: Iterable[Produced]) -> list[PushBatch]:
        """Pack outputs by partition."""
        to = self._action.to
        messages = [Message(*one[:3], partition=one.partition, dedupe_id=one.dedupe_id) for one in outputs]
        if not messages or to is None:
            return []
        first = messages[0].partition
        if first is not None and all(message.partition == first for message in messages):
            return [PushBatch.of(Place(to, str(first)), messages)]
        spread = await self._source.spread(to) if needs_spread(messages) else 1
        return [PushBatch.of(where, of_one) for where, of_one in place(to, messages, spread).items()]


def _is_for_now(error: Exception) -> bool:
    """Say whether an error is over in a while, and nobody's failure."""
    return isinstance(error, PenstockError) and (is_outage(error) or isinstance(error, REFUSED_FOR_NOW))
