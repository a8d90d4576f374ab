"""Actions: a function with the queue that it takes its items from, and all that is said about it."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, overload

from penstock.broker.arguments import Seconds, positive
from penstock.broker.names import check_names
from penstock.consuming.handlers import is_async, require_runnable
from penstock.errors import InvalidInput

# What an action does to a flow. DeltaFi's REST_, TIMED_ and ON_ERROR_DATA_SOURCE are DATA_SOURCE here: see the docs.
DATA_SOURCE, TRANSFORM, DATA_SINK = "DATA_SOURCE", "TRANSFORM", "DATA_SINK"
UNKNOWN = "UNKNOWN"
_TYPES = (DATA_SOURCE, TRANSFORM, DATA_SINK)
_MODES = ("ordered", "shared")
_RUN_IN = ("thread", "process")
# While an app is imported: the actions that are made, whether or not a name keeps them.
_made: "ContextVar[list[Action] | None]" = ContextVar("made", default=None)


@dataclass(frozen=True, eq=False)
class Action:
    """A handler, and how its items are taken and settled. Calling it calls the handler."""

    function: Callable[..., Any]
    queue: str
    to: str | None
    flow: str
    name: str
    flow_type: str
    mode: str
    timeout: float | None
    concurrency: int | None
    run_in: str | None
    # Settings of the group: attempts, backoff, lease, limits.
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The consumer group of the action."""
        return f"{self.flow}.{self.name}"

    @property
    def action_class(self) -> str:
        """Where the handler is: module and name."""
        return f"{self.function.__module__}.{getattr(self.function, '__qualname__', self.name)}"

    @property
    def is_async(self) -> bool:
        """Whether the handler is a coroutine function."""
        return is_async(self.function)

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the resources that the handler takes: all parameters after the first."""
        return parameters_of(self.function)[1:]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the handler itself, as a test does."""
        return self.function(*arguments, **named)


@contextmanager
def collected() -> "Iterator[list[Action]]":
    """Collect the actions that are made meanwhile."""
    found: list[Action] = []
    token = _made.set(found)
    try:
        yield found
    finally:
        _made.reset(token)


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters that a call has to give."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(
        parameter.name
        for place, parameter in enumerate(inspect.signature(function).parameters.values())
        if parameter.kind in kinds and (place == 0 or parameter.default is inspect.Parameter.empty)
    )


@overload
def action(function: Callable[..., Any], /) -> Action: ...
@overload
def action(
    *,
    queue: str | None = None,
    to: str | None = None,
    flow: str = "default",
    name: str | None = None,
    flow_type: str | None = None,
    mode: str = "ordered",
    max_attempts: int | None = None,
    timeout: Seconds | None = None,
    backoff: Seconds | None = None,
    max_backoff: Seconds | None = None,
    concurrency: int | None = None,
    run_in: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], Action]: ...
def action(
    function: Callable[..., Any] | None = None,
    /,
    *,
    queue: str | None = None,
    to: str | None = None,
    flow: str = "default",
    name: str | None = None,
    flow_type: str | None = None,
    mode: str = "ordered",
    max_attempts: int | None = None,
    timeout: Seconds | None = None,
    backoff: Seconds | None = None,
    max_backoff: Seconds | None = None,
    concurrency: int | None = None,
    run_in: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Any:
    """Make an action of a function that takes an item, synchronous or not.

    It takes the items of `queue` (default: its own name) as the consumer group `"<flow>.<name>"`, and what it returns
    is pushed to `to` together with the acknowledgement. In mode 'ordered' the items of a partition are handled one
    after the other, in mode 'shared' all at the same time. One that takes longer than `timeout` fails. One that fails
    is tried again after `backoff` seconds, longer each time up to `max_backoff`, until it has had `max_attempts`.
    A worker process handles `concurrency` items of it at a time; a synchronous function runs in a thread, or with
    `run_in="process"` in a child process. `settings` are settings of the group, such as its limits.
    """

    def make(handler: Callable[..., Any]) -> Action:
        own = name or str(getattr(handler, "__name__", ""))
        made = _checked(
            Action(
                handler,
                queue or own,
                to,
                flow,
                own,
                flow_type or (TRANSFORM if to else DATA_SINK),
                mode,
                positive("timeout", timeout),
                concurrency,
                run_in,
                _group_settings(settings, max_attempts, backoff, max_backoff),
            )
        )
        if (collected := _made.get()) is not None:
            collected.append(made)
        return made

    return make if function is None else make(function)


def _group_settings(
    settings: Mapping[str, Any] | None,
    max_attempts: int | None,
    backoff: Seconds | None,
    max_backoff: Seconds | None,
) -> dict[str, Any]:
    given = {
        "max_attempts": max_attempts,
        "backoff_initial": positive("backoff", backoff),
        "backoff_max": positive("max_backoff", max_backoff),
    }
    return {**(settings or {}), **{name: value for name, value in given.items() if value is not None}}


def _checked(made: Action) -> Action:
    """Refuse an action that could not be run."""
    require_runnable(made.function, "action")
    if not made.name or made.name == "<lambda>":
        raise InvalidInput("an action needs a name: give name=…")
    check_names(made.queue, made.flow, made.name, *([made.to] if made.to else []), what=("queue", "flow", "name", "to"))
    if not parameters_of(made.function):
        raise InvalidInput(f"action {made.name} takes no parameter: its first one is the item")
    for what, value, known in (
        ("mode", made.mode, _MODES),
        ("flow_type", made.flow_type, _TYPES),
        ("run_in", made.run_in or "thread", _RUN_IN),
    ):
        if value not in known:
            raise InvalidInput(f"{what} of action {made.name} is {value!r} but must be one of {', '.join(known)}")
    if made.is_async and made.run_in is not None:
        raise InvalidInput(f"action {made.name} is asynchronous, so run_in cannot be set: it runs in the event loop")
    if made.concurrency is not None and not (isinstance(made.concurrency, int) and made.concurrency > 0):
        raise InvalidInput(f"concurrency of action {made.name} is {made.concurrency!r} but must be a number above 0")
    return made
