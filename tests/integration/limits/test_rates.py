"""Rates by key: never more than allowed, in order, nothing lost, and a key at its limit holds up no other one."""

import pytest
from groups.steps import (
    MODES,
    ack,
    ack_of,
    create_group,
    must_pop,
    nack,
    newest,
    offsets,
    pass_time,
    pop,
    pop_call,
    push_some,
    push_to_many,
    run,
    sweep,
    violations,
)

from databases import Connection, Connections
from penstock.broker.claims import Claim

from .steps import Clock, configure, group_id, is_pending, one, push_keys, writing_nothing


def take(connection: Connection, **options: object) -> list[tuple[str, int]]:
    """Consume what there is now, after a sweep; return what came."""
    sweep(connection)
    came: list[tuple[str, int]] = []
    while claims := run(connection, pop_call(**options)):  # type: ignore[arg-type]
        came += [(message.partition, message.offset) for claim in claims for message in claim.messages]
        run(connection, ack_of(claims))
    return came


def keys_of(claim: Claim | None) -> list[str | None]:
    return [] if claim is None else [message.key for message in claim.messages]


@pytest.mark.parametrize("mode", MODES)
def test_a_partition_gets_a_burst_and_then_its_rate(sql: Connection, clock: Clock, mode: str) -> None:
    create_group(sql, mode=mode, rate_limit=2, rate_period=10, rate_burst=3)
    push_some(sql, 10)
    push_some(sql, 1, "other")
    came = take(sql)
    assert (sorted(offsets(came)), offsets(came, "other")) == ([0, 1, 2], [0])
    clock.set(4.9)
    assert take(sql) == []
    clock.set(5)
    assert take(sql) == [("p", 3)]
    clock.set(20)
    assert sorted(offsets(take(sql))) == [4, 5, 6]
    clock.set(100)
    assert sorted(offsets(take(sql))) == [7, 8, 9]
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_a_clock_that_goes_back_allows_no_more_and_stops_nobody(sql: Connection, clock: Clock, mode: str) -> None:
    create_group(sql, mode=mode, rate_limit=1, rate_period=10, rate_burst=2)
    push_some(sql, 6)
    clock.set(100_000)
    assert len(take(sql)) == 2
    clock.set(0)
    assert take(sql) == []
    clock.set(9.9)
    assert take(sql) == []
    clock.set(10)
    assert len(take(sql)) == 1
    clock.set(20)
    assert len(take(sql)) == 1
    clock.set(5)
    assert take(sql) == []
    clock.set(15)
    assert len(take(sql)) == 1


def test_a_look_that_was_put_off_before_the_clock_of_the_server_went_back_is_made(
    sql: Connection, clock: Clock
) -> None:
    create_group(sql, rate_limit=1, rate_period=10)
    push_some(sql, 2)
    assert len(take(sql)) == 1
    sql.execute("UPDATE public.test_clock SET seconds = 10")
    sql.execute(
        "UPDATE penstock.limited_keys"
        " SET look_at = look_at + interval '1 day', looked_at = looked_at + interval '1 day' WHERE look_at IS NOT NULL"
    )
    assert take(sql) == [("p", 1)]


@pytest.mark.parametrize("mode", MODES)
def test_a_group_as_a_whole_has_a_rate(sql: Connection, clock: Clock, mode: str) -> None:
    create_group(sql, mode=mode, rate_limit=3, rate_period=3, rate_by="group")
    push_to_many(sql, 10)
    assert len(take(sql)) == 3
    assert not is_pending(sql)
    with writing_nothing(sql):
        assert pop(sql) is None
        assert run(sql, pop_call(partitions=10)) == []
    clock.set(1)
    assert is_pending(sql)
    assert len(take(sql, partitions=10)) == 1
    clock.set(1000)
    assert len(take(sql, partitions=10)) == 3
    clock.set(1002)
    assert len(take(sql)) == 2
    clock.set(2000)
    assert len(take(sql)) == 1
    assert violations(sql) == {}


def test_several_partitions_share_what_the_rate_of_the_group_allows(sql: Connection, clock: Clock) -> None:
    create_group(sql, rate_limit=8, rate_period=8, rate_by="group")
    for partition in "pqrs":
        push_some(sql, 10, partition)
    claims = run(sql, pop_call(partitions=4))
    assert [len(claim.messages) for claim in claims] == [2, 2, 2, 2]
    assert one(sql, "SELECT count(*) FROM penstock.waiters") == 0
    run(sql, ack_of(claims))
    assert pop(sql) is None
    clock.set(3)
    assert len(run(sql, pop_call(partitions=4))) == 3


