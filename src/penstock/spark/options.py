"""The options of readers and writers: parses and checks them; errors name the option."""

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from penstock.errors import InvalidInput
from penstock.postgres.address import redact
from penstock.settings import resolve

EARLIEST, LATEST = -2, -1
# Where the group stands, which a reader without a checkpoint goes on from; what the group has not read is new.
COMMITTED = -3
_WORDS = {"earliest": EARLIEST, "latest": LATEST, "committed": COMMITTED}

# How many tasks a reading has at most, unless the session says how many cores it has or the reader asks for more.
MOST_TASKS = 64

READ_OPTIONS = (
    "url",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "groupId",
    "readWith",
    "archive",
    "valueSchema",
    "messageColumn",
    "messageValue",
    "errorSign",
)
_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
WRITE_OPTIONS = ("url", "queue", "groupId", "batchName", "errorSign")
# What Spark itself puts among the options of a stream.
_SPARKS_OWN = {"checkpointlocation", "queryname", "path"}

# What PostgreSQL can count to.
_MOST = (1 << 63) - 1
# How much of an option an error repeats.
_SHOWN = 200

T = TypeVar("T")
D = TypeVar("D")
Offsets = dict[str, dict[str, int]]
Moments = dict[str, dict[str, datetime]]


@dataclass(frozen=True)
class Target:
    """The database. The address is resolved where the query is made: executors have another environment."""

    url: str | None = field(repr=False)
    home: str
    # What errors are signed with; it says nothing about the database.
    sign: str | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return "the embedded PostgreSQL" if self.url is None else redact(self.url)


@dataclass(frozen=True)
class ReadOptions:
    """What to read: queues, offsets, and limits of a batch."""

    target: Target
    queues: tuple[str, ...] | None
    pattern: str | None
    assigned: dict[str, list[str]] | None
    starting: int | Offsets
    ending: int | Offsets
    starting_time: datetime | None
    max_offsets: int | None
    max_bytes: int | None
    min_partitions: int
    fail_on_data_loss: bool
    group: str | None
    archive: bool = True
    value_schema: dict[str, Any] | None = None
    message_column: str = "_message"
    message_value: bool = False
    most_tasks: int = MOST_TASKS
    # A moment for each partition, or for all: `starting_time`, `ending_time`.
    starting_times: Moments | None = None
    ending_time: datetime | None = None
    ending_times: Moments | None = None
    min_offsets: int | None = None
    max_delay: float = 15 * 60.0
    # Queues that other sources of the query read, which share the limits of a batch with this one.
    read_with: tuple[str, ...] = ()


@dataclass(frozen=True)
class WriteOptions:
    """Where to write; without a queue, each row names its own. With a group, an epoch has its progress in it too.

    A batch that has a name is written once, however often it is run. The checkpoint is Spark's, of a stream,
    and so is the query's name, which its folder has where the session says where checkpoints are.
    """

    target: Target
    queue: str | None
    group: str | None = None
    name: str | None = None
    checkpoint: str | None = None
    query: str | None = None


