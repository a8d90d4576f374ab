"""The processes of a local Spark find PySpark where its bytecode is kept, and not in a zip."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.embedded.spark import spark_home
from penstock.spark.sessions import prepared


def made(folder: Path) -> Path:
    home = spark_home(folder)
    assert home is not None
    return home


def kept_bytecode(home: Path, package: str) -> Path:
    """Return where a process that Spark starts with this home keeps the bytecode of a package."""
    zips = sorted((home / "python" / "lib").glob("*.zip"))
    assert len(zips) == 2
    said = subprocess.run(
        [sys.executable, "-c", f"import {package}; print({package}.__spec__.origin, {package}.__spec__.cached)"],
        # Empty: some machines forbid Python to write bytecode, and there an installer may have written none.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, zips)), "PYTHONDONTWRITEBYTECODE": ""},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    origin, cached = said.split()
    assert Path(origin).is_relative_to(home)
    return Path(cached)


@pytest.mark.parametrize("package", ["pyspark", "py4j"])
def test_bytecode_is_kept(tmp_path: Path, package: str) -> None:
    assert kept_bytecode(made(tmp_path), package).exists()


def test_all_else_is_sparks_own(tmp_path: Path) -> None:
    home = made(tmp_path)
    (package,) = {link.resolve().parent for link in home.iterdir() if link.is_symlink()}
    assert (home / "bin" / "spark-submit").samefile(package / "bin" / "spark-submit")
    assert (home / "python" / "pyspark" / "shell.py").exists()
    assert os.readlink(home / "conf") == str(package / "conf")


def test_it_is_made_once_however_many_ask(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        homes = set(threads.map(made, [tmp_path] * 32))
    assert [*homes] == [*(tmp_path / "spark").iterdir()]


@pytest.fixture
def unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which nobody has said anything about Spark; at the end it is as before."""
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    for name in ("SPARK_HOME", "JAVA_HOME", "PYSPARK_PYTHON"):
        monkeypatch.setenv(name, "")
        del os.environ[name]


def homes_of(master: str) -> str | None:
    """Return the home that a Spark of this master gets while it starts; afterwards it is as before."""
    before = os.environ.get("SPARK_HOME")
    with prepared(master):
        during = os.environ.get("SPARK_HOME")
    assert os.environ.get("SPARK_HOME") == before
    return during


@pytest.mark.usefixtures("unset")
def test_where_it_cannot_be_made_sparks_own_must_do(tmp_path: Path) -> None:
    (tmp_path / "spark").touch()
    assert spark_home(tmp_path) is None
    assert homes_of("local[2]") is None


def test_what_is_left_of_one_is_not_used(tmp_path: Path) -> None:
    (made(tmp_path) / "bin").unlink()
    assert spark_home(tmp_path) is None


def test_a_spark_that_was_chosen_at_install_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "pyspark"
    (package / "spark-distribution").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(package.parent)
    # As where nobody has imported it yet.
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    assert spark_home(tmp_path) is None


def test_others_may_use_it_too_and_it_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = made(Path("."))
    assert home.is_absolute()
    assert home.stat().st_mode & 0o777 == 0o755


@pytest.mark.usefixtures("unset")
def test_a_local_spark_gets_it_where_nobody_has_set_another(tmp_path: Path) -> None:
    assert homes_of("spark://head:7077") is None
    assert homes_of("local[2]") == str(made(tmp_path))
    os.environ["SPARK_HOME"] = "mine"
    assert homes_of("local[2]") == "mine"
