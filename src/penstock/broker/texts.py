"""Texts that come from anywhere, made fit to be stored.

PostgreSQL stores neither NUL nor half of a surrogate pair, and both occur in what exceptions say. A failure that cannot
be recorded would be a failure that does not count, so such texts are changed instead of refused.
"""


def storable(text: str) -> str:
    """Return the text with what PostgreSQL cannot store written as an escape sequence."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
