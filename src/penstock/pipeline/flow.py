"""The declaration of a flow: its sources, steps and outputs.

Nothing is run here, and Spark is not needed: a flow is only stored, each part with its line of the file, so that errors
can name the line.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DATA_SOURCE, TRANSFORM, DATA_SINK = "DATA_SOURCE", "TRANSFORM", "DATA_SINK"
TYPES = (DATA_SOURCE, TRANSFORM, DATA_SINK)
# The column that says which message a row comes from.
MESSAGE = "_message"
# How much of the source an epoch may take: what is admitted and not committed, the flow's warm size.
WARM_MESSAGES = 100_000
WARM_BYTES = "64m"

StepFunction = TypeVar("StepFunction", bound=Callable[..., Any])


@dataclass(frozen=True)
class Step:
    """A function from DataFrame to DataFrame."""

    name: str
    function: Callable[..., "DataFrame"]
    where: str


@dataclass(frozen=True)
class Expectation:
    """What must be true of a row; where it is not, also because of a null, its message becomes a dead letter."""

    name: str
    condition: str
    where: str


@dataclass(frozen=True)
class Route:
    """A queue, and which rows go there; without a condition, all."""

    queue: str
    when: str | None
    partition: str | None
    key: str | None
    value: str | None
    headers: str | None
    where: str

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return f"to {self.queue}"


@dataclass(frozen=True)
class Files:
    """Where a flow begins that reads no queue: files, or a table."""

    path: str | None
    table: str | None
    format: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Copy:
    """Files or a table to which the rows of the output queue are copied, by a query of its own."""

    kind: str
    place: str
    options: Mapping[str, str]
    where: str


class Flow:
    """A pipeline: from queues, files or a table, through steps, to queues.

    `source` names a queue, and `sources` several by alias, which the first step gets as arguments of these names.
    `files` or `table` begin a flow that loads data. `schema` is the columns of the JSON values, as Spark writes it (of
    several sources, a mapping by alias); without one, steps see the messages as they are.

    `max_messages` and `max_bytes` limit an epoch. `trigger` is how often one begins ("10 seconds"). `starting` is where
    a flow begins that never ran: earliest or latest. `checkpoint` is a path; the default lies in the home of penstock
    and is remembered. `type` overrides what the ends of the flow say.
    """

    def __init__(
        self,
        name: str,
        source: str | None = None,
        *,
        sources: Mapping[str, str] | None = None,
        files: str | None = None,
        table: str | None = None,
        format: str = "json",  # noqa: A002
        options: Mapping[str, str] | None = None,
        schema: str | Mapping[str, str] | None = None,
        type: str | None = None,  # noqa: A002
        trigger: str = "0 seconds",
        max_messages: int = WARM_MESSAGES,
        max_bytes: int | str = WARM_BYTES,
        starting: str = "earliest",
        checkpoint: str | None = None,
    ) -> None:
        begins = [given for given in (source, sources, files, table) if given is not None]
        if len(begins) != 1:
            raise InvalidInput(f"flow {name}: give one of source, sources, files and table")
        if type is not None and type not in TYPES:
            raise InvalidInput(f"flow {name}: type is {type!r} but must be one of {', '.join(TYPES)}")
        if starting not in ("earliest", "latest"):
            raise InvalidInput(f"flow {name}: starting is {starting!r} but must be earliest or latest")
        self.name = name
        self.sources: dict[str, str] = {"": source} if source is not None else dict(sources or {})
        self.files = None if files is None and table is None else Files(files, table, format, dict(options or {}))
        self.schemas = _schemas(name, schema, self.sources, self.files)
        self.type = type
        self.trigger = trigger
        self.max_messages = max_messages
        self.max_bytes = str(max_bytes)
        self.starting = starting
        self.checkpoint = checkpoint
        self.steps: list[Step] = []
        self.expectations: list[Expectation] = []
        self.routes: list[Route] = []
        self.copies: list[Copy] = []
        # Whether `_message` has the value too. A row that waits for its partner in a join may outlive its message in
        # the log, and must bring along what its dead letter needs.
        self.carries_values = len(self.sources) > 1
        self.where = _caller()

    def __repr__(self) -> str:
        return f"Flow({self.name!r})"

    def step(self, function: StepFunction) -> StepFunction:
        """Add a step: a function that takes a DataFrame and returns one. Steps run in the order in which they stand.

        A step that selects columns by name keeps `_message` among them where an expectation follows.
        """
        code = getattr(function, "__code__", None)
        where = f"{code.co_filename}:{code.co_firstlineno}" if code else _caller()
        self.steps.append(Step(getattr(function, "__name__", str(function)), function, where))
        return function

    def expect(self, name: str, condition: str) -> "Flow":
        """Expect something of every row that the steps made; the message of a row that fails becomes a dead letter.

        The dead letter's reason is `<flow>: <name>`. A condition that is null for a row is not true of it.
        """
        self.expectations.append(Expectation(name, condition, _caller()))
        return self

    def route(
        self,
        queue: str,
        when: str,
        *,
        partition: str | None = None,
        key: str | None = None,
        value: str | None = None,
        headers: str | None = None,
    ) -> "Flow":
        """Send the rows to a queue for which a condition is true. A row goes to every route that it meets.

        `partition`, `key`, `value` and `headers` are columns or SQL expressions. The value is the row as JSON unless
        said otherwise.
        """
        self.routes.append(Route(queue, when, partition, key, value, headers, _caller()))
        return self

    def to(
        self,
        queue: str,
        *,
        partition: str | None = None,
        key: str | None = None,
        value: str | None = None,
        headers: str | None = None,
    ) -> "Flow":
        """Send every row to a queue; otherwise like `route`."""
        self.routes.append(Route(queue, None, partition, key, value, headers, _caller()))
        return self

    def to_parquet(self, path: str, **options: str) -> "Flow":
        """Copy the rows of the output queue to Parquet files, with a query of its own."""
        self.copies.append(Copy("parquet", path, options, _caller()))
        return self

    def to_table(self, table: str, **options: str) -> "Flow":
        """Copy the rows of the output queue to a table of Spark's catalog, with a query of its own."""
        self.copies.append(Copy("table", table, options, _caller()))
        return self

    @property
    def outputs(self) -> list[str]:
        """The queues that it writes to, each once."""
        return list(dict.fromkeys(route.queue for route in self.routes))

    @property
    def copied_queue(self) -> str | None:
        """The queue that its copies are made of: the first one that gets every row."""
        return next((route.queue for route in self.routes if route.when is None), None)

    @property
    def rejects(self) -> str:
        """The queue for rows that no queue of the flow can take and that come from no message."""
        return f"{self.name}.rejected"

    def copy_name(self, index: int) -> str:
        """Return the name of a copy in the list of flows."""
        return f"{self.name}.{self.copies[index].kind}" + (f"-{index + 1}" if index else "")

    @property
    def names(self) -> list[str]:
        """Its own name and those of its copies: what the list of flows has of it."""
        return [self.name, *map(self.copy_name, range(len(self.copies)))]

    def message_column(self, alias: str) -> str:
        """Return the column that says which message of a source a row comes from."""
        return f"{MESSAGE}_{alias}" if alias else MESSAGE

    @property
    def message_columns(self) -> list[str]:
        """The columns that say which messages a row comes from."""
        return [self.message_column(alias) for alias in self.sources]


def derive_type(flow: Flow, read_by_others: set[str]) -> str:
    """Return what kind of flow it is: by where it begins, and by whether anybody goes on with what it writes."""
    if flow.type is not None:
        return flow.type
    if flow.files is not None:
        return DATA_SOURCE
    return TRANSFORM if read_by_others & set(flow.outputs) else DATA_SINK


def _schemas(
    name: str, schema: str | Mapping[str, str] | None, sources: Mapping[str, str], files: Files | None
) -> dict[str, str]:
    if schema is None:
        return {}
    if isinstance(schema, str):
        if len(sources) > 1:
            raise InvalidInput(f"flow {name}: of several sources, schema is a mapping by alias")
        return dict.fromkeys(sources, schema) if files is None else {"": schema}
    unknown = schema.keys() - sources.keys()
    if unknown:
        raise InvalidInput(f"flow {name}: schema names {', '.join(sorted(unknown))}, which is no alias of its sources")
    return dict(schema)


def _caller() -> str:
    """Return the line of the user's file that called us."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
