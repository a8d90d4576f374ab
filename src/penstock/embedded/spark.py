"""A home for Spark whose Python is the installed package, so that its processes start in a fraction of the time.

Spark puts a zip of its Python sources first on the path of every process that it starts. Nothing keeps bytecode for
what is in a zip, so each of the seven or so behind a query's first epoch compiles PySpark anew. The home made here is
Spark's own, by links, but for the zips: folders of the same names, with the installed packages in them.
"""

import hashlib
import importlib.util
import os
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from penstock.embedded.home import Home
from penstock.errors import EmbeddedError


def spark_home(folder: Path) -> Path | None:
    """Return this home below `folder`, making it once; None where it cannot be had, and Spark's own must do."""
    package, py4j = _installed("pyspark"), _installed("py4j")
    # With another Spark beside it, PySpark would choose that one.
    if package is None or py4j is None or (package / "spark-distribution").exists():
        return None
    # Of each PySpark one: several environments may share the folder.
    place = hashlib.sha256(os.fsencode(package)).hexdigest()[:8]
    owner = Home(folder)
    try:
        home = owner.path / "spark" / f"{version('pyspark')}-{place}"
        if not home.exists():
            owner.prepare()
            _make(package, py4j, home)
    except (OSError, EmbeddedError, PackageNotFoundError):
        return None
    # Somebody else's may be closed to us.
    return home if os.access(home / "bin" / "spark-submit", os.X_OK) else None


def _make(package: Path, py4j: Path, home: Path) -> None:
    home.parent.mkdir(exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=home.parent))
    try:
        _link(package, py4j, draft)
        draft.chmod(0o755)
        draft.rename(home)
    except OSError:
        shutil.rmtree(draft)
        # Or another process has just made it.
        if not home.exists():
            raise


def _installed(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _link(package: Path, py4j: Path, home: Path) -> None:
    libraries = package / "python" / "lib"
    # What a person may add later counts, too: settings in `conf`, jars in their folder.
    for entry in {*package.iterdir(), package / "conf", *libraries.parent.iterdir()} - {libraries.parent, libraries}:
        link = home / entry.relative_to(package)
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(entry)
    for archive in libraries.glob("*.zip"):
        stand_in = home / archive.relative_to(package)
        stand_in.mkdir(parents=True)
        installed = py4j if archive.name.startswith("py4j") else package
        (stand_in / installed.name).symlink_to(installed)
