"""The walk from a call to the SQL leads through files and functions that exist, in few steps."""

import ast
import re

import pytest

from .pages import ROOT

PAGE = (ROOT / "docs" / "design.md").read_text("utf-8")
MOST_HOPS = 5


def walk(call: str) -> list[tuple[str, str]]:
    """Return the file and the function of each step."""
    table = PAGE.partition(f"| {call} | file | function |\n")[2].partition("\n\n")[0]
    return re.findall(r"^\| [^|]+ \| `([^`]+)` \| `([^`]+)` \|$", table, re.MULTILINE)


def defined(path: str) -> set[str]:
    """Return the functions of a file, methods with their class."""
    text = (ROOT / path).read_text("utf-8")
    if path.endswith(".sql"):
        return set(re.findall(r"CREATE OR REPLACE FUNCTION penstock\.(\w+)\(", text))
    found = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, FUNCTIONS)}
        elif isinstance(node, FUNCTIONS):
            found.add(node.name)
    return found


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.parametrize("call", ["push", "pop", "ack"])
def test_a_call_reaches_the_sql_in_few_steps_that_exist(call: str) -> None:
    steps = walk(call)
    assert 2 <= len(steps) <= MOST_HOPS + 1
    assert [(path, name) for path, name in steps if name not in defined(path)] == []
    assert steps[-1][0].endswith(".sql")