def read_options(given: Mapping[str, str], *, streaming: bool, most_tasks: int = MOST_TASKS) -> ReadOptions:
    """Check the options of a reader."""
    known = _known(given, READ_OPTIONS)
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if name in known]
    if len(ways) != 1:
        raise InvalidInput(
            f"give one of subscribe, subscribePattern and assign; {' and '.join(ways) if ways else 'none'} was given"
        )
    for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
        if name in known and not streaming:
            raise InvalidInput(f"{name} is for streams: a batch reads its whole range at once")
    for name in _ENDS:
        if name in known and streaming:
            raise InvalidInput(f"{name} is for batches: a stream has no end")
    for names in (_STARTS, _ENDS):
        both = [name for name in names if name in known]
        if len(both) > 1:
            raise InvalidInput(f"give {' or '.join(both)}, not both")
    if "maxTriggerDelay" in known and "minOffsetsPerTrigger" not in known:
        raise InvalidInput(
            "maxTriggerDelay requires minOffsetsPerTrigger: it is how long a batch waits for that many messages"
        )
    if streaming and "groupId" in known and "assign" in known:
        raise InvalidInput(
            "groupId follows whole queues, so it goes with subscribe or subscribePattern, not with assign"
        )
    if "readWith" in known and "groupId" not in known:
        raise InvalidInput("readWith requires groupId: it names queues that the same group reads")
    if known.get("startingOffsets") == "committed" and "groupId" not in known:
        raise InvalidInput("startingOffsets=committed requires groupId: it starts at the positions of that group")
    starting: int | Offsets = _take(known, "startingOffsets", _offsets, LATEST if streaming else EARLIEST)
    ending: int | Offsets = _take(known, "endingOffsets", _offsets, LATEST)
    min_offsets = _take(known, "minOffsetsPerTrigger", _count, None)
    max_offsets = _take(known, "maxOffsetsPerTrigger", _count, None)
    if min_offsets is not None and max_offsets is not None and min_offsets > max_offsets:
        raise InvalidInput(
            f"minOffsetsPerTrigger is {min_offsets}, and maxOffsetsPerTrigger {max_offsets}: it must not be less"
        )
    if not streaming and starting == LATEST:
        raise InvalidInput("startingOffsets is latest, but then a batch has nothing to read: use earliest or offsets")
    if ending in (EARLIEST, COMMITTED):
        raise InvalidInput(
            f"endingOffsets is {known['endingOffsets']}, but then a batch has nothing to read: use latest or offsets"
        )
    return ReadOptions(
        target=_target(known),
        queues=_take(known, "subscribe", _names, None),
        pattern=_take(known, "subscribePattern", _pattern, None),
        assigned=_take(known, "assign", _assigned, None),
        starting=starting,
        ending=ending,
        starting_time=_take(known, "startingTimestamp", _moment, None),
        max_offsets=max_offsets,
        max_bytes=_take(known, "maxBytesPerTrigger", _bytes, None),
        min_partitions=_take(known, "minPartitions", _count, 1),
        fail_on_data_loss=_take(known, "failOnDataLoss", _flag, True),
        group=_take(known, "groupId", _name, None),
        archive=_take(known, "archive", _flag, True),
        value_schema=_take(known, "valueSchema", _value_schema, None),
        message_column=_take(known, "messageColumn", _name, "_message"),
        message_value=_take(known, "messageValue", _flag, False),
        most_tasks=most_tasks,
        starting_times=_take(known, "startingOffsetsByTimestamp", _moments, None),
        ending_time=_take(known, "endingTimestamp", _moment, None),
        ending_times=_take(known, "endingOffsetsByTimestamp", _moments, None),
        min_offsets=min_offsets,
        max_delay=_take(known, "maxTriggerDelay", _seconds, 15 * 60.0),
        read_with=_take(known, "readWith", _names, ()),
    )


