"""Rules of workers: the items of a claim are settled one by one, in any mix, with outputs."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from penstock.broker.items import ItemOutcome, Output, SettledClaim
from penstock.broker.operations.items import SettleItems
from penstock.broker.places import Place
from penstock.broker.pushing import PushBatch

from .machine import PARTITIONS, PICKS, Machine, has_batches
from .model import Content, Held
from .texts import ANY_TEXT, CONTENTS, message

FATES = st.lists(
    st.sampled_from(["done", "done", "done", "done", "left", "failed", "snoozed", "dead"]), min_size=1, max_size=8
)


class ItemSettling(Machine):
    """Each item has the fate that its worker says, and outputs come with it or not at all."""

    @precondition(has_batches)
    @rule(
        pick=PICKS,
        fates=FATES,
        release=st.booleans(),
        whole=st.booleans(),
        error=ANY_TEXT,
        outputs=st.lists(st.tuples(PARTITIONS, CONTENTS), max_size=4),
        again=st.booleans(),
    )
    def settle_items(
        self,
        pick: int,
        fates: list[str],
        release: bool,
        whole: bool,
        error: str,
        outputs: list[tuple[int, Content]],
        again: bool,
    ) -> None:
        if (chosen := self.choose(pick)) is None:
            return
        batch, held, _ = chosen
        claims = [self._claim(batch.claims[n].lease, each, fates, release, whole, error) for n, each in enumerate(held)]
        given = [
            Output(n % len(claims), PushBatch.of(Place(self.queue, self.names[partition]), [message(content)]))
            for n, (partition, content) in enumerate(outputs)
        ]
        operation = SettleItems(claims, given)
        live = [bool(self.model.holds(each)) for each in held]

        reply = self.client._transport.run(operation)

        assert reply.settled == ["settled" if each else None for each in live]
        for claim, each, answers in zip(claims, held, reply.outcomes, strict=True):
            if self.model.holds(each):
                expected = self.model.settle_items(each, claim.done, claim.outcomes, claim.release_rest)
                assert answers == expected
            else:
                assert answers == [None] * len(claim.outcomes)
        by_place: dict[str, list[Content]] = {}
        for n, (partition, content) in enumerate(outputs):
            if live[n % len(claims)]:
                by_place.setdefault(self.names[partition], []).append(content)
        for name, contents in by_place.items():
            self.model.push(name, contents)
        if again:
            # As a worker does that got no answer.
            repeated = self.client._transport.run(operation)
            expected_again = ["repeated" if self.model.holds(each) else None for each in held]
            fenced = [bool(claim.done or claim.outcomes) for claim in claims]
            for answer, expected_answer, is_fenced in zip(repeated.settled, expected_again, fenced, strict=True):
                assert answer == expected_answer or not is_fenced
        if any(self.model.holds(each) for each in held):
            self.batches.append((batch, held))

    def _claim(self, lease: Any, held: Held, fates: list[str], release: bool, whole: bool, error: str) -> SettledClaim:
        """Return what becomes of a claim."""
        left = self.model.holds(held)
        ordered = self.model.groups[held.group].mode == "ordered" if held.group in self.model.groups else True
        done: list[tuple[int | None, int | None]] = []
        outcomes: list[ItemOutcome] = []
        for n, offset in enumerate(left):
            fate = fates[n % len(fates)]
            if fate == "done":
                done.append((offset, offset + 1))
            elif fate != "left":
                wait = 0.0 if fate in ("failed", "snoozed") else None
                outcomes.append(ItemOutcome(offset, fate, wait, error, error))
            if ordered and fate in ("left", "failed", "snoozed"):
                break
        if not left or (whole and len(done) == len(left)):
            done = [(None, None)]
        return SettledClaim(lease, done, outcomes, release or not (done or outcomes))
