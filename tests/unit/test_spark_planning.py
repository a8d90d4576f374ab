"""As many tasks as were asked for, where there are as many messages, and in the order of the log."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.archives import Archived
from penstock.broker.ranges import PlannedPage
from penstock.spark.archives import ArchivedPage
from penstock.spark.planning import Page, Task, deal, split


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 10**8)), min_size=1, max_size=20), st.integers(1, 60))
def test_there_are_at_least_as_many_tasks_as_asked_for_whatever_the_messages_weigh(
    sizes: list[tuple[int, int]], wanted: int
) -> None:
    pages = [PlannedPage(number, 3, 3 + count, size) for number, (count, size) in enumerate(sizes)]
    dealt = deal(pages, wanted, 6)
    tasks = split(
        [Task([Page(one.partition_id, "q", "p", one.start, one.stop, one.bytes) for one in task]) for task in dealt],
        wanted,
    )
    assert len(tasks) >= min(wanted, sum(count for count, _ in sizes))
    read = [(page.partition_id, offset) for task in tasks for page in task.pages for offset in range(*page[3:5])]
    assert read == [(page.partition_id, offset) for page in pages for offset in range(page.start, page.stop)]
    assert all(task.messages for task in tasks)


def test_what_is_archived_is_split_too() -> None:
    lies = Archived(1, 10, 17, 700, "/archive", "file", 1, 0, 100)
    tasks = split([Task([], archived=[ArchivedPage("q", "p", lies)]), Task([Page(1, "q", "p", 17, 18, 1)])], 5)
    assert [page.lies[1:3] + page.lies[8:] for task in tasks for page in task.archived] == [
        (10, 11, 100),
        (11, 13, 101),
        (13, 15, 103),
        (15, 17, 105),
    ]
    assert tasks[-1].pages == [Page(1, "q", "p", 17, 18, 1)]
