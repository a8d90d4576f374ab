"""Consumers at random, by a clock at random: no limit is ever exceeded, and in the end all was delivered, in order."""

import random
import threading
from collections import Counter, defaultdict
from math import ceil

import pytest
from groups.steps import ack_of, create_group, pass_time, pop_call, run, sweep, violations

from databases import Connection, Connections
from penstock.broker.claims import Claim
from penstock.broker.operations.claiming import Nack, Release

from .steps import Clock, one, push_keys

RATE, PERIOD, BURST = 4, 8.0, 6
SPACING = PERIOD / RATE
AT_ONCE = 3
KEYS = "abcde"
CONSUMERS, PHASES = 3, 25


class Model:
    """What the rate of each key allows, and what is in work, as the consumers know it."""

    def __init__(self, shared: bool) -> None:
        self.shared = shared
        self.lock = threading.Lock()
        self.now = 0.0
        self.full_at = dict.fromkeys(KEYS, float("-inf"))
        self.in_work: Counter[str] = Counter()
        self.delivered: Counter[str] = Counter()
        self.done: dict[str, list[int]] = defaultdict(list)
        self.problems: list[str] = []

    def set_clock(self, now: float) -> None:
        """Count what was delivered since the last time, and begin anew."""
        for key, before in self.full_at.items():
            # After the clock went back, it counts from then on.
            full_at = min(before, self.now + BURST * SPACING)
            used = max(full_at, self.now)
            allowed = BURST - ceil(round((used - self.now) / SPACING, 6))
            if self.delivered[key] > allowed:
                self.problems.append(f"at {self.now} {self.delivered[key]} of {key} were delivered, {allowed} allowed")
            self.full_at[key] = used + self.delivered[key] * SPACING if self.delivered[key] else full_at
        self.delivered.clear()
        self.now = now

    def took(self, claim: Claim) -> None:
        keys = Counter(message.key or "" for message in claim.messages)
        with self.lock:
            self.delivered += keys
            self.in_work += keys if self.shared else Counter(dict.fromkeys(keys, 1))
            if (most := max(self.in_work[key] for key in keys)) > AT_ONCE:
                self.problems.append(f"{most} of a key are in work")

    def gives_back(self, claim: Claim, done: int) -> None:
        """Take note that a claim is about to end, and how many of its messages are done."""
        keys = Counter(message.key or "" for message in claim.messages)
        with self.lock:
            self.in_work -= keys if self.shared else Counter(dict.fromkeys(keys, 1))
            self.done[claim.partition] += [message.offset for message in claim.messages[:done]]


def consume(connection: Connection, model: Model, choose: random.Random) -> None:
    """Take and settle what there is, in any way, until nothing comes."""
    held: list[Claim] = []
    while True:
        claims = run(connection, pop_call(most=choose.randint(1, 6), partitions=choose.randint(1, 3)))
        for claim in claims:
            model.took(claim)
        held += claims
        choose.shuffle(held)
        while held and (not claims or choose.random() < 0.6):
            settle(connection, model, choose, held.pop())
        if not claims:
            swept = sweep(connection)
            if swept is not None and swept.woken == 0:
                return


def settle(connection: Connection, model: Model, choose: random.Random, claim: Claim) -> None:
    way = choose.random()
    if way < 0.7:
        model.gives_back(claim, len(claim.messages))
        run(connection, ack_of([claim]))
    elif way < 0.85:
        model.gives_back(claim, 0)
        run(connection, Release(claim.lease))
    else:
        failed = choose.randrange(len(claim.messages))
        model.gives_back(claim, failed)
        run(connection, Nack(claim.lease, claim.messages[failed].offset, "oops", None, 0.0))


@pytest.mark.parametrize(("mode", "seed"), [("ordered", 1), ("shared", 2)])
def test_limits_hold_and_all_is_delivered(
    sql: Connection, clock: Clock, connections: Connections, mode: str, seed: int
) -> None:
    choose = random.Random(seed)
    create_group(
        sql,
        mode=mode,
        rate_limit=RATE,
        rate_period=PERIOD,
        rate_burst=BURST,
        rate_by="key",
        concurrency_limit=AT_ONCE,
        concurrency_by="key",
        max_attempts=32767,
    )
    model, pushed, now = Model(mode == "shared"), Counter[str](), 0.0
    consumers = [connections.open(autocommit=True) for _ in range(CONSUMERS)]

    def work() -> None:
        threads = [
            threading.Thread(target=consume, args=(consumer, model, random.Random(choose.random())))
            for consumer in consumers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    phases = 0
    while phases < PHASES or sum(map(len, model.done.values())) < pushed.total():
        phases += 1
        assert phases < 500, "something waits for ever"
        if phases <= PHASES:
            for partition in choose.sample("pqrstu", 3):
                keys = "".join(choose.choices(KEYS, [5, 2, 1, 1, 1], k=choose.randint(1, 12)))
                push_keys(sql, partition, keys)
                pushed[partition] += len(keys)
        now += choose.choice([-500, 0.3, 1, 2, 5, 20]) if phases <= PHASES else 20
        model.set_clock(now)
        clock.set(now)
        if phases % 5 == 0:
            # What waits for a moment, or longer, looks once more whether it may go on.
            pass_time(sql, "t", "p")
        work()
    model.set_clock(now)
    assert model.problems == []
    for partition, count in pushed.items():
        came = model.done[partition]
        assert (came if mode == "ordered" else sorted(came)) == list(range(count))
    pass_time(sql)
    clock.set(now + 1000)
    while (swept := sweep(sql)) is not None and swept.woken + swept.trimmed > 0:
        pass_time(sql)
    sql.execute("SELECT penstock.maintain()")
    for table in ("slots", "waiters", "limited_keys", "claims"):
        assert one(sql, f"SELECT count(*) FROM penstock.{table}") == 0, table
    assert violations(sql) == {}
