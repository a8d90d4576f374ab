"""An action whose child processes are killed while they start, as often as a file has lines left."""

import os
import signal
import sys
from pathlib import Path

from penstock import Item, action

_left = Path(os.environ["PENSTOCK_TEST_DEATHS"])
if "child" in sys.argv[0] and (lines := _left.read_text().splitlines()):
    _left.write_text("\n".join(lines[1:]))
    os.kill(os.getpid(), signal.SIGKILL)


@action(queue="start", to="started", flow="starting", run_in="process", concurrency=1)
def start(item: Item) -> object:
    if item.json() == "die" and item.attempt == 1:
        # Its place is taken by one that is killed, too.
        _left.write_text("once\nonce more\nand again\nand again")
        os.kill(os.getpid(), signal.SIGKILL)
    return item.json()