def test_in_an_ordered_group_a_key_at_its_limit_holds_up_its_partition_and_no_other(
    sql: Connection, clock: Clock
) -> None:
    create_group(sql, rate_limit=1, rate_period=10, rate_by="key")
    push_keys(sql, "p", "aab")
    push_keys(sql, "other", "cd")
    push_keys(sql, "third", "a")
    assert take(sql) == [("p", 0), ("other", 0), ("other", 1)]
    clock.set(10)
    # First come, first served: the third partition has waited for longer than the second message of the first one.
    assert take(sql) == [("third", 0)]
    clock.set(20)
    assert take(sql) == [("p", 1), ("p", 2)]
    assert violations(sql) == {}


def test_in_a_shared_group_a_key_at_its_limit_holds_up_no_other_key(sql: Connection, clock: Clock) -> None:
    create_group(sql, mode="shared", rate_limit=2, rate_period=10, rate_by="key")
    push_keys(sql, "p", "aabaabcad")
    claim = must_pop(sql)
    assert "".join(keys_of(claim)) == "aabbcd"  # type: ignore[arg-type]
    ack(sql, claim)
    assert pop(sql) is None
    clock.set(5)
    assert take(sql) == [("p", 3)]
    clock.set(15)
    assert sorted(take(sql)) == [("p", 4), ("p", 7)]
    assert violations(sql) == {}


@pytest.mark.parametrize(
    ("source", "values", "first"),
    [
        ("field:to.name", ['{"to": {"name": "ada"}}', '{"to": {"name": "ada"}}', '{"to": {"name": "bob"}}'], [0, 2]),
        # What has no such field, or is no JSON, is of one key.
        ("field:to", ['{"from": 1}', "nonsense", '{"to": null}', '{"to": "x"}', '{"to": 7}'], [0, 3, 4]),
        ("field:to", ['{"to": "' + "x" * 5000 + 'a"}', '{"to": "' + "x" * 5000 + 'b"}'], [0, 1]),
    ],
)
def test_a_field_of_a_json_value_has_a_rate(
    sql: Connection, clock: Clock, source: str, values: list[str], first: list[int]
) -> None:
    create_group(sql, mode="shared", rate_limit=1, rate_period=10, rate_by=source)
    sql.execute(
        "SELECT penstock.push('q', ARRAY(SELECT convert_to(v, 'UTF8') FROM unnest(%s::text[]) v), 'p')", (values,)
    )
    assert [message.offset for message in must_pop(sql).messages] == first


def test_attempts_and_errors_are_kept_over_a_wait(sql: Connection, clock: Clock) -> None:
    create_group(sql, rate_limit=1, rate_period=10)
    push_some(sql, 2)
    nack(sql, must_pop(sql))
    assert pop(sql) is None
    clock.set(10)
    sweep(sql)
    claim = must_pop(sql)
    assert (claim.attempt, claim.start) == (2, 0)


@pytest.mark.parametrize("mode", MODES)
def test_a_limit_that_is_raised_or_removed_counts_at_once(sql: Connection, clock: Clock, mode: str) -> None:
    create_group(sql, mode=mode, rate_limit=1, rate_period=3600)
    push_some(sql, 20)
    assert len(take(sql)) == 1
    assert take(sql) == []
    configure(sql, '{"rate_limit": 4, "rate_period": 1}')
    # Nothing was saved up under the other rate.
    assert take(sql) == []
    clock.set(1)
    assert len(take(sql)) == 4
    configure(sql, '{"rate_limit": null}')
    assert len(take(sql)) == 15
    assert one(sql, "SELECT gated FROM penstock.consumer_groups") is False
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_what_waits_is_retried_after_ten_minutes_whatever_was_forgotten(
    sql: Connection, clock: Clock, mode: str
) -> None:
    create_group(sql, mode=mode, rate_limit=1, rate_period=10)
    push_some(sql, 2)
    assert len(take(sql)) == 1
    sql.execute("DELETE FROM penstock.waiters")
    sql.execute("UPDATE penstock.limited_keys SET look_at = NULL")
    clock.set(10)
    assert take(sql) == []
    pass_time(sql)
    assert len(take(sql)) == 1


