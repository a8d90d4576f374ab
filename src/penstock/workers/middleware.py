"""Middleware: code around every handler of an app, such as a timer, a trace or a translation of errors.

A middleware is a generator function that takes the item and yields once. The handler runs there: its result comes out
of the yield, and what it raised is raised there. An asynchronous one is around asynchronous handlers only.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock import tracing
from penstock.errors import InvalidInput
from penstock.workers.items import Item

Handler = Callable[[Item], Any]
AsyncHandler = Callable[[Item], Awaitable[Any]]


@dataclass(frozen=True, eq=False)
class Middleware:
    """A generator function around handlers."""

    function: Callable[[Item], Any]

    @property
    def is_async(self) -> bool:
        """Whether it is an asynchronous generator function."""
        return inspect.isasyncgenfunction(self.function)

    def __call__(self, item: Item) -> Any:
        """Call the function itself."""
        return self.function(item)


def middleware(function: Callable[[Item], Any]) -> Middleware:
    """Make a middleware of a generator function that takes an item and yields once, where the handler runs."""
    if not (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        raise InvalidInput(f"middleware {function!r} must be a generator function that takes an item and yields once")
    return Middleware(function)


def with_tracing(all_middleware: Sequence[Middleware]) -> Sequence[Middleware]:
    """Return middleware with that of traces around it, where they are on."""
    return [Middleware(_traced), *all_middleware] if tracing.is_on() else all_middleware


def _traced(item: Item) -> Iterator[None]:
    with item.traced():
        yield


def around(handler: Handler, all_middleware: Sequence[Middleware]) -> Handler:
    """Put middleware around a synchronous handler, the first one outermost."""
    for one in reversed([each for each in all_middleware if not each.is_async]):
        handler = partial(_call, one, handler)
    return handler


def around_async(handler: AsyncHandler, all_middleware: Sequence[Middleware]) -> AsyncHandler:
    """Put middleware around an asynchronous handler, the first one outermost."""
    for one in reversed(all_middleware):
        handler = partial(_call_in_async_generator if one.is_async else _call_async, one, handler)
    return handler


def _call(one: Middleware, handler: Handler, item: Item) -> Any:
    generator = one.function(item)
    next(generator)
    try:
        result = handler(item)
    except BaseException as error:
        return _throw(generator, error)
    return _send(generator, result)


async def _call_async(one: Middleware, handler: AsyncHandler, item: Item) -> Any:
    generator = one.function(item)
    next(generator)
    try:
        result = await handler(item)
    except BaseException as error:
        return _throw(generator, error)
    return _send(generator, result)


def _throw(generator: Any, error: BaseException) -> Any:
    """Raise an error at the yield; one that the middleware swallows leaves what it returns."""
    try:
        generator.throw(error)
    except StopIteration as stop:
        return stop.value
    raise _yields_again(generator)


def _send(generator: Any, result: Any) -> Any:
    """Let a result come out of the yield; what the middleware returns takes its place, unless it is None."""
    try:
        generator.send(result)
    except StopIteration as stop:
        return result if stop.value is None else stop.value
    raise _yields_again(generator)


async def _call_in_async_generator(one: Middleware, handler: AsyncHandler, item: Item) -> Any:
    generator = one.function(item)
    await anext(generator)
    try:
        result = await handler(item)
    except BaseException as error:
        try:
            await generator.athrow(error)
        except StopAsyncIteration:
            return None
        raise _yields_again(generator) from error
    try:
        await generator.asend(result)
    except StopAsyncIteration:
        return result
    raise _yields_again(generator)


def _yields_again(generator: Any) -> RuntimeError:
    return RuntimeError(f"middleware {generator.__qualname__} yields more than once")
