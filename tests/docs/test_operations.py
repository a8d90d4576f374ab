"""What the pages for operators tell them to run or to copy works: it is tried on a server, or by who will read it."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock import Client, embedded
from penstock.postgres.migrate import grant

from .pages import ROOT, read

HOWTO = ROOT / "docs" / "howto"


@pytest.fixture
def server() -> Iterator[str]:
    """A server of the test's own: roles belong to the whole of it."""
    home = Path(tempfile.mkdtemp(prefix="penstock-uninstall-"))
    # Run as root, the server is another user, who must be able to get here.
    home.chmod(0o755)
    with Client(home=str(home)) as client:
        yield client.dsn
    embedded.stop(home)
    shutil.rmtree(home, ignore_errors=True)


def test_the_statements_of_uninstall_leave_nothing_of_penstock_and_all_of_yours(server: str) -> None:
    statements = [block.text for block in read(HOWTO / "uninstall.md").blocks if block.language == "sql"]
    assert len(statements) == 3
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("CREATE TABLE yours AS SELECT 1 AS id")
        connection.execute("CREATE ROLE shop")
        for role in ("producer", "consumer", "admin"):
            grant(connection, role, "shop")
        for statement in statements:
            connection.execute(statement.encode())
        left = connection.execute(
            "SELECT nspname::text FROM pg_namespace WHERE nspname ~ 'penstock'"
            " UNION ALL SELECT rolname FROM pg_roles WHERE rolname ~ 'penstock'"
        ).fetchall()
        assert left == []
        assert connection.execute("SELECT id FROM yours").fetchall() == [(1,)]


def units() -> list[tuple[str, str]]:
    texts = [block.text for block in read(HOWTO / "deploy.md").blocks if block.language == "ini"]
    found = [(re.match(r"# /etc/systemd/system/(\S+)\n", text), text) for text in texts]
    return [(name[1], text) for name, text in found if name]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    assert [name for name, _ in units()] == ["orders-worker@.service", "penstock-maintain.service"]
    for name, text in units():
        # The program and the user are the reader's.
        ours = text.replace("/opt/shop/venv/bin/penstock", "/bin/true").replace("User=shop", "User=root")
        path = tmp_path / name.replace("@", "@1")
        path.write_text(ours)
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, timeout=60
        )
        said = [line for line in done.stderr.splitlines() if str(tmp_path) in line or path.name in line]
        assert said == []


def test_the_deployment_of_kubernetes_selects_its_own_pods() -> None:
    texts = [block.text for block in read(HOWTO / "deploy.md").blocks if block.text.startswith("apiVersion:")]
    # No parser of YAML is among the dependencies; the labels are what a Deployment is refused without.
    [deployment] = texts
    [selected] = re.findall(r"^  selector:\n    matchLabels: (\{.+\})$", deployment, re.MULTILINE)
    [labelled] = re.findall(r"^    metadata:\n      labels: (\{.+\})$", deployment, re.MULTILINE)
    assert selected == labelled
