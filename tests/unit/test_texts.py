import pytest

from penstock.broker.arguments import storable


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("as it is: ä, 🌊, \t\n", "as it is: ä, 🌊, \t\n"),
        ("a\0b", "a\\x00b"),
        ("half a pair \ud83c", "half a pair \\ud83c"),
        ("", ""),
    ],
)
def test_a_text_that_cannot_be_stored_is_escaped(text: str, stored: str) -> None:
    assert storable(text) == stored
