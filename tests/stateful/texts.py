"""What the model's clients say: any bytes as values, any text as keys, headers, names and errors."""

from hypothesis import strategies as st

from penstock import Message

from .model import Content

# Anything that Python calls a text: NUL, control characters and halves of surrogate pairs are in it.
ANY_TEXT = st.text(
    st.one_of(st.characters(codec=None, exclude_categories=()), st.sampled_from("\0\x85\u2028\u202e\ud800\udfff'\\{")),
    max_size=12,
)
# What PostgreSQL can store.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cf", "Zl", "Zp")), min_size=1, max_size=12
).filter(lambda name: not name.startswith("~") and name != "*")
VALUES = st.none() | st.binary(max_size=12)
CONTENTS = st.builds(
    Content,
    VALUES,
    st.none() | TEXT.filter(bool),
    st.dictionaries(TEXT, TEXT, max_size=2).map(lambda given: tuple(sorted(given.items()))),
)


class Trouble(Exception):
    """What a handler raises."""


def message(content: Content, *, partition: str | None = None, dedupe_id: str | None = None) -> Message:
    """Return a content as the client takes it."""
    headers = dict(content.headers) or None
    return Message(content.value, content.key, headers, partition=partition, dedupe_id=dedupe_id)


def content(found: object) -> Content:
    """Return what a message or dead letter says, without what a redrive adds to it."""
    value, key, headers = (getattr(found, name) for name in ("value", "key", "headers"))
    own = {name: text for name, text in (headers or {}).items() if not name.startswith("penstock-")}
    return Content(value, key, tuple(sorted(own.items())))
