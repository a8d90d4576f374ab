"""Both clients: whatever is given is refused and changes nothing, or comes back as it was by every way out."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from itertools import product
from typing import Any

import msgspec

from penstock import Message
from penstock.broker.ids import message_id

from .corpus import BYTES, JSON_TEXTS, JSON_VALUES, NUMBERS, TEXTS, TIMES
from .ways import Penstock, Told

NO_MESSAGE = message_id(1 << 30, 0, 0)
# As a value of a client's call, next to a name that is well.
TEXT_PLACES: dict[str, Callable[[Any, str], Any]] = {
    "queue": lambda api, text: api.push(text, b"x", partition="p"),
    "partition": lambda api, text: api.push("q", b"x", partition=text),
    "key": lambda api, text: api.push("q", b"x", partition="p", key=text),
    "key of a message": lambda api, text: api.push("q", Message(b"x", key=text), partition="p"),
    "header name": lambda api, text: api.push("q", b"x", partition="p", headers={text: "x"}),
    "header": lambda api, text: api.push("q", b"x", partition="p", headers={"h": text}),
    "dedupe id": lambda api, text: api.push("q", b"x", partition="p", dedupe_id=text),
    "delayed": lambda api, text: api.push("q", b"x", partition=text, key=text, delay=3600),
    "unique key": lambda api, text: api.push("q", b"x", partition="p", unique_key=text, unique_for=3600),
    "unique until": lambda api, text: api.push("q", b"x", partition="p", unique_key="k", unique_until=text),
    "schedule": lambda api, text: api.schedule(text, "q", b"x", every="1 hour"),
    "schedule's queue": lambda api, text: api.schedule("s", text, b"x", every="1 hour"),
    "schedule's place": lambda api, text: api.schedule("s", "q", b"x", every="1 hour", partition=text, key=text),
    "schedule's headers": lambda api, text: api.schedule("s", "q", b"x", every="1 hour", headers={text: text}),
    "interval": lambda api, text: api.schedule("s", "q", b"x", every=text),
    "cron": lambda api, text: api.schedule("s", "q", b"x", cron=text),
    "zone": lambda api, text: api.schedule("s", "q", b"x", cron="0 9 * * *", tz=text),
    "missed": lambda api, text: api.schedule("s", "q", b"x", every="1 hour", missed=text),
    "run": lambda api, text: api.run_schedule_now(text),
    "origin": lambda api, text: api.declare_schedules([], origin=text),
    "many": lambda api, text: api.push_many("q", [("p", b"x"), Message(b"y", key=text, partition=text)]),
    "group": lambda api, text: api.pop("q", text),
    "popped partition": lambda api, text: api.pop("q", "out", partition=text),
    "description": lambda api, text: api.configure("q", description=text),
    "new queue": lambda api, text: api.create(text),
    "new group": lambda api, text: api.create_group("q", text),
    "read": lambda api, text: api.read("q", text),
    "seek": lambda api, text: api.seek("q", "out", "latest", partition=text),
    "lag": lambda api, text: api.lag("q", text),
    "purge": lambda api, text: api.purge("q", partition=text),
    "id": lambda api, text: api.get(text),
    "id of a state": lambda api, text: api.state(text),
    "id of a result": lambda api, text: api.result(text, timeout=0),
    "group of a result": lambda api, text: api.result(NO_MESSAGE, group=text, timeout=0),
    "id to cancel": lambda api, text: api.cancel(text),
    "group to cancel for": lambda api, text: api.cancel(NO_MESSAGE, group=text),
    "reason": lambda api, text: api.redrive("q", "out", reason=text),
    "setting": lambda api, text: api.configure("q", **{text: 1}),
    "choice": lambda api, text: api.configure("q", compression=text),
    "mode": lambda api, text: api.create_group("q", "g", mode=text),
}


def test_any_text_is_taken_or_refused_where_a_text_is_wanted(penstock: Penstock, api: Any) -> None:
    for (place, give), (name, text) in product(TEXT_PLACES.items(), TEXTS.items()):
        penstock.refused(f"{name} as {place}", partial(give, api, text))
    penstock.sound()


def test_what_is_taken_as_key_header_or_partition_comes_back(penstock: Penstock, api: Any) -> None:
    for name, text in TEXTS.items():
        if not penstock.refused(name, partial(api.push, "q", b"k", partition="p", key=text)):
            penstock.comes_back(f"{name} as key", "q", "p", Told(text, b"k", ()))
        if not penstock.refused(name, partial(api.push, "q", b"h", partition="p", headers={text: text, "h": text})):
            headers = tuple(sorted({text: text, "h": text}.items()))
            penstock.comes_back(f"{name} as header", "q", "p", Told(None, b"h", headers))
        if not penstock.refused(name, partial(api.push, "q", b"p", partition=text)):
            penstock.comes_back(f"{name} as partition", "q", text, Told(None, b"p", ()))
    penstock.sound()


def test_any_bytes_that_are_taken_come_back(penstock: Penstock, api: Any) -> None:
    for name, value in {"nothing": None, **BYTES, **JSON_TEXTS}.items():
        if not penstock.refused(name, partial(api.push, "q", value, partition="p")):
            penstock.comes_back(name, "q", "p", Told(None, value, ()))
    assert penstock.refused("over the limit", partial(api.push, "q", BYTES["one byte more than 1 MiB"]))
    penstock.sound()


def test_any_value_that_is_taken_comes_back_as_json(penstock: Penstock, api: Any) -> None:
    for name, value in JSON_VALUES.items():
        if not penstock.refused(name, partial(api.push, "q", [value], partition="p")):
            (stored,) = api.read("q", "p", api.partitions("q", "p")[0].head - 1)
            assert stored.value == (None if value is None else msgspec.json.encode(value)), name
    penstock.sound()


TIME_PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "at": lambda api, time: api.push("q", b"x", partition="p", at=time),
    "first slot": lambda api, time: api.schedule("s", "q", b"x", every="1 day", start=time),
    "start": lambda api, time: api.read("q", "p", start_time=time),
    "stop": lambda api, time: api.read("q", "p", stop_time=time),
    "seek": lambda api, time: api.seek("q", "out", time, partition="p"),
    "subscription": lambda api, time: api.create_group("q", f"from {time}", subscription=time),
}


def test_any_time_is_taken_or_refused(penstock: Penstock, api: Any) -> None:
    for (place, give), (name, time) in product(TIME_PLACES.items(), TIMES.items()):
        penstock.refused(f"{name} as {place}", partial(give, api, time))
    for waiting in api.scheduled("q"):
        # A time that is past means now.
        assert waiting.due_at in TIMES.values() or waiting.due_at <= datetime.now(UTC), waiting
    penstock.sound()


NUMBER_PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "delay": lambda api, number: api.push("q", b"x", partition="p", delay=number),
    "result": lambda api, number: api.push("q", b"x", partition="p", result=number),
    "interval": lambda api, number: api.schedule("s", "q", b"x", every=number),
    "unique for": lambda api, number: api.push("q", b"x", partition="p", unique_key="k", unique_for=number),
    "start": lambda api, number: api.read("q", "p", number),
    "stop": lambda api, number: api.read("q", "p", 0, number),
    "limit": lambda api, number: api.read("q", "p", limit=number),
    "max_messages": lambda api, number: api.pop("q", "out", max_messages=number, auto_ack=True),
    "max_partitions": lambda api, number: api.pop("q", "out", max_partitions=number, auto_ack=True),
    "max_bytes": lambda api, number: api.pop("q", "out", max_bytes=number, auto_ack=True),
    "lease": lambda api, number: api.pop("q", "out", lease=number),
    "priority": lambda api, number: api.configure("q", partition="p", priority=number),
    "setting": lambda api, number: api.configure("q", lease_time=number),
    "count": lambda api, number: api.configure("q", max_attempts=number),
    "seek": lambda api, number: api.seek("q", "out", number, partition="p"),
    "cancel": lambda api, number: api.cancel(number),
    "redrive": lambda api, number: api.redrive("q", "out", ids=[number]),
    "letters": lambda api, number: api.dead_letters("q", limit=number),
}


def test_any_number_is_taken_or_refused(penstock: Penstock, api: Any) -> None:
    for (place, give), (name, number) in product(NUMBER_PLACES.items(), NUMBERS.items()):
        penstock.refused(f"{name} as {place}", partial(give, api, number))
        # What is due in a moment would change something in the middle of what comes next.
        api.cancel(*[waiting.scheduled_id for waiting in api.scheduled("q")])
        api.sweep()
    penstock.sound()


def test_any_text_says_why_something_failed(penstock: Penstock, api: Any) -> None:
    """A failure that cannot be recorded would be one that does not count."""
    api.push("q", [b"x"] * len(TEXTS), partition="p")
    for name, text in TEXTS.items():
        batch = api.pop("q", "out", max_messages=1)
        assert not penstock.refused(f"{name} as reason", partial(batch.nack, reason=text, error=text))
        batch = api.pop("q", "out", max_messages=1)
        assert not penstock.refused(
            f"{name} in an exception", partial(batch.nack_message, batch.messages[0], RuntimeError(text))
        )
        penstock.client.seek("q", "out", 0, partition="p")
    assert len(api.dead_letters("q", "out", limit=1000)) == 2 * len(TEXTS)
    penstock.sound()
