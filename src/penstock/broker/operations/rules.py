"""Rules that redrive dead letters by themselves."""

from penstock.broker.names import check_names, check_whole
from penstock.broker.operations.operation import Operation, Repeatable
from penstock.broker.rules import RuleInfo, RuleMatch
from penstock.errors import InvalidInput

_MOST_REDRIVES = 1000


class AddRule(Operation[int], frozen=True):
    """Add a rule; the reply is its id."""

    name: str
    queue: str | None = None
    group: str | None = None
    reason: str | None = None
    error: str | None = None
    backoff: float = 60.0
    backoff_factor: float = 2.0
    max_redrives: int = 3

    def __post_init__(self) -> None:
        check_names(self.name, what=("rule",))
        _check(self.queue, self.group, self.reason, self.error)
        _check_redrives(self.max_redrives)


class MatchDeadLetters(Repeatable[list[RuleMatch]], frozen=True):
    """List what a rule would do with each dead letter that it is about; it changes nothing."""

    queue: str | None = None
    group: str | None = None
    reason: str | None = None
    error: str | None = None
    backoff: float = 60.0
    backoff_factor: float = 2.0
    max_redrives: int = 3
    after: int = 0
    limit: int = 100

    def __post_init__(self) -> None:
        check_whole("limit", self.limit)
        _check(self.queue, self.group, self.reason, self.error)
        _check_redrives(self.max_redrives)


class ListRules(Repeatable[list[RuleInfo]], frozen=True):
    """List the rules for dead letters."""


class DeleteRule(Operation[None], frozen=True):
    """Delete a rule."""

    name: str

    def __post_init__(self) -> None:
        check_names(self.name, what=("rule",))


class RunRules(Operation[int], frozen=True):
    """Redrive the dead letters that are due by a rule; the reply is how many."""

    limit: int = 1000


def _check_redrives(count: int) -> None:
    # The broker says so, too, but not of a number that it cannot take.
    if isinstance(count, int) and abs(count) >= 2**31:
        raise InvalidInput(f"max_redrives is {count} but must be from 1 to {_MOST_REDRIVES}")


def _check(*texts: str | None) -> None:
    for text in texts:
        if text is not None and (not isinstance(text, str) or "\0" in text):
            raise InvalidInput(f"a condition of a rule is a text without NUL characters, and {text!r} is not")
        if text is not None:
            check_names(text, what=("condition",))
