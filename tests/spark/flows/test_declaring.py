"""A flow is written down without Spark, and what is wrong with it is said with the line that says it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import InvalidInput
from penstock.pipeline import Flow, checking, checkpoints
from penstock.pipeline.actions import actions
from penstock.pipeline.flow import Step, derive_type
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
    same = Flow("same", source="s").expect("good", "true").to("t")
    same.steps.append(Step("good", lambda df: df, "here"))
    alone = [
        Flow("soon", source="a1", trigger="soon").to("b1"),
        Flow("none", source="a2", max_messages=0).to("b2"),
        Flow("much", source="a3", max_bytes="much").to("b3"),
        Flow("several", source="a4,a5").to("b4"),
        Flow("lane", source="a6").to("~b5"),
        Flow("unnamed", source="a7").expect(" ", "true").to("b6"),
        Flow("copied", source="a8").to("b7").to_parquet("/same"),
        Flow("copied.parquet", source="a9", checkpoint="/c").to("b8"),
        Flow("elsewhere", source="a10", checkpoint="/c").to("b9").to_parquet("/same"),
        same,
    ]
    with pytest.raises(InvalidInput) as refusal:
        checking.prepare([nowhere, itself, twice, one, other, Flow("twice", source="q").to("r"), *alone])
    said = str(refusal.value)
    for words in (
        "flow nowhere: it has no output",
        "flow itself: it writes to a, which it reads",
        "flow twice: rows go to b twice",
        "flow twice: another flow has this name",
        "the flows form a cycle: one → other → one",
        "flow soon: trigger is 'soon' but must be a time such as \"10 seconds\"",
        "flow none: max_messages or max_bytes: option maxOffsetsPerTrigger is '0'",
        "flow much: max_messages or max_bytes: option maxBytesPerTrigger is 'much'",
        "flow several: it cannot read 'a4,a5': the connector would take it for several queues",
        "flow lane: it cannot write to '~b5': a name does not begin with ~",
        "flow unnamed: an expectation needs a name",
        "flow copied: another flow has this name: copied.parquet",
        "flow copied: another flow has this folder or table: /same",
        "flow elsewhere: another flow has this checkpoint: /c",
        "flow same: two of its steps and expectations are called good",
    ):
        assert words in said
    assert all(line.startswith((f"{__file__}:", "the flows")) for line in said.splitlines())


def test_levels_and_circles_of_many_flows_are_found_quickly() -> None:
    # Two flows a level that both read both of the level before: a million ways through, which nobody may walk.
    layers = [
        [
            Flow(f"{level}{side}", sources={"a": f"q{level}a", "b": f"q{level}b"}).to(f"q{level + 1}{side}")
            for side in "ab"
        ]
        for level in range(20)
    ]
    flows = [flow for layer in layers for flow in layer]
    checking.prepare(flows)
    assert checking.levels(flows) == {flow.name: level + 1 for level, layer in enumerate(layers) for flow in layer}


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


def test_a_file_that_has_the_name_of_a_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("")
    with pytest.raises(InvalidInput, match="rename the file"):
        load(tmp_path / "queue.py")


def test_a_place_on_this_machine_is_the_same_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given, found in (
        ("here", str(tmp_path / "here")),
        ("/there", "/there"),
        ("file:/there", "file:/there"),
        ("s3a://bucket/there", "s3a://bucket/there"),
    ):
        assert checkpoints.absolute(given) == found
    assert checkpoints.is_missing(str(tmp_path / "here"))
    assert not checkpoints.is_missing("s3a://bucket/there")


def test_of_a_long_error_the_cause_is_told() -> None:
    story = (
        "[STREAM_FAILED] Query [id = x] terminated\n  File 'x', line 1\nValueError: no such colour\n\tat org.apache…"
    )
    assert explain(RuntimeError(story)) == "ValueError: no such colour"
    lost = (
        "Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: Lost task 0.0 in "
        "stage 0.0 (TID 0) (host executor driver): org.apache.spark.SparkException: Python worker exited unexpectedly "
        "(crashed). Consider setting …\n\tat org.apache…"
    )
    assert explain(RuntimeError(lost)) == "SparkException: Python worker exited unexpectedly (crashed)"
    # Whatever a step says can be stored.
    assert explain(RuntimeError("ValueError: \0 and \ud800")) == "ValueError: \\x00 and \\ud800"
