"""A flow is written down without Spark, and what is wrong with it is said with the line that says it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import InvalidInput
from penstock.pipeline import Flow, checking
from penstock.pipeline.actions import actions
from penstock.pipeline.flow import derive_type
from penstock.pipeline.loading import load
from penstock.pipeline.running import explain


def test_importing_flows_imports_no_spark() -> None:
    script = "import sys, penstock.pipeline; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Flow("f"), "give one of source, sources, files and table"),
        (lambda: Flow("f", source="a", files="b"), "give one of source, sources, files and table"),
        (lambda: Flow("f", source="a", type="SINK"), "must be one of DATA_SOURCE, TRANSFORM, DATA_SINK"),
        (lambda: Flow("f", source="a", starting="now"), "must be earliest or latest"),
        (lambda: Flow("f", sources={"o": "a", "p": "b"}, schema="id long"), "schema is a mapping by alias"),
        (lambda: Flow("f", sources={"o": "a"}, schema={"x": "id long"}), "is no alias of its sources"),
    ],
)
def test_a_flow_that_contradicts_itself_is_refused_where_it_is_made(make: Callable[[], Flow], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        make()


def test_all_problems_of_a_file_are_told_at_once_and_where() -> None:
    nowhere = Flow("nowhere", source="a")
    itself = Flow("itself", source="a").to("a")
    twice = Flow("twice", source="a").to("b").to("b")
    one, other = Flow("one", source="x").to("y"), Flow("other", source="y").to("x")
    with pytest.raises(InvalidInput) as refusal:
        checking.prepare([nowhere, itself, twice, one, other, Flow("twice", source="q").to("r")])
    said = str(refusal.value)
    for words in (
        "flow nowhere: it goes nowhere",
        "flow itself: it writes to a, which it reads",
        "flow twice: rows go to b twice",
        "flow twice: another flow has this name",
        "the flows go in a circle, and would never end: one → other → one",
    ):
        assert words in said
    assert all(line.startswith((f"{__file__}:", "the flows")) for line in said.splitlines())


def test_the_type_comes_from_the_ends_unless_it_is_given() -> None:
    flow = Flow("f", source="a").to("b")
    assert derive_type(flow, {"b"}) == "TRANSFORM"
    assert derive_type(flow, set()) == "DATA_SINK"
    assert derive_type(Flow("f", files="/x").to("b"), {"b"}) == "DATA_SOURCE"
    assert derive_type(Flow("f", source="a", type="TRANSFORM").to("b"), set()) == "TRANSFORM"


def test_the_registry_names_class_and_plugin_of_every_action(tmp_path: Path) -> None:
    (tmp_path / "some_flows.py").write_text(
        "from penstock.pipeline import Flow\n"
        "flow = Flow('f', source='a')\n"
        "@flow.step\n"
        "def same(df):\n"
        "    return df\n"
        "flow.expect('is there', 'true').to('b')\n"
    )
    (flow,) = load(tmp_path / "some_flows.py")
    found = [(action.name, action.action_class, action.plugin.partition(":")[0]) for action in actions(flow)]
    assert found == [
        ("same", "some_flows.same", "some_flows.py"),
        ("is there", "penstock.pipeline.flow.Expectation", "penstock"),
        ("to b", "penstock.pipeline.flow.Route", "penstock"),
    ]


def test_a_file_that_fails_says_in_which_line(tmp_path: Path) -> None:
    (tmp_path / "broken_flows.py").write_text("import math\n\nmath.sqrt('a')\n")
    with pytest.raises(InvalidInput, match=r"broken_flows.py:3: TypeError"):
        load(tmp_path / "broken_flows.py")


def test_a_file_without_flows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty_flows.py").write_text("")
    with pytest.raises(InvalidInput, match="has no flow"):
        load(tmp_path / "empty_flows.py")


def test_of_a_long_error_the_cause_is_told() -> None:
    story = (
        "[STREAM_FAILED] Query [id = x] terminated\n  File 'x', line 1\nValueError: no such colour\n\tat org.apache…"
    )
    assert explain(RuntimeError(story)) == "ValueError: no such colour"
