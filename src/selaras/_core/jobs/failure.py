"""How an exception is remembered: as text, cut to a bound, whatever the exception itself does.

Nothing of the exception object is kept, so that one that holds a socket, cannot be built again or raises in
its own `__str__` is remembered like any other (its class name, text and traceback are what people need).
"""

# A group holds exceptions of any type at all, which is what pyright would otherwise report on every line.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Final

import msgspec
from msgspec import Struct

from selaras._core.codec import UNREADABLE
from selaras._core.errors import ConfigurationError

MESSAGE_MOST: Final = 2_000
"""Characters kept of an exception's text: its head and its tail."""

TRACEBACK_MOST: Final = 12_000
"""Characters kept of a formatted traceback."""

_NAME_MOST: Final = 200
_LINE_MOST: Final = 500
_FRAMES_HEAD: Final = 10
_FRAMES_TAIL: Final = 30
_CHAIN_MOST: Final = 8
_GROUP_MOST: Final = 5
_BYTES_MOST: Final = 16_384


class Failure(Struct, frozen=True):
    """An exception as text. Encoded it is at most 16 KiB."""

    type: str
    message: str = ""
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe `error`. Never raises, whatever the exception's own methods do."""
        return cls(_type_name(error), _message(error), cut("".join(_story(error, set(), 0)), TRACEBACK_MOST))

    def encode(self) -> bytes:
        """Return the bytes the store keeps."""
        raw = msgspec.msgpack.encode(self)
        if len(raw) <= _BYTES_MOST:
            return raw
        # Characters beyond ASCII take up to four bytes each; the text is then cut to a quarter.
        parts = (cut(self.type, 50), cut(self.message, MESSAGE_MOST // 4), cut(self.traceback, TRACEBACK_MOST // 4))
        return msgspec.msgpack.encode(Failure(*parts))

    @classmethod
    def decode(cls, data: bytes | None) -> Failure:
        """Return what `encode` made; bytes that cannot be read are said to be so, never raised over."""
        if not data:
            return cls("Unknown")
        try:
            return _DECODER.decode(data)
        except UNREADABLE:
            return cls("Unknown", "the stored error cannot be read", cut(repr(data), MESSAGE_MOST))


_DECODER: Final = msgspec.msgpack.Decoder(Failure)


def cut(text: str, most: int) -> str:
    """Keep the head and the tail of a text that is longer than `most` characters; the result can be encoded."""
    if len(text) > most:
        tail = most // 3
        mark = f" … {len(text) - most} characters cut … "
        head = max(most - tail - len(mark), 0)
        text = text[:head] + mark + text[len(text) - tail :]
    # Lone surrogates (file names, broken input) have no UTF-8; they are shown by their escapes.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def kept_reason(reason: object) -> str:
    """Return the reason that somebody gives by hand, as it is kept. Raises ConfigurationError: it is no text."""
    if not isinstance(reason, str):
        raise ConfigurationError(f"reason={reason!r}: give a text")
    return cut(reason, MESSAGE_MOST)


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return cut(str(kind.__qualname__), _NAME_MOST)


def _message(error: BaseException) -> str:
    try:
        return cut(str(error), MESSAGE_MOST)
    except BaseException as broken:  # noqa: BLE001 - a user's __str__ may raise anything, SystemExit included
        return f"<its text raised {_type_name(broken)}>"


def _story(error: BaseException, seen: set[int], depth: int) -> Iterator[str]:
    """Yield the traceback's text, causes first, as Python prints it; every list in it has a bound."""
    seen.add(id(error))
    earlier, joint = _earlier(error)
    if earlier is not None:
        if id(earlier) in seen or len(seen) >= _CHAIN_MOST:
            yield "[earlier exceptions left out]\n"
        else:
            yield from _story(earlier, seen, depth)
        yield joint
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):\n"
        yield from _frames(error.__traceback__)
    yield cut(f"{_type_name(error)}: {_message(error)}", _LINE_MOST) + "\n"
    if isinstance(error, BaseExceptionGroup) and depth < 3:
        parts = error.exceptions
        for number, part in enumerate(parts):
            if number == _GROUP_MOST or id(part) in seen:
                yield f"  [{len(parts) - number} more exceptions left out]\n"
                break
            yield f"  --- {number + 1} of {len(parts)} ---\n"
            for text in _story(part, seen, depth + 1):
                yield "".join(f"  {line}" for line in text.splitlines(keepends=True))


def _earlier(error: BaseException) -> tuple[BaseException | None, str]:
    if error.__cause__ is not None:
        return error.__cause__, "\nThe above exception was the direct cause of the following exception:\n\n"
    if error.__context__ is not None and not error.__suppress_context__:
        return error.__context__, "\nDuring handling of the above exception, another exception occurred:\n\n"
    return None, ""


def _frames(tb: TracebackType) -> Iterator[str]:
    try:
        frames = list(traceback.walk_tb(tb))
        left_out = len(frames) - _FRAMES_HEAD - _FRAMES_TAIL
        if left_out <= 0:
            chosen = [frames]
        else:
            chosen = [frames[:_FRAMES_HEAD], frames[-_FRAMES_TAIL:]]
        for number, part in enumerate(chosen):
            if number:
                yield f"  [{left_out} frames left out]\n"
            for line in traceback.StackSummary.extract(iter(part)).format():
                yield cut(line, _LINE_MOST * 2)
    except Exception:  # noqa: BLE001 - source files may be gone or unreadable; the rest of the text still helps
        yield "  [frames could not be read]\n"
