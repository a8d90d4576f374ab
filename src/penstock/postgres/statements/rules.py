"""The statements of rules for dead letters."""

from typing import Any

from penstock.broker.operations.rules import AddRule, DeleteRule, ListRules, MatchDeadLetters, RunRules
from penstock.broker.rules import RuleInfo, RuleMatch
from penstock.postgres.statements.call import Call, nothing, scalar, statement


@statement(AddRule)
def add_rule(wanted: AddRule) -> Call[int]:
    return Call(
        "SELECT penstock.add_rule(%s::text, %s::text, %s::text, %s::text, %s::text, %s::float8, %s::float8,"
        " %s::integer)",
        (wanted.name, *_conditions(wanted)),
        scalar,
    )


@statement(MatchDeadLetters)
def match_dead_letters(wanted: MatchDeadLetters) -> Call[list[RuleMatch]]:
    return Call(
        "SELECT * FROM penstock.match_dead_letters(%s::text, %s::text, %s::text, %s::text, %s::float8, %s::float8,"
        " %s::integer, %s::bigint, %s::integer)",
        (*_conditions(wanted), wanted.after, wanted.limit),
        lambda rows: [RuleMatch(*row) for row in rows],
    )


@statement(ListRules)
def list_rules(wanted: ListRules) -> Call[list[RuleInfo]]:
    return Call("SELECT * FROM penstock.list_rules()", (), lambda rows: [RuleInfo(*row) for row in rows])


@statement(DeleteRule)
def delete_rule(wanted: DeleteRule) -> Call[None]:
    return Call("SELECT penstock.delete_rule(%s::text)", (wanted.name,), nothing)


@statement(RunRules)
def run_rules(wanted: RunRules) -> Call[int]:
    return Call("SELECT penstock.run_rules(%s::integer)", (wanted.limit,), scalar)


def _conditions(wanted: AddRule | MatchDeadLetters) -> tuple[Any, ...]:
    return (
        wanted.queue,
        wanted.group,
        wanted.reason,
        wanted.error,
        wanted.backoff,
        wanted.backoff_factor,
        wanted.max_redrives,
    )
