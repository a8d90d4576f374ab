"""Rules of settling: done, failed, given back, renewed, expired; and handlers that raise anything."""

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from penstock import Batch

from .claiming import Claiming
from .machine import GROUPS, PICKS, has_batches
from .model import Held
from .texts import ANY_TEXT, Trouble


class Settling(Claiming):
    """A claim is settled once, counts as often as it was delivered, and costs no row per message."""

    @precondition(has_batches)
    @rule(pick=PICKS)
    def ack(self, pick: int) -> None:
        if (chosen := self.choose(pick)) is None:
            return
        batch, held, live = chosen
        self.settle(batch.ack, live)
        for claim in held:
            if self.model.holds(claim):
                self.model.ack(claim)

    @precondition(has_batches)
    @rule(pick=PICKS, where=PICKS)
    def ack_up_to(self, pick: int, where: int) -> None:
        if (chosen := self.choose(pick)) is None:
            return
        batch, held, live = chosen
        if live and len(held) == 1:
            (claim,) = held
            first = self.model.holds(claim)[0]
            up_to = first + where % (claim.stop - first + 1)
            batch.ack(up_to=up_to)
            self.model.ack(claim, up_to)
            assert batch.settled == (not self.model.holds(claim))
        self.keep(batch, held)

    @precondition(has_batches)
    @rule(pick=PICKS, where=PICKS)
    def ack_message(self, pick: int, where: int) -> None:
        if (chosen := self.choose(pick)) is None:
            return
        batch, held, live = chosen
        if live and batch.claims[0].shared:
            left = [(claim, offset) for claim in held for offset in self.model.holds(claim)]
            claim, offset = left[where % len(left)]
            message = next(m for m in batch.messages if (m.partition, m.offset) == (claim.partition, offset))
            batch.ack_message(message)
            self.model.ack(claim, only=offset)
        self.keep(batch, held)

    @precondition(has_batches)
    @rule(pick=PICKS, error=ANY_TEXT)
    def nack(self, pick: int, error: str) -> None:
        if (chosen := self.choose(pick)) is not None:
            self.fail(*chosen, None, error)

    @precondition(has_batches)
    @rule(pick=PICKS, where=PICKS, error=ANY_TEXT)
    def nack_at_an_offset(self, pick: int, where: int, error: str) -> None:
        if (chosen := self.choose(pick)) is None:
            return
        batch, held, live = chosen
        if live and len(held) == 1:
            left = self.model.holds(held[0])
            self.fail(batch, held, live, left[where % len(left)], error)
        else:
            self.keep(batch, held)

    def fail(self, batch: Batch, held: list[Held], live: bool, offset: int | None, error: str) -> None:
        """Say that a batch failed: what is past the failing message, and itself, are all that is put back."""
        pieces = sum(len(claim) for claim in map(self.pieces, held))
        with self.adding_rows(pieces if offset is not None else 0):
            self.settle(lambda: batch.nack(offset, reason=error), live)
        for claim in held:
            if self.model.holds(claim):
                self.model.fail(claim, offset)

    def pieces(self, claim: Held) -> list[int]:
        """Return where each piece begins that is left of a claim."""
        left = self.model.holds(claim)
        return [offset for offset in left if offset - 1 not in left]

    @precondition(has_batches)
    @rule(pick=PICKS, where=PICKS, error=ANY_TEXT)
    def handler_raises(self, pick: int, where: int, error: str) -> None:
        """Fail at one message, as `process` does."""
        if (chosen := self.choose(pick)) is None:
            return
        batch, held, live = chosen
        if not live or len(held) != 1:
            self.keep(batch, held)
            return
        left = self.model.holds(held[0])
        failed = left[where % len(left)]
        message = next(m for m in batch.messages if m.offset == failed)
        batch.nack_message(message, Trouble(error))
        self.model.fail(held[0], failed)

    @precondition(has_batches)
    @rule(pick=PICKS, error=ANY_TEXT)
    def block_raises(self, pick: int, error: str) -> None:
        """Leave `with batch:` by an exception."""
        if (chosen := self.choose(pick)) is None:
            return
        batch, held, _ = chosen

        def handle() -> None:
            with batch:
                raise Trouble(error)

        self.expect_trouble(handle)
        for claim in held:
            if self.model.holds(claim):
                self.model.fail(claim, None)

    @staticmethod
    def expect_trouble(handle: Callable[[], None]) -> None:
        try:
            handle()
        except Trouble:
            return
        raise AssertionError("the handler's own exception was hidden")

    @rule(kind=GROUPS, size=st.integers(1, 100), error=ANY_TEXT)
    def each_handler_fails_once(self, kind: str, size: int, error: str) -> None:
        """Work a group off with a handler that fails at each message the first time that it sees it."""
        group = self.group(kind)
        failed_before: set[tuple[str, int]] = set()
        for _ in range(40):
            before = len(self.batches)
            self.pop(group, size)
            if len(self.batches) == before:
                return
            batch, held = self.batches.pop()
            first = next((m for m in batch.messages if (m.partition, m.offset) not in failed_before), None)
            if first is None:
                batch.ack()
                self.model.ack(held[0])
            else:
                failed_before.add((first.partition, first.offset))
                batch.nack_message(first, Trouble(error))
                self.model.fail(held[0], first.offset)

    @precondition(has_batches)
    @rule(pick=PICKS)
    def release(self, pick: int) -> None:
        if (chosen := self.choose(pick)) is None:
            return
        batch, held, _ = chosen
        with self.adding_rows(0):
            batch.release()
        for claim in held:
            if self.model.holds(claim):
                self.model.release(claim)

    @precondition(has_batches)
    @rule(pick=PICKS)
    def renew(self, pick: int) -> None:
        if (chosen := self.choose(pick)) is None:
            return
        batch, held, live = chosen
        self.settle(batch.renew, live)
        self.keep(batch, held)

    @precondition(has_batches)
    @rule(pick=PICKS)
    def expire(self, pick: int) -> None:
        if (chosen := self.choose(pick)) is None:
            return
        batch, held, live = chosen
        if live:
            with self.adding_rows(0):
                batch.renew(0.001)
                leases = {claim.lease_id for claim in batch.claims}
                while leases & {claim.lease_id for claim in self.client.claims(self.queue)}:
                    self.client.sweep()
            for claim in held:
                self.model.fail(claim, None)
        self.keep(batch, held)