def check_read_options(given: Mapping[str, str]) -> None:
    """Raise an error for options that are valid neither for a batch nor for a stream, before it is known which."""
    refusals = []
    for streaming in (False, True):
        try:
            read_options(given, streaming=streaming)
        except InvalidInput as error:
            refusals.append(error)
    if len(refusals) == 2:
        raise refusals[0]


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Check the options of a writer."""
    known = _known(given, WRITE_OPTIONS)
    queue, group, name = (_take(known, option, _name, None) for option in ("queue", "groupId", "batchName"))
    sparks = {key.lower(): value for key, value in given.items()}
    checkpoint, query = sparks.get("checkpointlocation"), sparks.get("queryname")
    return WriteOptions(_target(known), queue, group, name, checkpoint, query)


def _known(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    by_lower = {name.lower(): name for name in names}
    unknown = sorted(key for key in given if key.lower() not in by_lower and key.lower() not in _SPARKS_OWN)
    if unknown:
        raise InvalidInput(f"unknown option {', '.join(unknown)}; the known ones are {', '.join(names)}")
    if given.get("path"):
        raise InvalidInput(f"penstock has no paths; the options are {', '.join(names)}")
    return {by_lower[key.lower()]: value for key, value in given.items() if key.lower() in by_lower}


def _target(known: Mapping[str, str]) -> Target:
    settings = resolve({"url": known.get("url")})
    return Target(settings.url, str(settings.home), known.get("errorSign"))


def _take(known: Mapping[str, str], name: str, parse: Callable[[str], T], default: D) -> T | D:
    if name not in known:
        return default
    try:
        return parse(known[name])
    except (ValueError, TypeError) as error:
        shown = known[name] if len(known[name]) <= _SHOWN else f"{known[name][:_SHOWN]}…"
        raise InvalidInput(f"option {name} is {shown!r}, which cannot be used: {error}") from None


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("it must be queue names with commas between them")
    return names


def _name(text: str) -> str:
    if not text:
        raise ValueError("it must be a name")
    return text


def _pattern(text: str) -> str:
    if not text:
        raise ValueError("it must be a regular expression")
    return text


def _assigned(text: str) -> dict[str, list[str]]:
    value = _json(text, '{"orders": ["ada", "bob"]}')
    if not value or not all(
        isinstance(names, list) and names and all(isinstance(name, str) for name in names) for names in value.values()
    ):
        raise ValueError('it must be JSON such as {"orders": ["ada", "bob"]}')
    return value


def _offsets(text: str) -> int | Offsets:
    if text in _WORDS:
        return _WORDS[text]
    hint = '{"orders": {"ada": 23, "bob": -2}}'
    value = _json(text, f"earliest, latest or JSON such as {hint} (-2 is earliest, -1 latest)")
    for queue, partitions in value.items():
        if not isinstance(partitions, dict):
            raise ValueError(f"queue {queue} must have partitions and offsets, as in {hint}")
        for partition, offset in partitions.items():
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
                raise ValueError(
                    f"{offset!r} is not an offset (queue {queue}, partition {partition}); an example is {hint}"
                )
    return value


def _json(text: str, hint: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"it must be {hint}")
    return value


def _value_schema(text: str) -> dict[str, Any]:
    value = _json(text, "a schema as JSON, which StructType.json() returns")
    if value.get("type") != "struct" or not value.get("fields"):
        raise ValueError("it must be a schema as JSON, which StructType.json() returns")
    return value


def _moment(text: str) -> datetime:
    if text.lstrip("-").isdigit():
        try:
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        except (ValueError, OverflowError, OSError):
            raise ValueError("it must be a time in the years 1 to 9999, in milliseconds since 1970") from None
    moment: datetime | None = None
    with contextlib.suppress(ValueError):
        moment = datetime.fromisoformat(text)
    if moment is None or moment.tzinfo is None:
        raise ValueError(
            "it must be milliseconds since 1970, or a time with its zone such as 2026-01-31T12:00:00+00:00"
        )
    return moment


def _moments(text: str) -> Moments:
    hint = '{"orders": {"ada": 1769860800000}}'
    value = _json(text, f"JSON such as {hint}")
    if not all(isinstance(partitions, dict) for partitions in value.values()):
        raise ValueError(f"it must be JSON such as {hint}")
    return {
        queue: {partition: _moment(str(moment)) for partition, moment in partitions.items()}
        for queue, partitions in value.items()
    }


def _seconds(text: str) -> float:
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    number = text.strip().lower().rstrip("mshdin")
    unit = text.strip().lower()[len(number) :]
    if unit not in units or not number.strip().isdigit():
        raise ValueError("it must be a time such as 30s, 15m or 1h")
    return _count(number, least=0) * units[unit]


def _count(text: str, least: int = 1) -> int:
    value = int(text)
    if value < least:
        raise ValueError("it must be a whole number above 0")
    if value > _MOST:
        raise ValueError(f"it must be {_MOST} at most")
    return value


def _bytes(text: str) -> int:
    units = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}
    number = text.strip().lower().rstrip("bkmg")
    unit = text.strip().lower()[len(number) :]
    if unit not in units or not number.strip().isdigit():
        raise ValueError("it must be a number of bytes such as 1048576 or 1m")
    return _count(str(int(number) * units[unit]))


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.lower() == "true"
