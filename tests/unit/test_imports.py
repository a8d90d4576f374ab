"""`import penstock` costs next to nothing: what is not needed is not loaded."""

import subprocess
import sys

import pytest

import penstock

HEAVY = (
    "psycopg",
    "psycopg_pool",
    "click",
    "rich",
    "pyarrow",
    "pyspark",
    "numpy",
    "msgspec",
    "asyncpg",
    "sqlalchemy",
    "django",
    "asyncio",
)


def modules_after(statement: str) -> set[str]:
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(run.stdout.split())


def test_importing_penstock_loads_no_other_package() -> None:
    assert modules_after("import penstock").isdisjoint(HEAVY)


def test_errors_can_be_caught_without_loading_a_driver() -> None:
    assert modules_after("from penstock import PenstockError, Retryable").isdisjoint(HEAVY)


def test_the_client_needs_neither_arrow_nor_the_command_line() -> None:
    loaded = modules_after("from penstock import Client, AsyncClient, Message")
    assert "psycopg" in loaded
    assert loaded.isdisjoint({"pyarrow", "pyspark", "numpy", "click", "rich", "asyncpg", "sqlalchemy", "django"})


@pytest.mark.parametrize("name", penstock.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(penstock, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Clinet'"):
        _ = penstock.Clinet
