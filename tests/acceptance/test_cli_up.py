"""`penstock up` with a gateway: who may call it, ports that are taken, a second one, and how it ends."""

import contextlib
import json
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

from acceptance.commandline import CommandLine, Running
from penstock import embedded


def address(running: Running, name: str = "gateway") -> str:
    """Wait for the line that says where something is."""
    return running.remark(f"{name}: ")


def status(url: str, key: str | None = None, body: bytes | None = None) -> int:
    """Ask for something, and return the status of the answer."""
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_up_takes_the_access_options_of_serve_and_runs_once(embedded_penstock: CommandLine, home: Path) -> None:
    with embedded_penstock.running("up", "--port", "0", "--keys", "--read-only") as running:
        running.line()
        url = address(running)
        assert "penstock keys create" in running.said
        made = json.loads(embedded_penstock("keys", "create", "me", "--scope", "admin", "--json").text)
        key = made["key"]
        assert status(f"{url}/api/v2/queues") == 401
        assert status(f"{url}/api/v2/queues", key) == 200
        assert status(f"{url}/api/v2/queues/q/messages", key, b'{"messages": [{"value": 1}]}') == 503

        second = embedded_penstock("up", "--port", "0", code=5)
        assert f"process {running.process.pid}, gateway {url}" in second.stderr
        assert "penstock down" in second.stderr

        port, other = url.rpartition(":")[2], embedded_penstock.folder / "other"
        taken = embedded_penstock("up", "--port", port, "--home", str(other), code=5)
        assert f"cannot listen at 127.0.0.1:{port}: Address already in use; use another --port" in taken.stderr
        assert not other.exists(), "nothing was started for a port that is taken"

        result = running.end(signal.SIGINT)
    assert (result.code, "Traceback" in result.stderr) == (0, False)
    assert embedded.status(home).keeper is None
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(port))) != 0, "the gateway still listens"


def test_up_refuses_to_be_open_to_the_world_before_it_starts_anything(
    embedded_penstock: CommandLine, home: Path
) -> None:
    assert "would serve anybody" in embedded_penstock("up", "--host", "0.0.0.0", code=5).stderr
    assert "in the clear" in embedded_penstock("up", "--host", "0.0.0.0", "--keys", code=5).stderr
    assert embedded.status(home).keeper is None


def test_up_takes_another_port_where_the_usual_one_is_taken(embedded_penstock: CommandLine) -> None:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # If somebody else has it, that will do.
        with contextlib.suppress(OSError):
            holder.bind(("127.0.0.1", 8080))
            holder.listen()
        with embedded_penstock.running("up") as running:
            running.line()
            url = address(running)
            assert "port 8080 is taken" in running.said
            assert not url.endswith(":8080")
            assert running.end(signal.SIGTERM).code == 0
