"""The locations of checkpoints, and whether one exists."""

from pathlib import Path
from urllib.parse import quote, urlparse
from uuid import uuid4


def place(base: str, flow: str) -> str:
    """Return a new place for the checkpoint of a flow; the database remembers it."""
    return f"{base.rstrip('/')}/{quote(flow, safe='')}-{uuid4().hex[:8]}"


def default_base(home: Path) -> str:
    """Return the default folder of checkpoints, which survives restarts."""
    return str(home / "checkpoints")


def absolute(path: str) -> str:
    """Return a place on this machine so that it means the same wherever `penstock run` is started."""
    local = local_path(path)
    return path if local is None or path.startswith("file:") else str(local.absolute())


def is_missing(path: str) -> bool:
    """Return whether a checkpoint is missing; a remote one is never reported as missing."""
    local = local_path(path)
    return local is not None and not (local / "metadata").exists()


def local_path(path: str) -> Path | None:
    """Return the path of a place on this machine."""
    parsed = urlparse(path)
    if parsed.scheme == "file":
        return Path(parsed.path)
    return Path(path) if not parsed.scheme or len(parsed.scheme) == 1 else None
