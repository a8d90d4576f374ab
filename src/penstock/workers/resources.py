"""Resources: what handlers need and is opened once per worker process, such as a connection pool or a model.

A handler names a resource as a parameter, and so may a resource. A resource that is a generator function is opened by
its first half and closed, when the worker ends, by its second.
"""

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, overload

from penstock.consuming.failures import describe
from penstock.errors import InvalidInput, SetupError

log = logging.getLogger("penstock.worker")


@dataclass(frozen=True, eq=False)
class Resource:
    """A function that opens something, under a name. Calling it calls the function."""

    function: Callable[..., Any]
    name: str

    @property
    def is_async(self) -> bool:
        """Whether it can be opened in an event loop only."""
        return inspect.iscoroutinefunction(self.function) or inspect.isasyncgenfunction(self.function)

    @property
    def needs(self) -> tuple[str, ...]:
        """The resources that it takes."""
        function = self.function
        return tuple(
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.default is inspect.Parameter.empty
        )

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function itself, as a test does."""
        return self.function(*arguments, **named)


@overload
def resource(function: Callable[..., Any], /) -> Resource: ...
@overload
def resource(*, name: str | None = None) -> Callable[[Callable[..., Any]], Resource]: ...
def resource(function: Callable[..., Any] | None = None, /, *, name: str | None = None) -> Any:
    """Make a resource of a function: what it returns or yields is handed to handlers that have a parameter of its name.

    It is opened once per worker process, before the first item is taken, if a handler needs it.
    """

    def make(opener: Callable[..., Any]) -> Resource:
        if not callable(opener):
            raise InvalidInput(f"resource is {opener!r}, which cannot be called; give a function")
        return Resource(opener, name or opener.__name__)

    return make if function is None else make(function)


def in_order(wanted: Iterable[str], known: Mapping[str, Resource], who: str) -> list[Resource]:
    """Return the resources that somebody needs, each after those that it needs itself."""
    found: dict[str, Resource] = {}

    def visit(name: str, whose: str, path: tuple[str, ...]) -> None:
        if name in found:
            return
        if name in path:
            raise InvalidInput(f"resources need one another in a circle: {' → '.join((*path, name))}")
        if name not in known:
            raise InvalidInput(
                f"{whose} has a parameter {name}, and there is no resource of that name; make one with @resource"
            )
        for needed in known[name].needs:
            visit(needed, f"resource {name}", (*path, name))
        found[name] = known[name]

    for name in wanted:
        visit(name, who, ())
    return list(found.values())


@contextmanager
def _named(one: Resource, who: str) -> Iterator[None]:
    """Say which resource cannot be opened."""
    try:
        yield
    except Exception as error:
        raise SetupError(f"resource {one.name}, which {who} needs, cannot be opened: {describe(error)}") from error


class AsyncResources:
    """The open resources of a worker process."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._open: dict[str, Any] = {}

    async def get(self, wanted: Iterable[str], known: Mapping[str, Resource], who: str) -> dict[str, Any]:
        """Return resources by name; those that are not open yet are opened."""
        names = tuple(wanted)
        for one in in_order(names, known, who):
            if one.name not in self._open:
                log.debug("opening resource %s", one.name)
                with _named(one, who):
                    self._open[one.name] = await self._opened(one)
        return {name: self._open[name] for name in names}

    async def _opened(self, one: Resource) -> Any:
        needed = {name: self._open[name] for name in one.needs}
        if inspect.isasyncgenfunction(one.function):
            return await self._stack.enter_async_context(asynccontextmanager(one.function)(**needed))
        if inspect.isgeneratorfunction(one.function):
            return self._stack.enter_context(contextmanager(one.function)(**needed))
        made = one.function(**needed)
        return await made if inspect.isawaitable(made) else made

    async def close(self) -> None:
        """Close all, the last one first."""
        await self._stack.aclose()


class Resources:
    """The open resources of a child process, which has no event loop."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._open: dict[str, Any] = {}

    def get(self, wanted: Iterable[str], known: Mapping[str, Resource], who: str) -> dict[str, Any]:
        """Return resources by name; those that are not open yet are opened."""
        names = tuple(wanted)
        for one in in_order(names, known, who):
            if one.name not in self._open:
                if one.is_async:
                    raise InvalidInput(f"resource {one.name} is asynchronous, and {who} runs in a child process")
                needed = {name: self._open[name] for name in one.needs}
                with _named(one, who):
                    self._open[one.name] = (
                        self._stack.enter_context(contextmanager(one.function)(**needed))
                        if inspect.isgeneratorfunction(one.function)
                        else one.function(**needed)
                    )
        return {name: self._open[name] for name in names}

    def close(self) -> None:
        """Close all, the last one first."""
        self._stack.close()
