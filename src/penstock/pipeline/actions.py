"""The rows of the registry: the actions of a flow, each with its class and the plugin that provides it."""

from typing import NamedTuple

from penstock.pipeline.flow import Expectation, Files, Flow, Route
from penstock.plugins import plugin_of


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
