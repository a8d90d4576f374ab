"""The library of Valkey functions: its text, and the names that its version gives them."""

import hashlib
from functools import cache
from importlib.resources import files

_TEXT = "functions.lua"


class Library:
    """One version of the functions. Two versions can be loaded beside one another: their names differ."""

    def __init__(self, text: str) -> None:
        self.prefix = f"penstock_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        self.code = f"#!lua name={self.prefix}\n{text.replace('FORMAT', self.prefix)}"

    def function(self, name: str) -> str:
        """Return the name by which Valkey knows a function."""
        return f"{self.prefix}_{name}"


@cache
def library() -> Library:
    """Return the library of this version of penstock."""
    return Library(files("penstock.warm").joinpath(_TEXT).read_text(encoding="utf-8"))
