"""Compare the hot paths of this checkout with those of another one, turn by turn in one run.

Each side has an embedded server of its own in a new folder, which does not wait for the disk, so that what is compared
is work and not the disk. A turn takes some milliseconds, and the ratio is that of two turns one after the other: a
busy machine disturbs both alike. The other checkout needs a .venv of its own.

    python tools/compare_checkouts.py ../before             # 100 turns of each case
    python tools/compare_checkouts.py ../before --turns 400 read pop_and_ack
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from penstock import AsyncClient, Client

ROOT = Path(__file__).parent.parent
MESSAGE = b'{"order": 1234567, "customer": "c-1029", "amount": 19.99, "items": ["a", "b", "c"], "state": "paid"}'
NOT_SLOWER_THAN = 0.97


class Cases:
    """What is measured; each case does some of its work and returns how many seconds that took."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop = asyncio.Runner()
        self._async: AsyncClient | None = None
        for _ in range(200):
            client.push("read", [MESSAGE] * 100, partition="p")

    def push_1(self) -> float:
        """Push single messages."""
        return self._timed(100, lambda: self._client.push("single", MESSAGE, partition="p"))

    def push_100(self) -> float:
        """Push batches of 100."""
        return self._timed(50, lambda: self._client.push("hundred", [MESSAGE] * 100, partition="p"))

    def push_1000(self) -> float:
        """Push batches of 1,000."""
        return self._timed(15, lambda: self._client.push("thousand", [MESSAGE] * 1000, partition="p"))

    def push_many(self) -> float:
        """Push to 16 partitions at once."""
        messages = [(f"p{number % 16}", MESSAGE) for number in range(160)]
        return self._timed(15, lambda: self._client.push_many("many", messages))

    def read(self) -> float:
        """Read 20,000 messages."""
        return self._timed(1, lambda: list(self._client.scan("read", "p")))

    def pop_and_ack(self) -> float:
        """Take batches of 10 and acknowledge them."""
        for number in range(40):
            self._client.push("popped", [MESSAGE] * 10, partition=f"p{number % 8}")
        return self._timed(40, self._pop_and_ack)

    def push_batched(self) -> float:
        """Push single messages from 256 tasks at once."""
        return self._timed(1, lambda: self._loop.run(self._push_batched()))

    def close(self) -> None:
        """Close what was opened."""
        if self._async is not None:
            self._loop.run(self._async.close())
        self._loop.close()

    @staticmethod
    def _timed(times: int, act: Callable[[], object]) -> float:
        began = time.perf_counter()
        for _ in range(times):
            act()
        return time.perf_counter() - began

    def _pop_and_ack(self) -> None:
        batch = self._client.pop("popped", max_messages=10)
        if batch is None:
            raise RuntimeError("there is nothing to pop")
        batch.ack()

    async def _push_batched(self) -> None:
        if self._async is None:
            self._async = AsyncClient(self._client.dsn)
            await self._async.open()
        client = self._async

        async def push(number: int) -> None:
            for _ in range(8):
                await client.push("batched", MESSAGE, partition=f"p{number % 16}")

        await asyncio.gather(*(push(number) for number in range(256)))


CASES = ("push_1", "push_100", "push_1000", "push_many", "read", "pop_and_ack", "push_batched")


def serve() -> None:
    """Run the cases that are named on standard input, and print how long each took."""
    with Client() as client:
        cases = Cases(client)
        print("ready", flush=True)
        for line in sys.stdin:
            print(getattr(cases, line.strip())(), flush=True)
        cases.close()


@contextmanager
def side(checkout: Path) -> Iterator[Callable[[str], float]]:
    """Start one side; what is yielded runs a case."""
    with tempfile.TemporaryDirectory(prefix="penstock-compare-") as home:
        options = "fsync=off synchronous_commit=off"
        environment = {**os.environ, "PENSTOCK_HOME": home, "PENSTOCK_POSTGRES_OPTIONS": options}
        environment.pop("PENSTOCK_URL", None)
        command = [str(checkout / ".venv" / "bin" / "python"), __file__, "--serve"]
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            asked, answers = process.stdin, process.stdout
            if asked is None or answers is None:
                raise SystemExit("a pipe is missing")

            def run(case: str) -> float:
                asked.write(f"{case}\n")
                asked.flush()
                return float(answers.readline())

            if answers.readline().strip() != "ready":
                raise SystemExit(f"{checkout}: its worker did not start")
            yield run
            asked.close()


def main() -> None:
    """Compare, print, and exit with 1 where a case is slower than it may be."""
    parser = argparse.ArgumentParser(description="Compare hot paths with those of another checkout.")
    parser.add_argument("checkout", type=Path, help="the other checkout, with a .venv of its own")
    parser.add_argument("cases", nargs="*", default=CASES, help=f"any of {', '.join(CASES)}; default: all")
    parser.add_argument("--turns", type=int, default=100, help="so many turns of each case")
    wanted = parser.parse_args()
    slower = []
    with ExitStack() as stack:
        now, before = (stack.enter_context(side(folder)) for folder in (ROOT, wanted.checkout.resolve()))
        for case in wanted.cases:
            ratios = []
            for turn in range(-2, wanted.turns):
                sides = (now, before) if turn % 2 else (before, now)
                took = {one: one(case) for one in sides}
                if turn >= 0:
                    ratios.append(took[before] / took[now])
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(f"{case:12} {middle:.3f} × as fast (quartiles {low:.3f}–{high:.3f})", flush=True)
            slower += [case] if middle < NOT_SLOWER_THAN else []
    sys.exit(f"slower than {NOT_SLOWER_THAN}: {', '.join(slower)}" if slower else 0)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
