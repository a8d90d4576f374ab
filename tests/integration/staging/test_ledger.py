"""The ledger of published epochs knows where each went and what it read: a repetition that differs is refused."""

import pytest

from databases import Connection
from penstock import Client

from .steps import CheckpointRefused as Refused
from .steps import read, stage, value


def publish(
    sql: Connection,
    values: list[str],
    *,
    epoch: int = 0,
    run: str = "run-1",
    target: str | None = None,
    reading: str | None = None,
    queue: str = "q",
) -> str:
    """Stage messages and publish them with what the sink knows."""
    number = stage(sql, {"p": values} if values else {}, epoch=epoch, run=run, queue=queue)
    outcome = value(
        sql,
        "SELECT outcome FROM penstock.publish_stages('query', %s, %s, %s, %s, %s, %s)",
        run,
        epoch,
        [number],
        [len(values)],
        target,
        reading,
    )
    return str(outcome)


def test_an_epoch_that_is_run_again_for_another_queue_is_refused(sql: Connection) -> None:
    publish(sql, ["a"], target="q")
    with pytest.raises(
        Refused, match="epoch 0 of query query was published to q, and this run would write it to r"
    ) as refused:
        publish(sql, ["a"], run="run-2", target="r", queue="r")
    assert refused.value.sqlstate == "55PS1"
    assert publish(sql, ["a"], run="run-3", target="q") == "skipped"


def test_rows_that_name_their_queues_are_another_target_than_one_queue(sql: Connection) -> None:
    publish(sql, ["a"], target="")
    with pytest.raises(Refused, match="to the queues that its rows name, and this run would write it to r"):
        publish(sql, ["a"], run="run-2", target="r", queue="r")


def test_a_query_may_write_its_next_epoch_to_another_queue(sql: Connection) -> None:
    publish(sql, ["a"], target="q")
    assert publish(sql, ["b"], epoch=1, run="run-2", target="r", queue="r") == "published"
    assert read(sql, queue="r") == ["b"]


def test_a_copy_of_a_checkpoint_that_writes_elsewhere_is_refused_and_so_is_the_original_then(sql: Connection) -> None:
    publish(sql, ["a"], target="q")
    publish(sql, ["b"], epoch=1, target="q")
    with pytest.raises(Refused, match="published to q"):
        publish(sql, ["b"], epoch=1, run="copy", target="r", queue="r")
    publish(sql, ["c"], epoch=2, run="copy", target="r", queue="r")
    with pytest.raises(Refused, match="published to r"):
        publish(sql, ["c"], epoch=2, run="run-2", target="q")


def test_an_epoch_with_as_many_messages_of_another_reading_is_refused(sql: Connection) -> None:
    publish(sql, ["a"], reading='{"snapshot": 1}')
    with pytest.raises(Refused, match="published already, and with other content"):
        publish(sql, ["b"], run="run-2", reading='{"snapshot": 2}')
    assert publish(sql, ["a"], run="run-3", reading='{"snapshot": 1}') == "skipped"
    assert publish(sql, ["a"], run="run-4") == "skipped"


def test_a_queue_that_was_deleted_does_not_come_back_without_its_settings(sql: Connection, client: Client) -> None:
    client.create("q", max_message_bytes=100)
    publish(sql, ["a"])
    publish(sql, [], epoch=1)
    client.delete("q")
    with pytest.raises(Refused, match='queue "q", which query query writes to, was deleted; nothing was published'):
        publish(sql, ["b"], epoch=2)
    assert client.queues() == []
    client.create("q", max_message_bytes=100)
    assert publish(sql, ["b"], epoch=2) == "published"
    assert read(sql) == ["b"]


def test_what_is_staged_leaves_the_callers_commits_as_durable_as_they_were(sql: Connection) -> None:
    with sql.transaction():
        sql.execute("SET LOCAL synchronous_commit = on")
        number = stage(sql, {"p": ["a"]})
        sql.execute("SELECT penstock.note_epoch('query', 'run-1', 0, %s)", (number,))
        assert value(sql, "SHOW synchronous_commit") == "on"
