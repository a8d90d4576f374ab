"""Workers and their children are killed while they handle items: nothing is lost, nothing is pushed twice."""

from .items import run


def test_items_come_through_once_whoever_is_killed(dsn: str) -> None:
    kills = run(dsn, items=1500, kills=6, seed=7, say=lambda line: None)
    assert kills > 0
