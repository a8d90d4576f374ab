"""The web shop of the examples: it sells, survives a closed bank and a killed worker, checks itself and cleans up."""

import os
import subprocess
import sys
from pathlib import Path

from penstock import Client

DEMO = Path(__file__).parents[2] / "examples" / "shop" / "demo.py"


def test_the_shop_pays_ships_and_confirms_every_order_once(dsn: str) -> None:
    environment = {**os.environ, "PENSTOCK_URL": dsn}
    result = subprocess.run([sys.executable, str(DEMO)], env=environment, capture_output=True, text=True, timeout=150)
    assert result.returncode == 0, result.stderr
    said = result.stdout.splitlines()
    assert said[0] == "the bank is closed: the breaker is open, and nobody is sent there"
    assert said[1] == "the bank is open; a worker is killed"
    assert said[-1].startswith("every order was paid, shipped and confirmed once")
    with Client(dsn) as client:
        assert (client.queues(), client.schedules(), client.flows()) == ([], [], [])
