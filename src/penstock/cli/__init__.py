"""The command line `penstock`: one file per noun, and nothing heavy is imported before it is needed.

To read further: `root` is the command and its exit codes, `options` what commands share, `output` how results are
shown, `envelopes` a message as one line of JSON; the other files are commands.
"""

from penstock.cli.root import main

__all__ = ["main"]
