"""A demo of the main features on generated data; every count is checked.

It uses its own queues and a table of its own and removes both, so it can run at any time.

To read further: `stage` is what all parts share, `log` the part without consumers, `groups` the part with consumers,
`processes` starts and stops them, `worker` is what one runs, and `spark` is a Spark job.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from uuid import uuid4

from penstock.client.client import Client
from penstock.postgres.address import redact


def run(client: Client, echo: Callable[[str], None], *, stay: bool, spark: bool = True) -> None:
    """Run the demo; with `stay`, leave its queues to look at until Ctrl-C; without `spark`, leave out that part."""
    # Not above: a consumer process passes through this file on its way to `worker`.
    from penstock.demo.groups import Groups
    from penstock.demo.log import Log
    from penstock.demo.processes import Processes
    from penstock.demo.spark import Spark
    from penstock.demo.stage import Stage

    stage = Stage(client, echo)
    begun = datetime.now(UTC)
    try:
        Log(stage).run()
        with Processes(client.dsn) as processes:
            Groups(stage, processes).run()
        if spark:
            Spark(stage).run()
        echo(f"All counts are correct; took {(datetime.now(UTC) - begun).total_seconds():.1f} s.")
        if stay:
            with suppress(KeyboardInterrupt):
                show(client, echo)
    finally:
        stage.clean_up()


def show(client: Client, echo: Callable[[str], None]) -> None:
    """Show a shop whose orders keep coming, on the page, until Ctrl-C."""
    try:
        from penstock.demo.live import Live
    except ModuleNotFoundError:
        # Without the extra there is no page.
        echo(f"serving at {redact(client.dsn)}; Ctrl-C to stop")
        while True:
            time.sleep(3600)
    live = Live(client, prefix=f"demo-{uuid4().hex[:8]}-")
    try:
        with live:
            echo(f"serving at {redact(client.dsn)}")
            echo(f"The page, with orders of a shop moving on it: {live.address}; Ctrl-C to stop")
            while True:
                time.sleep(3600)
    finally:
        live.clean_up()
