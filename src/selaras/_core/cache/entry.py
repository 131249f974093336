"""A cached value as the shared tier keeps it, and what a look at a key can find."""

from __future__ import annotations

from msgspec import Struct


class Entry(Struct, frozen=True):
    """One value in the shared tier.

    Attributes:
        position: the log's tail when it was stored (P3).
        stamp: from the partition's counter; orders entries of one position (P4).
        expires_in_us: how long it may still be served, counted from the reply that carries it; 0: no end.
        checksum: XXH3-64 of `value`.
        version: the datastore's own version of it, where the family names one.
        note: as it was put with the value; see `note.py`.
    """

    value: bytes
    position: int
    stamp: int
    checksum: int
    expires_in_us: int = 0
    tags: tuple[str, ...] = ()
    version: int | None = None
    note: bytes = b""


class Hit(Struct, frozen=True):
    """The value stands in the shared tier and is true now.

    Attributes:
        token: to a reader who asked to renew this entry: its right to fill in its place (P11). 0: none.
        wait_us: to such a reader, another one holds the token for at most so much more.
        holder: that token: the same as long as the same load goes on, renewed or not.
    """

    entry: Entry
    token: int = 0
    wait_us: int = 0
    holder: int = 0


class Miss(Struct, frozen=True):
    """Nothing stands there, and `token` is the reader's right to fill it (P11).

    `floor`: a load below this version is neither stored nor served to a reader that needs to be fresh.
    """

    token: int
    floor: int | None = None


class Busy(Struct, frozen=True):
    """Nothing stands there, and another reader holds the token `holder` for at most `wait_us` more, unless it is renewed.

    `holder` 0: none does; with a wait, a value is on its way that was stored already.
    """

    wait_us: int
    floor: int | None = None
    holder: int = 0


class Standing(Struct, frozen=True):
    """A write intent stands there: load from the datastore, store nothing.

    Also the answer while fills of the key are closed for a late datastore (P13).
    """

    floor: int | None = None


Look = Hit | Miss | Busy | Standing


class Intent(Struct, frozen=True):
    """A write intent in a key's place.

    Attributes:
        home: the partition of the attempt that owns it (P17).
        clean: nothing has touched the key since it was planted (P8).
        until_us: when it falls by itself; 0: only its owner removes it. Set once its owner is lost for good (P18).
    """

    key: str
    home: int
    job: str
    fence: int
    clean: bool = True
    until_us: int = 0