def test_a_key_that_somebody_else_is_popping_waits_a_moment_and_nobody_waits_for_a_lock(
    sql: Connection, clock: Clock, connections: Connections
) -> None:
    create_group(sql, rate_limit=2, rate_period=10, rate_by="key")
    push_keys(sql, "p", "a")
    push_keys(sql, "other", "a")
    first, second = connections.open(), connections.open(options="-c lock_timeout=1s")
    assert keys_of(pop(first)) == ["a"]
    assert pop(second) is None
    second.commit()
    first.commit()
    pass_time(sql, "t")
    sweep(sql)
    assert keys_of(pop(second)) == ["a"]


def test_what_was_rolled_back_has_used_nothing(sql: Connection, clock: Clock, connections: Connections) -> None:
    create_group(sql, rate_limit=1, rate_period=10)
    push_some(sql, 1)
    first = connections.open()
    assert pop(first) is not None
    first.rollback()
    assert pop(sql) is not None


def test_a_partition_that_was_moved_while_it_waited_goes_on_from_there(sql: Connection, clock: Clock) -> None:
    create_group(sql, rate_limit=1, rate_period=10)
    push_some(sql, 5)
    assert take(sql) == [("p", 0)]
    assert take(sql) == []
    assert newest(sql)[1] == "t"
    sql.execute("SELECT penstock.seek_partitions('q', 'g', 'p', 3)")
    assert take(sql) == []
    clock.set(10)
    assert take(sql) == [("p", 3)]
    clock.set(20)
    assert take(sql) == [("p", 4)]
    clock.set(30)
    sweep(sql)
    assert one(sql, "SELECT count(*) FROM penstock.waiters") == 0
    assert violations(sql) == {}


def test_a_paused_group_does_not_save_up_its_rate(sql: Connection, clock: Clock) -> None:
    create_group(sql, rate_limit=2, rate_period=2)
    push_some(sql, 20)
    assert len(take(sql)) == 2
    configure(sql, '{"paused": true}')
    for second in range(100):
        clock.set(second)
        assert take(sql) == []
    configure(sql, '{"paused": false}')
    assert len(take(sql)) == 2
    assert take(sql) == []


def test_rows_of_keys_go_when_they_say_nothing_any_more(sql: Connection, clock: Clock) -> None:
    create_group(sql, rate_limit=1, rate_period=10, rate_by="key")
    push_keys(sql, "p", "abcdefgh")
    assert len(take(sql)) == 8
    sql.execute("SELECT penstock.maintain()")
    assert one(sql, "SELECT count(*) FROM penstock.limited_keys") == 8
    clock.set(10)
    sql.execute("SELECT penstock.maintain()")
    assert one(sql, "SELECT count(*) FROM penstock.limited_keys") == 0


def test_a_deleted_group_leaves_nothing_of_its_limits(sql: Connection, clock: Clock) -> None:
    create_group(sql, mode="shared", rate_limit=1, rate_period=10, concurrency_limit=1)
    push_some(sql, 3)
    assert pop(sql) is not None
    assert group_id(sql)
    sql.execute("SELECT penstock.delete_group('q', 'g')")
    for table in ("limited_keys", "slots", "waiters"):
        assert one(sql, f"SELECT count(*) FROM penstock.{table}") == 0
    assert violations(sql) == {}


def test_dead_letters_that_are_redriven_have_the_limit_of_their_key(sql: Connection, clock: Clock) -> None:
    create_group(sql, rate_limit=1, rate_period=10, rate_by="key", max_attempts=1)
    push_keys(sql, "p", "a")
    assert nack(sql, must_pop(sql)) == "dead letter"
    sql.execute("SELECT penstock.redrive('q', 'g')")
    assert take(sql) == []
    clock.set(10)
    assert len(take(sql)) == 1


def test_a_rate_without_a_burst_of_its_own_allows_as_many_at_once(sql: Connection, clock: Clock) -> None:
    create_group(sql, rate_limit=5, rate_period=60)
    push_some(sql, 9)
    assert len(take(sql)) == 5


@pytest.mark.parametrize("settings", ['{"rate_limit": 1000000, "rate_period": 0.5}', '{"rate_by": "field:"}'])
def test_rates_that_make_no_sense_are_refused(sql: Connection, settings: str) -> None:
    create_group(sql)
    with pytest.raises(Exception, match=r"at most 1000000 a second|must be partition, key, group, or field:"):
        configure(sql, settings)
