"""Loads the actions of an app: a Python file, or a module by its name."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.errors import InvalidInput
from penstock.workers.actions import Action, collected
from penstock.workers.middleware import Middleware
from penstock.workers.resources import Resource


@dataclass(frozen=True)
class App:
    """The actions of an app, and what is around them."""

    name: str
    actions: tuple[Action, ...]
    resources: dict[str, Resource]
    middleware: tuple[Middleware, ...]
    # What child processes load: the file or the module. None if it is no app that was loaded.
    home: str | None = None

    def only(self, queues: Iterable[str] = (), actions: Iterable[str] = ()) -> "App":
        """Return the app with some of its actions: of these queues, with these names (`name` or `flow.name`)."""
        queues, names = set(queues), set(actions)
        unknown = queues - {action.queue for action in self.actions}
        unknown |= names - {name for action in self.actions for name in (action.name, action.group)}
        if unknown:
            known = ", ".join(f"{action.group} (queue {action.queue})" for action in self.actions)
            raise InvalidInput(f"{self.name} has no {', '.join(sorted(unknown))}; it has {known}")
        chosen = tuple(
            action
            for action in self.actions
            if (not queues or action.queue in queues) and (not names or {action.name, action.group} & names)
        )
        return replace(self, actions=chosen)


def load(name: str, home: str | None = None) -> App:
    """Import a file or a module and return the actions, resources and middleware that its names hold.

    Resources and middleware are also looked for in the modules that its actions come from. `home` is where the file is
    on this machine, if it was brought here from another one that knows it by its name.
    """
    home = home or name
    with collected() as made:
        module = _import(home)
    _refuse_replaced(name, made)
    actions = _unique(module, Action)
    if not actions:
        raise InvalidInput(f"{name} has no action: write one as `@action(queue=…)` above a function")
    return replace(make_app(name, actions, module), home=home)


def make_app(name: str, actions: Iterable[Action], *modules: ModuleType) -> App:
    """Return an app of some actions, with the resources and the middleware of their modules."""
    chosen = tuple(actions)
    groups: dict[str, Action] = {}
    for action in chosen:
        if action.group in groups:
            raise InvalidInput(
                f"{name} has two actions {action.group}: {groups[action.group].action_class} and "
                f"{action.action_class}; give one another name or flow"
            )
        groups[action.group] = action
    homes = dict.fromkeys([*modules, *(sys.modules[action.function.__module__] for action in chosen)])
    resources = {one.name: one for home in homes for one in _unique(home, Resource)}
    around = dict.fromkeys(one for home in homes for one in _unique(home, Middleware))
    return App(name, chosen, resources, tuple(around))


def _unique(module: ModuleType, kind: type[Any]) -> list[Any]:
    return list(dict.fromkeys(value for value in vars(module).values() if isinstance(value, kind)))


def _refuse_replaced(name: str, made: Iterable[Action]) -> None:
    """Refuse a function whose name another one took: nobody would hear that its action does not run."""
    last: dict[str, Action] = {}
    for action in made:
        before = last.get(action.action_class)
        held = vars(sys.modules.get(action.function.__module__, sys)).values()
        if before is not None and not any(value is before for value in held):
            raise InvalidInput(
                f"{name} has two actions of a function {action.action_class}: {before.group}{_line(before)} is "
                f"replaced by {action.group}{_line(action)}; give one of the functions another name"
            )
        if "<locals>" not in action.action_class:
            last[action.action_class] = action


def _line(action: Action) -> str:
    code = getattr(action.function, "__code__", None)
    return "" if code is None else f" (line {code.co_firstlineno})"


def _import(name: str) -> ModuleType:
    path = Path(name)
    try:
        if path.suffix != ".py":
            # As `python -m` does it.
            if "" not in sys.path and str(Path.cwd()) not in sys.path:
                sys.path.insert(0, str(Path.cwd()))
            return importlib.import_module(name)
        return _import_file(path.resolve())
    except InvalidInput:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and name.split(".")[0] == error.name.split(".")[0]:
            raise InvalidInput(f"there is no module {name}; give a file such as app.py, or a module's name") from error
        raise _failed(name, error) from error
    except Exception as error:
        raise _failed(name, error) from error


def _import_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise InvalidInput(f"there is no file {file}")
    if file.stem in sys.stdlib_module_names or file.stem == "penstock":
        raise InvalidInput(f"{file.name} has the name of a Python module that is imported elsewhere: rename the file")
    # Its neighbours can be imported.
    sys.path.insert(0, str(file.parent))
    specification = importlib.util.spec_from_file_location(file.stem, file)
    if specification is None or specification.loader is None:
        raise InvalidInput(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(specification)
    sys.modules[file.stem] = module
    specification.loader.exec_module(module)
    return module


def _failed(name: str, error: Exception) -> InvalidInput:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return InvalidInput(f"{name} cannot be imported: {type(error).__name__}: {error} ({last.filename}:{last.lineno})")
