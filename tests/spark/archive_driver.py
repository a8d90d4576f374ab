"""A driver of its own process that archives queue `in` and is killed before the last step, when all files are in place.

Arguments: the address, and the folder.
"""

import os
import signal
import sys
from collections.abc import Sequence

import penstock.spark
from penstock.broker.archives import ArchiveFile
from penstock.pipeline.archiving import Archiving
from penstock.settings import resolve
from penstock.spark.archiving import Job
from spark.driver import QUIET


class Killed(Archiving):
    """Archives, and dies when all that is left is to record it."""

    def record(self, job: Job, files: Sequence[ArchiveFile]) -> int:
        """Die."""
        os.killpg(os.getpgid(0), signal.SIGKILL)
        return 0


def main(url: str, folder: str) -> None:
    """Archive, as far as it gets."""
    session = penstock.spark.session("killed", "local[2]", QUIET)
    with Killed(resolve({"url": url}), session, "in", folder) as archiving:
        for pages in archiving.plan():
            archiving.run(pages)


if __name__ == "__main__":
    main(*sys.argv[1:])
