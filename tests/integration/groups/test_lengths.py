"""How long a lease or a delay may be: what is too long or no number is refused by its name, and not by an interval."""

import math
from typing import Any

import pytest
from psycopg import errors

from databases import Connection
from penstock import AsyncClient, Client, InvalidInput

from .steps import MODES, create_group, must_pop, push_some

NAN: Any = math.nan
NONSENSE = ["infinity", "nan", "1e12", "-1"]
SETTLE = {
    "lease_time": "SELECT penstock.renew_claims(ARRAY[%s], ARRAY[%s]::bigint[], ARRAY[%s]::uuid[], %s)",
    "wait": "SELECT penstock.nack_claim(%s, %s, %s, wait => %s)",
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("given", NONSENSE)
def test_sql_refuses_it_by_its_name(sql: Connection, mode: str, given: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 1)
    pops = (
        "SELECT penstock.pop_claims('q', 'g', lease_time => %s)",
        "SELECT penstock.pop_claims_batch('{q}', '{g}', '{NULL}', '{1}', '{1}', '{1}', ARRAY[%s::float8], '{c}', '{f}',"
        " '{NULL}')",
    )
    for pop in pops:
        with pytest.raises(errors.InvalidParameterValue, match="lease_time"):
            sql.execute(pop.encode(), (given,))
    claim = must_pop(sql)
    for name in ("lease_time", "wait"):
        with pytest.raises(errors.InvalidParameterValue, match=name):
            sql.execute(SETTLE[name].encode(), (claim.group_id, claim.partition_id, claim.lease_id, given))


def test_a_client_refuses_it_by_its_name(client: Client) -> None:
    client.push("q", [1])
    for name in ("lease", "wait"):
        with pytest.raises(InvalidInput, match=f"^{name} is nan"):
            client.pop("q", "g", **{name: NAN})
    for name in ("idle_timeout", "give_up_after", "lease"):
        with pytest.raises(InvalidInput, match=f"^{name} is nan"):
            next(client.consume("q", "g", **{name: NAN}))
    for name in ("timeout", "grace"):
        with pytest.raises(InvalidInput, match=f"^{name} is nan"):
            client.process("q", print, **{name: NAN})
    batch = client.pop("q", "g", wait=math.inf)
    assert batch is not None
    with pytest.raises(InvalidInput, match=r"^lease is inf"):
        batch.renew(math.inf)
    with pytest.raises(InvalidInput, match=r"^delay is inf"):
        batch.nack(delay=math.inf)


async def test_an_async_client_refuses_it_by_its_name(penstock_dsn: str) -> None:
    async with AsyncClient(penstock_dsn) as client:
        await client.push("q", [1])
        for name in ("lease", "wait"):
            with pytest.raises(InvalidInput, match=f"^{name} is nan"):
                await client.pop("q", "g", **{name: NAN})
        for name in ("idle_timeout", "give_up_after", "lease"):
            with pytest.raises(InvalidInput, match=f"^{name} is nan"):
                await anext(client.consume("q", "g", **{name: NAN}))
        for name in ("timeout", "grace"):
            with pytest.raises(InvalidInput, match=f"^{name} is nan"):
                await client.process("q", print, **{name: NAN})


def test_a_handler_may_take_as_long_as_it_likes(client: Client) -> None:
    client.push("q", [1])
    assert client.process("q", lambda message: None, timeout=math.inf, grace=math.inf, idle_timeout=0.05) == 1


async def test_an_async_handler_may_take_as_long_as_it_likes(penstock_dsn: str) -> None:
    async with AsyncClient(penstock_dsn) as client:
        await client.push("q", [1])

        async def handle(message: object) -> None:
            pass

        assert await client.process("q", handle, timeout=math.inf, grace=math.inf, idle_timeout=0.05) == 1
