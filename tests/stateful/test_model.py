"""Anything that clients may do, in any order, compared after each step with a model of what penstock promises.

PENSTOCK_MODEL_EXAMPLES asks for more examples than the few that each run of the tests has, and for fresh ones.
"""

import os
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock import Client

from .agreeing import Agreeing
from .items import ItemSettling
from .operating import Operating
from .pushing import Pushing
from .settling import Settling
from .transacting import Transacting

EXAMPLES = int(os.environ.get("PENSTOCK_MODEL_EXAMPLES", "0"))


class Consuming(Pushing, Settling, Agreeing):
    """Producers and consumers alone: long lives of few kinds of steps."""


class Together(Pushing, Transacting, Agreeing):
    """Producers and consumers in transactions with savepoints."""


class Working(Pushing, ItemSettling, Agreeing):
    """Producers and workers, whose items push, too."""


class Everything(Pushing, Settling, ItemSettling, Transacting, Operating, Agreeing):
    """All there is."""


@pytest.mark.parametrize("machine", [Consuming, Working, Together, Everything])
def test_whatever_clients_do_the_promises_hold(dsn: str, sql: psycopg.Connection[Any], machine: Any) -> None:
    with Client(dsn) as client:
        machine.client, machine.sql = client, sql
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=EXAMPLES or 20,
                stateful_step_count=40,
                deadline=None,
                derandomize=not EXAMPLES,
                database=None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate, Phase.shrink] if EXAMPLES else [Phase.generate],
            ),
        )
