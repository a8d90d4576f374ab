"""Databases for tests: `penstock_dsn` of the plugin makes a new one each time, `dsn` empties one that all share.

A test that changes functions, tables or roles takes the first; all others take the second, which costs milliseconds.
Run by several processes, a file stays with one of them, and so do all tests of the shared Spark, which begin first.
"""

import faulthandler
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import hypothesis
import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

import java
from databases import Connection, Connections, empty
from penstock import Client, tracing
from penstock import sql as schema


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let what takes minutes more be run in full: `make conformance` and `make chaos-flows`."""
    parser.addoption("--every-way", action="store_true", help="run all of tests/conformance through every way in")
    parser.addoption("--kills", type=int, default=1, help="how often a flow is killed in the middle of its epochs")


# What a test may take beyond its time limit before its process is ended, with a traceback of every thread.
GRACE = 60
# The standard error of the process itself, which no test captures: known once pytest is configured.
stderr = 2


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End a process that hangs: the time limit raises in the main thread once, and what clears up may wait for ever."""
    marker = item.get_closest_marker("timeout")
    limit = marker.args[0] if marker is not None else float(item.config.getini("timeout"))
    faulthandler.dump_traceback_later(limit + GRACE, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_unconfigure() -> None:
    """Bound the end of a process, too."""
    faulthandler.dump_traceback_later(GRACE, exit=True, file=stderr)


# What has failed so far, a line each: seen also when a run ends before its summary.
FAILED = Path(__file__).parent.parent / ".pytest_cache" / "failed"


def pytest_configure(config: pytest.Config) -> None:
    """Let every Spark that a test starts, and those of the commands it runs, begin quickly; let no example be late."""
    global stderr
    capturing: Any = config.pluginmanager.getplugin("capturemanager")
    # Also while this file is imported the second descriptor is a file that goes away with the process.
    with capturing.global_and_fixture_disabled():
        stderr = os.dup(2)
    java.begin_quickly()
    # How long an example takes says how busy the machine is.
    hypothesis.settings.register_profile("penstock", deadline=None)
    hypothesis.settings.load_profile("penstock")
    # A shell that starts the tests in the background lets them ignore Ctrl-C, and so would all that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if _is_first_process():
        FAILED.parent.mkdir(exist_ok=True)
        FAILED.write_text("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Take note of each failure when it is known."""
    if report.failed and _is_first_process():
        crash = getattr(report.longrepr, "reprcrash", None)
        why = (report.longreprtext if crash is None else str(crash.message)).partition("\n")[0]
        with FAILED.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{report.nodeid} ({report.when}, {report.duration:.0f} s): {why[:100]}\n")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take note that a process of the tests died: the run ends then, and most tests may not have run."""
    if error is not None:
        _died.append(f"{node.gateway.id}: {error}")


_died: list[str] = []


def pytest_sessionfinish(exitstatus: int) -> None:
    """Take note that the run came to its end, and how."""
    if _is_first_process():
        with FAILED.open("a") as file:
            file.writelines(f"{each}\n" for each in _died)
            file.write("ended when a process died\n" if _died else f"ended with {int(exitstatus)}\n")


def _is_first_process() -> bool:
    return "PYTEST_XDIST_WORKER" not in os.environ


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that all processes end together: with Spark, and what starts its own."""
    for item in items:
        if item.nodeid.startswith(LONG):
            item.add_marker("long")
    items.sort(key=lambda item: (_rank(item.nodeid), item.nodeid.startswith(CHECKS_OTHERS)))


# What takes long, by itself or as a file: `make test-long` runs it, and `make test` does not.
FLOWS = "tests/spark/flows/test_flows.py::test_"
EXAMPLES = "tests/docs/test_examples.py::test_every_example_of_the_page_runs"
LONG = (
    "tests/acceptance/test_bench.py",
    "tests/acceptance/test_burst.py",
    "tests/acceptance/test_cli_services.py::test_the_demo_ends_with",
    "tests/acceptance/test_cli_up.py::test_up_takes_the_access_options",
    "tests/acceptance/test_demo.py::test_the_demo_shows",
    "tests/chaos/",
    "tests/conformance/test_repeated_pushes.py",
    "tests/docs/test_examples.py::test_every_other_file_of_examples_runs_by_itself[demo",
    "tests/docs/test_examples.py::test_every_other_file_of_examples_runs_by_itself[totals",
    f"{EXAMPLES}[docs/howto/archive-and-backfill",
    f"{EXAMPLES}[docs/howto/flows",
    f"{EXAMPLES}[docs/howto/from-kafka-spark",
    f"{EXAMPLES}[docs/howto/schedules",
    f"{EXAMPLES}[docs/howto/secure-the-gateway",
    f"{EXAMPLES}[docs/howto/spark",
    f"{EXAMPLES}[docs/howto/test-your-code",
    f"{EXAMPLES}[docs/operations/deployment",
    f"{EXAMPLES}[docs/reference/cli",
    f"{EXAMPLES}[docs/reference/spark",
    "tests/integration/embedded/test_crashes.py",
    "tests/integration/embedded/test_outages.py",
    "tests/integration/gateway/test_robustness.py::test_sigterm_under_load",
    "tests/integration/log/test_merging.py::test_a_backlog_becomes_several_segments",
    "tests/integration/warm/test_bursts.py::test_a_burst_goes_cold_once_and_drains_in_order[50000",
    "tests/integration/warm/test_faults.py",
    "tests/integration/workers/test_killing.py",
    "tests/page/test_window.py::test_a_gateway_that_hangs",
    "tests/page/test_window.py::test_an_open_page_costs",
    "tests/spark/flows/test_evil.py",
    "tests/spark/flows/test_kills.py",
    "tests/spark/flows/test_poison.py",
    f"{FLOWS}a_flow_is_tested_on_a_few_rows",
    f"{FLOWS}a_changed_flow",
    f"{FLOWS}a_flow_that_fails_restarts_alone",
    f"{FLOWS}a_flow_that_starts_with_the_latest",
    f"{FLOWS}a_flow_whose_messages_are_gone",
    f"{FLOWS}a_header_named_as_that_of_redriven_pairs",
    f"{FLOWS}a_message_at_which_a_step_fails",
    f"{FLOWS}a_pair_that_fails",
    f"{FLOWS}a_row_that_fails",
    f"{FLOWS}a_running_flow_pauses",
    f"{FLOWS}a_second_supervisor",
    f"{FLOWS}a_step_may_raise",
    f"{FLOWS}an_epoch_that_fails_at_any_step",
    f"{FLOWS}dead_letters_of_archived_messages",
    f"{FLOWS}files_come_in",
    f"{FLOWS}messages_that_kill_or_garble",
    f"{FLOWS}redriven_dead_letters",
    f"{FLOWS}two_sources_make_a_join",
    f"{FLOWS}windows_over",
    "tests/spark/test_archive.py",
    "tests/spark/test_bench.py",
    "tests/spark/test_edges.py",
    "tests/spark/test_evil.py",
    "tests/spark/test_kills.py",
    "tests/spark/test_recovery.py",
    "tests/spark/test_rollup.py",
    "tests/spark/test_streaming.py",
    "tests/spark/test_workers.py::test_items_are_handled_once",
    "tests/stateful/",
)
LONGEST = ("tests/acceptance/test_bench.py", "tests/docs/test_examples.py")
# After all others of its process.
CHECKS_OTHERS = "tests/conformance/test_recorded.py"


def _rank(nodeid: str) -> int:
    process = _process_of(nodeid)
    if process in ("flows", "spark"):
        return 0
    return (
        1 if process == "page" or process.startswith(("tests/spark/", *LONGEST)) else 2 if process == "recorded" else 3
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let one process tell another what tests said and why they failed: some of it is half a character."""
    report = yield
    report.sections = [(title, _writable(said)) for title, said in report.sections]
    if report.longrepr is not None and _writable(why := str(report.longrepr)) != why:
        report.longrepr = _writable(why)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests did not run for want of a browser, and how to get one."""
    needs = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and "needs Chromium" in report.longrepr[2]
    ]
    if needs:
        terminalreporter.write_sep(
            "!", f"{len(needs)} tests of the page did not run: there is no Chromium", yellow=True
        )
        terminalreporter.write_line("Install it with `apt-get install chromium`, or set PENSTOCK_CHROMIUM to its path.")


def _writable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal tests out to processes."""
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    # Tests that share what is slow to make stay together.
    scheduler._split_scope = _process_of
    return scheduler


def _process_of(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    if file.startswith("tests/spark/"):
        # Those that kill a Spark have one of their own. Long ones of flows share another: one would be busy longest.
        if file.endswith("kills.py"):
            return nodeid
        return "flows" if "/flows/" in file and nodeid.startswith(LONG) else "spark"
    if file.startswith("tests/page/"):
        return "page"
    # One test checks what all others sent through a recorder.
    return "recorded" if file.startswith("tests/conformance/") and "recorded" in nodeid else file


@contextmanager
def _database(kind: str, server: str, template: str) -> Iterator[str]:
    name = Identifier(f"penstock_{kind}_{uuid4().hex[:12]}")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {} TEMPLATE {}").format(name, Identifier(template)))
        connection.execute(SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
        # A user called penstock would make tables of its own in our schema.
        connection.execute(SQL("ALTER DATABASE {} SET search_path = public").format(name))
        yield make_conninfo(server, dbname=name.as_string().strip('"'))
        connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture(scope="session")
def shared_dsn(penstock_server: str, penstock_template: str) -> Iterator[str]:
    """A migrated database for the whole run."""
    with _database("shared", penstock_server, penstock_template) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def mutable_dsn(penstock_server: str, penstock_template: str) -> Iterator[str]:
    """Another one, in which functions are changed and nothing else is tested."""
    with _database("mutable", penstock_server, penstock_template) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def cleaner(shared_dsn: str) -> Iterator[Connection]:
    """Who empties the shared database."""
    with psycopg.connect(shared_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def untraced() -> Iterator[None]:
    """Tracing, which is of a whole process, ends with the test: others of the process would push its headers, too."""
    yield
    tracing._tracer = None
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is not None:
        # OpenTelemetry has no other way to set a provider a second time.
        trace._TRACER_PROVIDER = None
        trace._TRACER_PROVIDER_SET_ONCE._done = False


@pytest.fixture
def dsn(shared_dsn: str, cleaner: Connection) -> str:
    """The DSN of an empty penstock."""
    empty(cleaner)
    return shared_dsn


@pytest.fixture
def sql(dsn: str) -> Iterator[Connection]:
    """A connection of its own to the same database, which commits each statement."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def connections(dsn: str) -> Iterator[Connections]:
    """Opens as many connections to the same database as a test asks for."""
    with Connections(dsn) as opener:
        yield opener


@pytest.fixture
def fresh(mutable_dsn: str) -> Iterator[Connections]:
    """Connections to an empty penstock whose functions may be changed; it begins with all of them as they are."""
    with psycopg.connect(mutable_dsn) as connection:
        empty(connection)
        connection.execute(schema.repeatable().encode())
    with Connections(mutable_dsn) as opener:
        yield opener


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    """A client of an empty penstock."""
    with Client(dsn) as client:
        yield client
