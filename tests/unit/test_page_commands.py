"""The commands that the page advises are commands that there are."""

import re
import shlex
from pathlib import Path

import click
import pytest

from penstock import ui
from penstock.cli.root import root

_PAGE = Path(ui.__file__).parent / "static"
_COMMAND = re.compile(r"""command=(?:\$\{)?(["'`])(penstock (?:\\.|(?!\1).)+)\1|<code>(penstock [^<]+)</code>""")


def commands() -> list[str]:
    texts = [path.read_text("utf-8") for folder in ("pages", "parts") for path in sorted((_PAGE / folder).glob("*.js"))]
    found = [match[2] or match[3] for text in texts for match in _COMMAND.finditer(text)]
    return sorted({re.sub(r"\$\{.*?\}", "name", each).replace("\\'", "'") for each in found})


@pytest.mark.parametrize("command", commands())
def test_a_command_that_the_page_advises_is_understood(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flows.py").touch()
    known: click.Command = root
    words = shlex.split(command)
    context = click.Context(known, info_name=words.pop(0))
    while isinstance(known, click.Group):
        name, known, words = known.resolve_command(context, words)  # type: ignore[assignment]
        context = click.Context(known, parent=context, info_name=name)
    known.make_context(command, words, parent=context.parent)
