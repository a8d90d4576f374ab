"""The synchronous half is generated from the asynchronous one, and little is written twice."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import generate_sync
import measure_twins


def made(source: str) -> str:
    return generate_sync.synchronous(dedent(source))


def test_every_generated_file_is_what_the_script_makes_of_its_source() -> None:
    script = Path(generate_sync.__file__)
    check = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert check.stdout == ""
    assert check.returncode == 0


def test_at_most_a_tenth_of_the_synchronous_half_is_written_twice() -> None:
    by_hand = measure_twins.pairs()
    total = len(measure_twins.generated()) + sum(len(pair.synchronous) for pair in by_hand)
    assert sum(pair.twice for pair in by_hand) <= measure_twins.MOST * total


def test_keywords_and_names_are_replaced() -> None:
    assert made("""
        async def f(client: AsyncClient) -> AsyncIterator[int]:
            async with client.transaction() as tx:
                async for each in client.scan("q"):
                    yield await tx.run(each)
    """) == dedent("""
        def f(client: Client) -> Iterator[int]:
            with client.transaction() as tx:
                for each in client.scan("q"):
                    yield tx.run(each)
    """)


def test_what_is_awaited_by_type_or_in_a_thread_is_called() -> None:
    assert made("Run = Callable[[Call], Awaitable[list[int]]]\n") == "Run = Callable[[Call], list[int]]\n"
    assert made("x = (await f('…'))[0].y\n") == "x = f('…')[0].y\n"
    assert made("x = await asyncio.to_thread(f, 'é', *more)\n") == "x = f('é', *more)\n"
    assert made("x = await asyncio.to_thread(self.f)\n") == "x = self.f()\n"


def test_comments_stay_and_words_change_in_texts() -> None:
    assert made('x = "AsyncClient"  # an asynchronous one: see AsyncBatch\n') == (
        'x = "Client"  # a synchronous one: see Batch\n'
    )


def test_a_mark_removes_a_whole_statement_with_the_comment_above_it() -> None:
    assert made("""
        def f(
            a: int,
            b: int,  # async only
        ) -> None:
            # Why.
            if (
                a
            ):  # async only
                g()
            h()

        @decorated  # async only
        async def i() -> None:
            try:
                pass
            except ValueError:
                pass
    """) == dedent("""
        def f(
            a: int,
        ) -> None:
            h()

    """)


def test_a_mark_makes_code_of_a_comment() -> None:
    assert made("""
        if a:
            await b()  # async only
            # sync only: if c:
            # sync only:     b()
    """) == dedent("""
        if a:
            if c:
                b()
    """)


@pytest.mark.parametrize("line", ["await asyncio.gather(a, b)", "connection.run_async()"])
def test_what_has_no_synchronous_counterpart_is_refused(line: str, tmp_path: Path) -> None:
    source = tmp_path / "async_x.py"
    source.write_text(f"import asyncio\n\n\nasync def f() -> None:\n    {line}\n")
    with pytest.raises(SystemExit, match=r"async_x\.py: mark it `# async only`, or extend the tables"):
        generate_sync.generate(source)
