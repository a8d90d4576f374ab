"""One run of chaos: so many seconds of faults, then all that is left is consumed, and everything is checked."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock import Client, PenstockError

from . import checker
from .client import LEASE, PARTITIONS, QUEUE, Notes, handle
from .crowd import Crowd, own_server, server_is_back
from .faults import schedule

# Their modes. The acks of "relaxed" may be undone by a crash; "ahead" is consumed with prefetch.
GROUPS = {"ordered": "ordered", "shared": "shared", "relaxed": "ordered", "ahead": "ordered"}
MAX_ATTEMPTS = 3
DRAINED_WITHIN = 120.0
BACK_WITHIN = 60.0


@dataclass
class Report:
    """What happened, and what should not have."""

    seed: int
    killed: dict[str, int] = field(default_factory=dict)
    pushed: int = 0
    delivered: int = 0
    repeated: int = 0
    dead: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{count} × {whom}" for whom, count in sorted(self.killed.items()))
        return (
            f"seed {self.seed}: pushed {self.pushed}, delivered {self.delivered}, of these {self.repeated} again,"
            f" dead letters {self.dead}, killed {kills}; wrong: {len(self.wrong)}"
        )


def run(seed: int, seconds: float, notes: Path, say: Callable[[str], object]) -> Report:
    """Run chaos on a server of its own."""
    report = Report(seed)
    notes.mkdir()
    with own_server() as (home, dsn), Client(dsn, connect_timeout=10) as client:
        client.create(QUEUE, backoff_initial=0.01, backoff_max=0.1, max_attempts=MAX_ATTEMPTS, dedupe_window=3600)
        for group in GROUPS:
            client.create_group(QUEUE, group, mode=GROUPS[group], durable_acks=group != "relaxed")
        crowd = Crowd(dsn, home, notes, seed)
        try:
            crowd.start_all()
            report.wrong += suffer(client, crowd, seed, seconds, notes, say)
        finally:
            crowd.kill_all()
        report.killed = dict(crowd.killed)
        server_is_back(home)
        say("everybody is dead; consuming what is left")
        report.wrong += violations(client)
        drain(client, notes)
        report.wrong += violations(client)
        check(client, notes, crowd.crashes, report)
    say(str(report))
    return report


def suffer(
    client: Client, crowd: Crowd, seed: int, seconds: float, notes: Path, say: Callable[[str], object]
) -> Iterator[str]:
    """Let one fault follow the other, and yield what verify finds meanwhile, and after each crash of the server."""
    began = looked_at = seen_at = time.monotonic()
    crashes = 0
    for fault in schedule(seed):
        if fault.at > seconds:
            return
        while (left := began + fault.at - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
        crowd.suffer(fault)
        if time.monotonic() - looked_at > 1 and fault.whom != "server":
            looked_at = time.monotonic()
            try:
                yield from violations(client)
                if crashes < crowd.killed["server"]:
                    yield from after_a_crash(client, notes)
                    crashes = crowd.killed["server"]
                    say(f"after {crashes} crashes attempts, dead letters and progress were compared")
                say(f"{looked_at - began:.0f} of {seconds:.0f} s: {progress(client)}, killed {crowd.killed.total()}")
                seen_at = looked_at
            except PenstockError:
                # It comes back in a while, or something is very wrong.
                if time.monotonic() - seen_at > BACK_WITHIN:
                    yield f"the server has been gone for {BACK_WITHIN:g} s"
                    return


def after_a_crash(client: Client, folder: Path) -> Iterator[str]:
    """Compare attempts, dead letters, claims and positions with each other and with what was acknowledged."""
    # In this order: positions only go on, and what is dead is claimed no more.
    notes = checker.Notes(folder, LEASE)
    letters = client.dead_letters(QUEUE, limit=1_000_000)
    claims = client.claims(QUEUE)
    for letter in letters:
        if letter.attempts != MAX_ATTEMPTS:
            yield f"{letter.partition}[{letter.offset}] is dead for {letter.group} after {letter.attempts} attempts"
        for claim in claims:
            held = claim.start <= letter.offset < claim.stop
            if held and (claim.group, claim.partition) == (letter.group, letter.partition):
                yield f"{letter.partition}[{letter.offset}] is dead for {letter.group}, and claimed"
    for group in ("ordered", "relaxed", "ahead"):
        committed = {f"p{number}": 0 for number in range(PARTITIONS)}
        for name in committed:
            newest = client.history(QUEUE, group, name, limit=1)
            committed[name] = newest[0].committed if newest else 0
        for letter in letters:
            if letter.group == group and letter.offset >= committed[letter.partition]:
                yield f"{letter.partition}[{letter.offset}] is dead for {group}, which has not reached it"
        if group != "relaxed":
            yield from checker.lost_acks(notes.claims[group].values(), committed)


def progress(client: Client) -> str:
    heads = sum(partition.head for partition in client.partitions(QUEUE))
    lags = {group: client.lag(QUEUE, group) for group in GROUPS}
    return f"{heads} messages, lag {lags}"


def violations(client: Client) -> list[str]:
    return [f"verify: {check}" for check in client.verify() if check.violations]


def drain(client: Client, folder: Path) -> None:
    """Consume what the killed have left, and write it down like they did."""
    deadline = time.monotonic() + DRAINED_WITHIN
    last = {group: Notes(folder / f"{group}-last") for group in GROUPS}
    while client.scheduled(QUEUE) or any(client.lag(QUEUE, group) for group in GROUPS):
        assert time.monotonic() < deadline, "what was left could not be consumed"
        for group in GROUPS:
            batch = client.pop(QUEUE, group, max_messages=500, max_partitions=10, lease=60, wait=0.1)
            if batch is not None:
                handle(batch, last[group], calm=True)


def check(client: Client, folder: Path, crashes: list[float], report: Report) -> None:
    """Compare what the clients wrote down with what is there."""
    notes = checker.Notes(folder, LEASE)
    log: checker.Log = {}
    for number in range(PARTITIONS):
        stored = client.read(QUEUE, f"p{number}")
        if [message.offset for message in stored] != list(range(len(stored))):
            report.wrong.append(f"p{number} has gaps")
        log[f"p{number}"] = [checker.Stored(message.json(), message.timestamp.timestamp()) for message in stored]
    letters = client.dead_letters(QUEUE, limit=1_000_000)
    report.wrong += [f"{claim} is held though all is done" for claim in client.claims(QUEUE)]
    report.wrong += checker.wrong_pushes(notes, log)
    report.wrong += checker.early_messages(log)
    for group in GROUPS:
        claims = list(notes.claims[group].values())
        dead = {(letter.partition, letter.offset): letter.attempts for letter in letters if letter.group == group}
        report.wrong += checker.wrong_deliveries(claims, log)
        report.wrong += checker.lost_messages(claims, log, dead)
        durable = group != "relaxed"
        if durable:
            report.wrong += checker.done_twice(claims, dead)
        report.wrong += checker.wrong_attempts(claims, dead, MAX_ATTEMPTS, durable=durable)
        if GROUPS[group] == "ordered":
            report.wrong += checker.disorder(claims, dead, crashes, durable=durable)
        report.delivered += (delivered := sum(len(claim.values) for claim in claims))
        report.repeated += delivered - len({(claim.partition, o) for claim in claims for o in claim.values})
    report.pushed = sum(map(len, log.values()))
    report.dead = len(letters)
