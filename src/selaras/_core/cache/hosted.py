"""A value as the host tier keeps it: all that a reader needs to judge it, whoever wrote it, and whatever became of it.

    form (1) | checksum of the rest (8) | key, where it was true, until when, tags, note, value

The tier itself is asked for nothing: it may lose entries, keep old ones, mix them up or damage them. An entry says of which
key it is, for its name in the tier is a hash; at which position of which log it was true (the event there has a random id,
and so no other log has it, nor one that was lost and grew again); and when its ttl is over, by the clock of the machine.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Final

import msgspec
from msgspec import Struct
from xxhash import xxh3_64_digest, xxh3_128_digest

from selaras._core.codec import UNREADABLE

FORM: Final = b"\x01"
"""An entry of another form is another version's: nothing stands there."""

_HEAD: Final = 9


class Hosted(Struct, frozen=True, array_like=True):
    """One value in the host tier.

    Attributes:
        epoch, position, event_id: where it was true: a position of a log, and the event there.
        stamp: as of an entry of the shared tier.
        until_ns: an instant; 0: no end.
        note: as of an entry of the shared tier.
    """

    key: str
    epoch: int
    position: int
    event_id: int
    stamp: int
    until_ns: int
    tags: tuple[str, ...]
    note: bytes
    value: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Hosted).decode


def hosted_bytes(hosted: Hosted) -> bytes:
    """Return an entry as the tier keeps it."""
    body = _encode(hosted)
    return b"".join((FORM, xxh3_64_digest(body), body))


def hosted_of(data: bytes) -> Hosted | None:
    """Read an entry; None: these are not the bytes of one."""
    body = data[_HEAD:]
    if data[:1] != FORM or xxh3_64_digest(body) != data[1:_HEAD]:
        return None
    try:
        return _decode(body)
    except UNREADABLE:
        return None


def host_name(owner: bytes, key: str) -> bytes:
    """Return the name of a key's entry: short, of plain characters, and of this owner alone as far as a hash can say.

    `owner`: what tells apart all who use the tier: the store, and the clock that `until_ns` is of.
    """
    return b"selaras:" + urlsafe_b64encode(xxh3_128_digest(owner + key.encode("utf-8", "surrogatepass")))[:22]
