"""`make chaos MINUTES=n SEED=s`: chaos for as long as one likes. The same seed gives the same schedule of faults."""

import argparse
import logging
import random
import sys
import tempfile
import time
from pathlib import Path

from .running import run

SHOWN = 20


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    say(f"chaos for {given.minutes:g} minutes; to repeat it: make chaos MINUTES={given.minutes:g} SEED={seed}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-notes-") as folder:
        report = run(seed, given.minutes * 60, Path(folder) / "notes", say)
    for line in report.wrong[:SHOWN]:
        say(line)
    say(f"{time.monotonic() - began:.0f} s, {'FAILED' if report.wrong else 'all is well'}: seed {seed}")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
