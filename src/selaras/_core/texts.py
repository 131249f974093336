"""Text of users and programs, shown to people."""

from __future__ import annotations


def one_line(text: str) -> str:
    """Return text that cannot move the cursor, start a line or colour a terminal: control characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
