"""Runs a coroutine as `asyncio.run` does, but does not wait for tasks that heed no cancellation."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger("penstock.worker")

# What tasks have to end, once they are cancelled.
_LAST_MOMENT = 1.0


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns; tasks that still run then are cancelled, or end with the program."""
    runner = asyncio.Runner()
    try:
        return runner.run(work)
    finally:
        if deaf := runner.run(_cancelled()):
            # Closing the runner would wait for them. Their items were given back before.
            log.warning("%d handlers heed no cancellation and are left behind", deaf)
            runner.get_loop().set_exception_handler(lambda loop, context: None)
        else:
            runner.close()


async def _cancelled() -> int:
    """Cancel all other tasks; return how many of them do not end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if not others:
        return 0
    _, deaf = await asyncio.wait(others, timeout=_LAST_MOMENT)
    return len(deaf)
