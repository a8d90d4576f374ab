"""Spark gets a Java: the machine's own if it is new enough, else the one in the wheel."""

import os
import subprocess
from pathlib import Path

import pytest

from penstock.embedded.java import MINIMUM, java_home, machine_java, version


def fake_java(folder: Path, said: str) -> Path:
    """Make a home whose Java says that it is of some version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    program.chmod(0o755)
    return folder


def test_the_java_of_the_wheel_runs_with_what_spark_asks_for(tmp_path: Path) -> None:
    home = java_home(tmp_path, machine=False)
    assert home == tmp_path / "java"
    assert version(home) >= MINIMUM
    asked = [str(home / "bin" / "java"), "-Dx=a b", "--add-modules=jdk.incubator.vector", "-XshowSettings:properties"]
    done = subprocess.run([*asked, "-version"], capture_output=True, text=True, check=True)
    assert "x = a b" in done.stderr


def test_the_home_is_made_once(tmp_path: Path) -> None:
    program = java_home(tmp_path, machine=False) / "bin" / "java"
    before = program.stat()
    java_home(tmp_path, machine=False)
    assert program.stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    ("said", "number"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_392"', 8), ("no Java here", 0)],
)
def test_versions_are_told_apart(tmp_path: Path, said: str, number: int) -> None:
    assert version(fake_java(tmp_path / "home", said)) == number


def test_an_old_java_of_the_machine_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_java(tmp_path / "old", 'openjdk version "11.0.2"')
    new = fake_java(tmp_path / "new", 'openjdk version "21.0.1"')
    monkeypatch.setenv("PATH", f"{new}/bin{os.pathsep}/bin")
    monkeypatch.setenv("JAVA_HOME", str(old))
    assert machine_java() == new
    monkeypatch.setenv("PATH", f"{old}/bin{os.pathsep}/bin")
    assert machine_java() is None


def test_without_any_java_the_machine_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert machine_java() is None
