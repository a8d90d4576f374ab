"""The main job end to end, on real data that is made here: every count is checked against what was made.

It works on queues and a table of its own, which it removes, so it can run at any time and as often as you like.

To read further: `stage` is what all of it shares, `log` the part without consumers, `groups` the part with them, `crew`
their processes as seen from here, `worker` one of them from the inside, and `spark` a job of Spark.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from penstock.client.client import Client
from penstock.postgres.address import redact


def run(client: Client, echo: Callable[[str], None], *, stay: bool, spark: bool = True) -> None:
    """Run the demo; with `stay`, leave its queues to look at until Ctrl-C; without `spark`, leave out that part."""
    # Not above: a consumer process passes through this file on its way to `worker`.
    from penstock.demo.crew import Crew
    from penstock.demo.groups import Groups
    from penstock.demo.log import Log
    from penstock.demo.spark import Spark
    from penstock.demo.stage import Stage

    stage = Stage(client, echo)
    begun = datetime.now(UTC)
    try:
        Log(stage).run()
        with Crew(client.dsn) as crew:
            Groups(stage, crew).run()
        if spark:
            Spark(stage).run()
        echo(f"Everything was as it must be, in {(datetime.now(UTC) - begun).total_seconds():.1f} s.")
        if stay:
            with suppress(KeyboardInterrupt):
                echo(f"serving at {redact(client.dsn)}; Ctrl-C to stop")
                while True:
                    time.sleep(3600)
    finally:
        stage.clean_up()
