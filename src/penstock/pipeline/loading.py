"""Loads the flows of a file."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.errors import InvalidInput
from penstock.pipeline.flow import Flow


def load(path: str | Path) -> list[Flow]:
    """Run a file and return the flows that its names hold, in the order of the file."""
    file = Path(path).resolve()
    if not file.is_file():
        raise InvalidInput(f"there is no file {path}")
    if file.stem in sys.stdlib_module_names or file.stem in ("penstock", "pyspark"):
        raise InvalidInput(f"{path} has the name of a Python module that is imported elsewhere: rename the file")
    module = _run(file)
    flows = list({id(value): value for value in vars(module).values() if isinstance(value, Flow)}.values())
    if not flows:
        raise InvalidInput(f"{path} has no flow: write one as `orders = Flow(…)`, with a name of its own")
    return flows


def _run(file: Path) -> ModuleType:
    # Its neighbours can be imported, here and in Spark's processes.
    folder = str(file.parent)
    sys.path.insert(0, folder)
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = folder if not known else f"{folder}{os.pathsep}{known}"
    specification = importlib.util.spec_from_file_location(file.stem, file)
    if specification is None or specification.loader is None:
        raise InvalidInput(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(specification)
    sys.modules[file.stem] = module
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        line = _line(error, file)
        raise InvalidInput(f"{file.name}{line}: {type(error).__name__}: {error}") from error
    return module


def _line(error: Exception, file: Path) -> str:
    trace, found = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            found = f":{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def ship(module_name: str) -> None:
    """Let Spark carry the functions of a module by value: its processes need not find the file."""
    cloudpickle: Any = importlib.import_module("pyspark.cloudpickle")
    module = sys.modules.get(module_name)
    if module is not None and module_name != "__main__":
        cloudpickle.register_pickle_by_value(module)
