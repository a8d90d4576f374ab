"""The processes of a local Spark find PySpark where its bytecode is kept, and not in a zip."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.embedded.spark import spark_home
from penstock.spark.sessions import prepare


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
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, zips))},
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


@pytest.mark.usefixtures("unset")
def test_where_it_cannot_be_made_sparks_own_must_do(tmp_path: Path) -> None:
    (tmp_path / "spark").touch()
    assert spark_home(tmp_path) is None
    prepare("local[2]")
    assert "SPARK_HOME" not in os.environ


@pytest.mark.usefixtures("unset")
def test_a_local_spark_gets_it_where_nobody_has_set_another(tmp_path: Path) -> None:
    prepare("spark://head:7077")
    assert "SPARK_HOME" not in os.environ
    prepare("local[2]")
    assert os.environ["SPARK_HOME"] == str(made(tmp_path))
    os.environ["SPARK_HOME"] = "mine"
    prepare("local[2]")
    assert os.environ["SPARK_HOME"] == "mine"
