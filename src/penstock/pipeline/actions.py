"""The rows of the registry: the actions of a flow, each with its class and the plugin that provides it."""

import hashlib
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from penstock.pipeline.flow import Expectation, Files, Flow, Route


class Action(NamedTuple):
    """One action of a flow: its name, its class (module.qualname) and the plugin (distribution:version)."""

    name: str
    action_class: str
    plugin: str


def actions(flow: Flow) -> list[Action]:
    """Return the actions of a flow, in their order."""
    found = [_ours("read", Files)] if flow.files else []
    for step in flow.steps:
        module = getattr(step.function, "__module__", "")
        name = getattr(step.function, "__qualname__", step.name)
        found.append(Action(step.name, f"{module}.{name}", plugin_of(module)))
    found += [_ours(expectation.name, Expectation) for expectation in flow.expectations]
    found += [_ours(route.name, Route) for route in flow.routes]
    return list({action.name: action for action in found}.values())


def _ours(name: str, kind: type) -> Action:
    return Action(name, f"{kind.__module__}.{kind.__qualname__}", plugin_of(kind.__module__))


@cache
def plugin_of(module: str) -> str:
    """Return the distribution that a module comes with, or its file and what is in it."""
    top = module.partition(".")[0]
    distributions = metadata.packages_distributions().get(top)
    if distributions:
        return f"{distributions[0]}:{metadata.version(distributions[0])}"
    if top == "penstock":
        from penstock import __version__

        return f"penstock:{__version__}"
    path = getattr(sys.modules.get(module), "__file__", None)
    if path is None or not Path(path).is_file():
        return f"{top}:unknown"
    return f"{Path(path).name}:{hashlib.sha256(Path(path).read_bytes()).hexdigest()[:8]}"
