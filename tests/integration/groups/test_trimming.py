"""The journal stays as short as the group has partitions, whatever happens in them and however often."""

from collections.abc import Callable

import pytest
from log.interleaving import push

from databases import Connection

from .steps import MODES, ack, create_group, must_pop, pass_time, pop, push_some, sweep, violations

ROWS = "SELECT count(*) FROM penstock.journal"


def work(sql: Connection) -> None:
    push(sql)
    ack(sql, must_pop(sql))


def work_beside_a_backlog(sql: Connection) -> None:
    push_some(sql, 100)
    ack(sql, must_pop(sql, most=1))


def work_that_counts_at_once(sql: Connection) -> None:
    push(sql)
    must_pop(sql, auto_ack=True)


def purge_before_the_pop(sql: Connection) -> None:
    push(sql)
    sql.execute("SELECT penstock.purge('q')")
    assert pop(sql) is None


def seek_there_and_back(sql: Connection) -> None:
    push(sql)
    for end in ("earliest", "latest", "earliest"):
        sql.execute("SELECT penstock.seek_partitions('q', 'g', to_end => %s)", (end,))


# Claims of an ordered group are history until their lease would have ended: there it is the sweep that trims.
UNSWEPT = [
    (work_that_counts_at_once, "ordered"),
    (purge_before_the_pop, "ordered"),
    (work, "shared"),
    (work_beside_a_backlog, "shared"),
    (work_that_counts_at_once, "shared"),
    (purge_before_the_pop, "shared"),
    (seek_there_and_back, "ordered"),
    (seek_there_and_back, "shared"),
]


def rows_after(sql: Connection, do: Callable[[Connection], None], mode: str, swept: bool) -> int:
    """Return how many rows the journal has after many rounds."""
    create_group(sql, mode=mode)
    for _ in range(60):
        do(sql)
        if swept:
            pass_time(sql)
            sweep(sql)
    ((rows,),) = sql.execute(ROWS).fetchall()
    assert violations(sql) == {}
    return int(rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "do", [work, work_beside_a_backlog, work_that_counts_at_once, purge_before_the_pop, seek_there_and_back]
)
def test_the_journal_does_not_grow_with_the_rounds_of(
    sql: Connection, do: Callable[[Connection], None], mode: str
) -> None:
    assert rows_after(sql, do, mode, swept=True) <= 12


@pytest.mark.parametrize(("do", "mode"), UNSWEPT)
def test_the_journal_does_not_grow_either_while_nobody_sweeps(
    sql: Connection, do: Callable[[Connection], None], mode: str
) -> None:
    assert rows_after(sql, do, mode, swept=False) <= 12
