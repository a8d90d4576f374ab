"""The example with which everybody begins: what it makes of its orders is what its own truth says."""

import importlib.util
from pathlib import Path
from types import ModuleType

from penstock.pipeline.loading import load

from .conftest import Plant

ORDERS = Path(__file__).parents[3] / "examples" / "orders"


def demo() -> ModuleType:
    specification = importlib.util.spec_from_file_location("orders_demo", ORDERS / "demo.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_orders_of_the_example_come_out_as_the_truth_says(plant: Plant) -> None:
    example = demo()
    orders, malformed = example.make_orders()
    example.push(plant.client, orders, malformed)
    assert plant.drain(*load(ORDERS / "flows.py")), plant.said
    truth = example.truth(orders, malformed)
    assert truth["complete minutes"] > 20
    assert truth["dead: malformed"] > 0
    assert example.found(plant.client) == truth
