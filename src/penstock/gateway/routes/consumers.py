"""Consumers and circuit breakers: describe and reset them."""

from penstock.broker.health import BreakerInfo, ConsumerInfo
from penstock.gateway.call import Call
from penstock.gateway.routes.queues import Changed


async def list_consumers(call: Call) -> list[ConsumerInfo]:
    """Describe those who consume, or did so within a day, and how they fare."""
    sight = await call.sight()
    if sight.whole:
        return await call.gateway.client.consumers()
    return sight.facts(await call.gateway.monitor.facts()).consumers


async def reset_consumer(call: Call) -> Changed:
    """Let a consumer count from 0 and close its own breaker; one that is gone is deleted."""
    return Changed(await call.gateway.client.reset_consumer(call.path["consumer"]))


async def list_breakers(call: Call) -> list[BreakerInfo]:
    """Describe the circuit breakers of groups whose handlers have failed, open ones first."""
    return (await call.sight()).rows(await call.gateway.client.breakers())


async def reset_breaker(call: Call) -> Changed:
    """Close the circuit breaker of a group, so that its messages are handed out again."""
    return Changed(await call.gateway.client.reset_breaker(call.path["queue"], call.path["group"]))
