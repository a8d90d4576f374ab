"""The command line `penstock`: reads arguments, calls the client or `penstock.operations`, and prints the result.

To read further: `root` lists the commands and their exit codes; `connection` and `options` are what commands share;
`output` prints results. `completing`, `interrupts` and `shell` serve single commands. Every other file holds commands,
and none of them imports another. Modules that take long to import are imported inside the commands.
"""

from penstock.cli.root import main

__all__ = ["main"]
