"""The burst of the examples: a small window, a Valkey that is killed, and every message handled in order."""

import os
import subprocess
import sys
from pathlib import Path

from penstock import Client

DEMO = Path(__file__).parents[2] / "examples" / "burst" / "demo.py"


def test_a_burst_on_a_small_window_is_handled_in_order_although_valkey_is_killed(dsn: str) -> None:
    environment = {**os.environ, "PENSTOCK_URL": dsn}
    result = subprocess.run([sys.executable, str(DEMO)], env=environment, capture_output=True, text=True, timeout=150)
    assert result.returncode == 0, result.stderr
    said = result.stdout.splitlines()
    assert said[0].startswith("3000 messages: ")
    assert said[1].startswith("Valkey is killed after ")
    assert said[2] == "Valkey is back, the window is warm again, and nothing waits"
    assert said[3].startswith("all 3000 were handled, in the order of their partitions")
    with Client(dsn) as client:
        assert client.queues() == []
