"""Which package a piece of code comes from: what the registry shows as the plugin of an action."""

import hashlib
import sys
from functools import cache
from importlib import metadata
from pathlib import Path


@cache
def plugin_of(module: str) -> str:
    """Return the distribution that a module comes with, or its file and what is in it."""
    top = module.partition(".")[0]
    distributions = metadata.packages_distributions().get(top)
    if distributions:
        return f"{distributions[0]}:{metadata.version(distributions[0])}"
    if top == "penstock":
        return f"penstock:{sys.modules['penstock'].__version__}"
    path = getattr(sys.modules.get(module), "__file__", None)
    if path is None or not Path(path).is_file():
        return f"{top}:unknown"
    return f"{Path(path).name}:{hashlib.sha256(Path(path).read_bytes()).hexdigest()[:8]}"
