"""Every client has the same methods with the same parameters."""

import inspect
from collections.abc import Callable

import pytest

from penstock import AsyncClient, Client

# Calls of a synchronous client do not come at the same time in one thread, so it joins none.
BATCHING = {"push_batching", "pop_batching"}
METHODS = [name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")]


def parameters(method: Callable[..., object]) -> list[tuple[str, object, object]]:
    """Names, kinds and defaults; a handler or an event may well be of the asynchronous type."""
    return [(each.name, each.kind, each.default) for each in inspect.signature(method).parameters.values()]


@pytest.mark.parametrize("name", ["__init__", *METHODS])
def test_the_asynchronous_twin_takes_the_same_parameters(name: str) -> None:
    taken = [each for each in parameters(getattr(AsyncClient, name)) if each[0] not in BATCHING]
    assert parameters(getattr(Client, name)) == taken


def test_the_twins_have_the_same_public_names() -> None:
    names = {name for name in dir(Client) if not name.startswith("_")}
    # A front end that prepares operations, the gateway, is asynchronous.
    only = {"open", "prepare_operations", *BATCHING}
    assert {name for name in dir(AsyncClient) if not name.startswith("_")} - names == only
    assert names <= set(dir(AsyncClient))


def test_every_public_method_says_what_it_does() -> None:
    for client in (Client, AsyncClient):
        for name in METHODS:
            assert inspect.getdoc(getattr(client, name)), f"{client.__name__}.{name} has no docstring"
