"""No decision reads what an exception says: rewording an error changes nothing but the words."""

import ast
from collections.abc import Iterator
from pathlib import Path

import penstock

SOURCE = Path(penstock.__file__).parent
# Where a text is looked into, and why nothing else will do.
ALLOWED = {
    ("postgres/address.py", "connect"): "not what it says, but whether a secret was taken out of it",
    ("postgres/address.py", "unreachable"): "libpq has no SQLSTATE for a connection that was refused",
    ("pipeline/running.py", "explain"): "chooses the line to show; no decision depends on it",
    ("spark_workers/running.py", "_reason"): "chooses the line to show, too",
    (
        "warm/links.py",
        "refusal",
    ): "the first word of an error of Valkey is its code, and valkey-py has it in the text only",
}
# Functions of penstock that return the text of an exception.
TEXT_FUNCTIONS = {"explain", "first_line", "str", "repr", "format_exception", "format_exception_only"}
TEXT_ATTRIBUTES = {"args", "message_primary", "getMessage", "getMessageTemplate", "desc"}
LOOKS = {"startswith", "endswith", "partition", "rpartition", "find", "index", "count", "split"}
MATCHES = {"search", "match", "fullmatch", "findall", "finditer"}


class Function(ast.NodeVisitor):
    """Finds where a function looks into the text of an exception that it caught or was given."""

    def __init__(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        self.exceptions = {each.arg for each in arguments if _is_exception(each.annotation)}
        self.exceptions |= {each.name for each in ast.walk(node) if isinstance(each, ast.ExceptHandler) and each.name}
        self.texts: set[str] = set()
        self.lines: list[int] = []
        for statement in node.body:
            self.visit(statement)

    def visit_Assign(self, node: ast.Assign) -> None:
        if self.has_text(node.value):
            for target in node.targets:
                self.texts |= {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        compared = (node.left, *node.comparators)
        words = any(isinstance(each, ast.In | ast.NotIn | ast.Eq | ast.NotEq) for each in node.ops)
        if words and any(map(self.has_text, compared)):
            self.lines.append(node.lineno)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute):
            looks = node.func.attr in LOOKS and self.has_text(node.func.value)
            if looks or (node.func.attr in MATCHES and any(map(self.has_text, node.args))):
                self.lines.append(node.lineno)
        self.generic_visit(node)

    def has_text(self, node: ast.expr) -> bool:
        """Say whether an expression has the text of an exception in it."""
        return any(self._is_text(each) for each in ast.walk(node))

    def _is_text(self, node: ast.AST) -> bool:
        match node:
            case ast.Name(id=name):
                return name in self.texts
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=arguments):
                return name in TEXT_FUNCTIONS and any(map(self._has_exception, arguments))
            case ast.Attribute(value=value, attr=name):
                return name in TEXT_ATTRIBUTES and self._has_exception(value)
            case ast.FormattedValue(value=value):
                return isinstance(value, ast.Name) and value.id in self.exceptions
        return False

    def _has_exception(self, node: ast.expr) -> bool:
        return any(isinstance(each, ast.Name) and each.id in self.exceptions for each in ast.walk(node))


def _is_exception(annotation: ast.expr | None) -> bool:
    text = "" if annotation is None else ast.unparse(annotation)
    return any(word in text for word in ("Error", "Exception")) and "type[" not in text


def decisions(code: str) -> Iterator[tuple[str, int]]:
    """Return the functions, and their lines, that look into the text of an exception."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ((node.name, line) for line in Function(node).lines)


def test_no_decision_reads_the_message_of_an_exception() -> None:
    found = {
        (str(path.relative_to(SOURCE)), name, line)
        for path in SOURCE.rglob("*.py")
        for name, line in decisions(path.read_text())
    }
    assert sorted(one for one in found if one[:2] not in ALLOWED) == []
    assert {one[:2] for one in found} == ALLOWED.keys(), "an exception to the rule is not needed any more"


def test_a_decision_by_message_is_found_however_it_is_written() -> None:
    ways = (
        '"gone" in str(error)',
        'str(error).startswith("gone")',
        'error.args[0] == "gone"',
        're.search("gone", str(error))',
        '_GONE.match(f"{error}")',
        'explain(error).partition(": ")[0] in KINDS',
        '"gone" in error.diag.message_primary',
    )
    for way in ways:
        caught = f"def f():\n    try:\n        g()\n    except ValueError as error:\n        return {way}\n"
        given = f"def f(error: Exception):\n    return {way}\n"
        assert list(decisions(caught)), way
        assert list(decisions(given)), way
    named = "def f(error: Exception):\n    text = str(error).lower()\n    return 'gone' in text\n"
    assert list(decisions(named)) == [("f", 3)]
    fine = "def f(error: Exception):\n    return isinstance(error, KeyError) or error.sqlstate in CODES\n"
    assert list(decisions(fine)) == []
