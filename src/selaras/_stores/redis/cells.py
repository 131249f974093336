"""The shared tier of one partition, seen from Python: values lie in keys of their own, all else in the scripts' hashes.

    fill, settle    script: the entry, with the id of its value ─> stored? SET v:<key> = id + value
    read            script: the entry ─> GET v:<key>: the id is the entry's?  yes: a hit
                                                                 no: look again, without that entry

A value has a random id before it, which its entry names. So values may come and go as the server likes: a value that
was evicted, replaced, or has not yet arrived is never taken for another; it is waited for a moment, or missed.
"""

from __future__ import annotations

import asyncio
import os
from asyncio import Task
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from struct import Struct
from typing import Any, Final, NamedTuple, cast

import msgspec
from msgspec.structs import astuple

from selaras._contracts.partition import (
    CacheStats,
    Fill,
    FillReply,
    Invalidation,
    Owner,
    Planted,
    ReadReply,
    ReadRequest,
)
from selaras._core.cache.entry import Busy, Entry, Hit, Intent, Look, Miss, Standing
from selaras._core.cache.floors import PerKey
from selaras._core.errors import StoreUnavailable
from selaras._core.jobs.job import Put, Refusal
from selaras._core.positions import START, Cursor, Event, News, Pushed, Scope
from selaras._stores.redis.caller import Caller, raw
from selaras._stores.redis.context import Command
from selaras._stores.redis.errors import is_mistyped, meaning_of, told
from selaras._stores.redis.gathered import Call, Gathered, Replies
from selaras._stores.redis.records import DAMAGED
from selaras._stores.redis.wire import ReplyError, WireLost, pack

LOOKS_AGAIN: Final = 2
"""So often a look whose value is not there is repeated; then it is a miss without a token."""

_FEW_EVENTS: Final = 8
"""So many events of the log's end are asked for without knowing how many there are to be told."""

_SWEEP: Final = 100
_SWEEPS_MOST: Final = 10
"""Entries that one `sweep` looks at: so many at a time, and so often while a quarter of them are in vain."""

_KEEP_MS: Final = 30 * 86_400_000
"""How long a value without an end is kept by the server."""

_SLACK_MS: Final = 10_000
"""How much longer than its entry a value is kept: the entry says when it is over, and its clock is another one."""

_CURSOR: Final = Struct(">dd")  # as events begin
_EPOCH: Final = Struct(">d")  # as the ledger begins
_PUSHED: Final = Struct(">ddd")  # what the events follow, and their epoch
_SIZE: Final = Struct(">I")
_ROW: Final = Struct(">16sddI8s")  # stamp, position, until_us | size, id of the value
_TAIL: Final = Struct(">I8s")
_STORED: Final = 5  # where news tell what was stored
_EMPTY: Final = bytes(8)
"""The id of the empty value, which is not kept anywhere."""

_SCOPES: Final = {b"%d" % scope: scope for scope in Scope}
_VERSION_SHIFT: Final = 1 << 63
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(tuple[int, str | None, str, tuple[str, ...], str]).decode

Packed = tuple[str, int, msgspec.Raw]
"""A put as scripts take it: key, expires_in_us, and what they keep of the entry without reading it."""


class Values:
    """Puts that go to a script; their values go behind it, if it stores them."""

    def __init__(self) -> None:
        self._puts: dict[bytes, Put] = {}

    def pack(self, put: Put) -> Packed:
        """Return a put as scripts take it."""
        if not put.value:
            return packed(put, _EMPTY)
        name = os.urandom(8)
        self._puts[name] = put
        return packed(put, name)

    def stored(self, told: list[Any]) -> list[Stored]:
        """Return what must be written. `told`: the script's news."""
        if len(told) <= _STORED or not self._puts:
            return []
        names = iter(told[_STORED])
        pairs = zip(names, names, strict=True)
        return [Stored(name, stamp, self._puts[name]) for name, stamp in pairs if name in self._puts]


class Stored(NamedTuple):
    """A value that a script has stored, and that is not written yet. `name`: its id. `stamp`: of its entry."""

    name: bytes
    stamp: bytes
    put: Put


# -- what goes over the wire


def hex_of(number: int) -> str:
    """Return a fence, token or stamp as scripts have it: text that sorts."""
    return format(number, "016x")


def versions_of(versions: PerKey) -> list[tuple[str, str]]:
    """Return floors as scripts take them."""
    return [(key, _version_text(version)) for key, version in versions]


def names_of(names: Invalidation) -> tuple[Any, ...]:
    """Return an invalidation as scripts take it."""
    return (names.keys, names.tags, names.families, versions_of(names.versions), names.closes)


def owner_of(owner: Owner) -> tuple[int, str, str]:
    """Return an owner as scripts take it."""
    return (owner.home, owner.job, hex_of(owner.fence))


def packed(put: Put, name: bytes) -> Packed:
    """Return a put as scripts take it. `name`: the random id of its value."""
    version = None if put.version is None else _version_text(put.version)
    note = put.note.decode("latin-1")  # the servers' msgpack knows texts only
    known = _encode((put.checksum, version, put.family, put.tags, note))
    return put.key, put.expires_in_us, raw(_TAIL.pack(len(put.value), name) + known)


def decode_news(told: list[Any], since: Cursor) -> News:
    """Read what a script tells of the log; of a log that was written over, that it is to be forgotten."""
    position, event_id, epoch, reset, events = told[:5]
    tail = Cursor(position, event_id)
    if not events:
        return News(tail, (), bool(reset), epoch)
    return _later(tail, events, since, epoch) or News(tail, (), True, epoch)


def _later(tail: Cursor, told: list[bytes], since: Cursor, epoch: int) -> News | None:
    """Read events as they lie in the log, from the one at the cursor on. Of one name only the last is told.

    Returns None if one of them was written over.
    """
    last: dict[bytes, int] = {}
    for place in range(1, len(told)):
        name = told[place][_CURSOR.size :]
        last.pop(name, None)
        last[name] = place
    events: list[Event] = []
    ids: list[int] = []
    try:
        for name, place in last.items():
            position, event_id = _CURSOR.unpack_from(told[place])
            if position != since.position + place:
                return None
            events.append(Event(since.position + place, _SCOPES[name[:1]], name[1:].decode()))
            ids.append(int(event_id))
    except DAMAGED:
        return None
    return News(tail, tuple(events), epoch=epoch, ids=tuple(ids))


def decode_pushed(said: bytes) -> Pushed | None:
    """Read events as scripts push them; None if they were written over."""
    try:
        position, event_id, epoch = _PUSHED.unpack_from(said)
        since, its_epoch, events, at = Cursor(int(position), int(event_id)), int(epoch), [b""], _PUSHED.size
        while at < len(said):
            first = at + _SIZE.size
            at = first + _SIZE.unpack_from(said, at)[0]
            events.append(said[first:at])
        position, event_id = _CURSOR.unpack_from(events[-1])
        tail = Cursor(int(position), int(event_id))
    except DAMAGED:
        return None
    news = _later(tail, events, since, its_epoch)
    return Pushed(since, news) if news is not None and since.position + len(events) - 1 == tail.position else None


def _news_of(ledger: bytes, told: list[bytes], since: Cursor) -> News | None:
    """Read the end of the log, if it reaches back to the cursor and nobody has written over it."""
    at = _CURSOR.pack(since.position, since.event_id)
    first = next((place for place in range(len(told) - 1, -1, -1) if told[place].startswith(at)), None)
    if first is None:
        return None
    try:
        position, event_id = _CURSOR.unpack_from(told[-1])
        epoch = int(_EPOCH.unpack_from(ledger)[0])
        tail = Cursor(int(position), int(event_id))
    except DAMAGED:
        return None
    if tail.position != since.position + len(told) - 1 - first:
        return None
    return _later(tail, told[first:], since, epoch)


def intents_of(shown: Iterable[list[Any]]) -> tuple[Intent, ...]:
    """Read intents as `cells_shown` and `cells_orphans` tell them."""
    return tuple(
        Intent(key.decode(errors="replace"), home, job.decode(errors="replace"), int(fence, 16), bool(clean), until_us)
        for key, home, job, fence, clean, until_us in shown
    )


def _version_text(version: int) -> str:
    return hex_of(version + _VERSION_SHIFT)


def version_of(text: bytes | str | None) -> int | None:
    """Read a version as scripts have it."""
    return None if text is None else int(text, 16) - _VERSION_SHIFT


# -- the verbs


class Cells:
    """The cache's verbs; see `Partition`. All of them bear being repeated: twice is once, or a miss."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._index = caller.index
        self._value_key = caller.key("v:")
        # In a cluster a command over several keys is refused while their slot moves; one over one key never is.
        self._one_by_one = caller.link.common.address.shape == "cluster"
        self._swept = b"0"
        self._under_way: set[Task[None]] = set()
        self._reads = Gathered(caller, "read", self._looks, self._seen, urgent=True, repeats=True)
        self._fills = Gathered(caller, "fill", self._stores, self._stored, urgent=True, repeats=True)
        self._voids = Gathered(caller, "void", _void_of, self._voided, repeats=True)
        self._invalidations = Gathered(caller, "invalidate", _invalidation_of, _invalidated, repeats=True)
        self._tail = pack("HGET", caller.key("meta"), "ledger") + pack("LRANGE", caller.key("log"), -_FEW_EVENTS, -1)

    # -- readers

    async def read(self, requests: Sequence[ReadRequest], since: Cursor) -> ReadReply:
        """See `Partition`."""
        looks, news = await self._reads(requests, since)
        return ReadReply(tuple(looks), news)

    def _looks(self, requests: Sequence[ReadRequest]) -> Call:
        asked: list[str | int] = []
        for one in requests:
            asked += (one.key, one.lease_us, _stamp(one.distrust), _stamp(one.renews))
        return Call(asked, after=self._gets([one.key for one in requests]))

    def _seen(
        self, requests: Sequence[ReadRequest], since: Cursor, replies: Replies
    ) -> tuple[list[Look], News] | Coroutine[Any, Any, tuple[list[Look], News]]:
        told, found = replies.script
        looks = self._with_values(found, replies.after)
        news = decode_news(told, since)
        if all(look.__class__ is not bytes for look in looks):
            return cast("list[Look]", looks), news
        return self._look_again(requests, looks, news)

    def _with_values(self, looks: list[Any], values: list[Any]) -> list[Look | bytes]:
        """Put looks and values together. In place of a look whose value is not there stands the entry's row.

        Raises:
            StoreUnavailable: this user may not read values.
        """
        values = [None if is_mistyped(value) else value for value in values]
        refused = next((value for value in values if value.__class__ is ReplyError), None)
        if refused is not None:
            raise told(refused, meaning_of(refused), where=self._caller.link.common.where(self._index), doing="'read'")
        return [
            _look_of(look, value) for look, value in zip(looks, values if self._one_by_one else values[0], strict=True)
        ]

    async def _look_again(
        self, requests: Sequence[ReadRequest], looks: list[Look | bytes], news: News
    ) -> tuple[list[Look], News]:
        """Look at those again whose values were not there, without these entries.

        What was found before stays true at the first tail, and what is found now is true at a later one.
        """
        for _ in range(LOOKS_AGAIN):
            gone = [(place, look) for place, look in enumerate(looks) if isinstance(look, bytes)]
            if not gone:
                break
            again = await self._look([(requests[place].key, requests[place].lease_us, row) for place, row in gone])
            for (place, _), look in zip(gone, again, strict=True):
                looks[place] = look
        return [Busy(0) if isinstance(look, bytes) else look for look in looks], news

    async def _look(self, rows: Sequence[tuple[str, int, bytes]]) -> list[Look | bytes]:
        """Look at keys whose values were not there: (key, lease_us, row)."""
        asked: list[str | int] = []
        for key, lease_us, row in rows:
            asked += (key, lease_us, f"!{row[:16].decode(errors='replace')}", "")
        gets = self._gets([key for key, _, _ in rows])
        _, (_, looks), values = await self._caller.among((), "read", asked, START, gets, urgent=True, repeats=True)
        return self._with_values(looks, values)

    async def values(self, rows: Sequence[tuple[str, bytes]]) -> list[bytes | None]:
        """Fetch the values of entries, given (key, row); None where it was evicted or replaced."""
        if not rows:
            return []
        values = await self._caller.link.pipeline(self._index, self._gets([key for key, _ in rows]))
        if not self._one_by_one:
            values = values[0]
        return [value_of(row, value) for (_, row), value in zip(rows, values, strict=True)]

    def _gets(self, keys: Sequence[str]) -> Sequence[Command]:
        names = [self._value_key + key for key in keys]
        return [("GET", name) for name in names] if self._one_by_one else [("MGET", *names)]

    async def events_since(self, since: Cursor) -> News:
        """See `Partition`."""
        # Mostly little has happened, and two plain commands tell that for less than a script. What the log got between
        # them is just newer than the ledger, and is told, too.
        wire = self._caller.link.ready(self._index) if since.position else None
        if wire is not None:
            try:
                ledger, ends = await wire.send(self._tail, 2, self._caller.link.within_s(urgent=True))
            except WireLost:
                ledger, ends = None, None
            if isinstance(ledger, bytes) and isinstance(ends, list):
                news = _news_of(ledger, cast("list[bytes]", ends), since)
                if news is not None:
                    return news
        (told,) = await self._caller.ask("events", None, since, urgent=True, repeats=True)
        return decode_news(told, since)

    # -- loads

    async def fill(self, fills: Sequence[Fill], since: Cursor) -> FillReply:
        """See `Partition`."""
        stored, news = await self._fills(fills, since)
        return FillReply(tuple(stored), news)

    def _stores(self, fills: Sequence[Fill]) -> Call:
        asked: list[str | int | msgspec.Raw] = []
        values = Values()
        for one in fills:
            asked += (*values.pack(one.put), hex_of(one.token))
        return Call(asked, beside=values)

    def _stored(self, _: Sequence[Fill], since: Cursor, replies: Replies) -> tuple[list[tuple[int, int] | None], News]:
        told, stored = replies.script
        self.keep(replies.call.beside, told)
        return [None if at is None else (at[0], int(at[1], 16)) for at in stored], decode_news(told, since)

    async def extend_fills(self, tokens: Sequence[tuple[str, int]], lease_us: int) -> None:
        """See `Partition`."""
        await self._caller.ask("extend_fills", [lease_us, *_flat(tokens)], urgent=True, repeats=True)

    async def abandon_fills(self, tokens: Sequence[tuple[str, int]]) -> None:
        """See `Partition`."""
        await self._caller.ask("abandon_fills", _flat(tokens), urgent=True, repeats=True)

    async def sweep(self) -> bool:
        """Forget entries whose values are gone: a server that is full evicts values alone, and would fill with the rest.

        Returns whether there were any: more may be gone.
        """
        swept = False
        for _ in range(_SWEEPS_MOST):
            scan = ("HSCAN", self._caller.key("entries"), self._swept, "COUNT", _SWEEP)
            ((self._swept, found),) = await self._caller.link.pipeline(self._index, (scan,))
            rows = [(key, row) for key, row in zip(found[::2], found[1::2], strict=True) if _has_value(row)]
            names = [(b"EXISTS", self._value_key.encode() + key) for key, _ in rows]
            there = await self._caller.link.pipeline(self._index, names)
            gone = [(key.decode(), 0, row) for (key, row), is_there in zip(rows, there, strict=True) if not is_there]
            if gone:
                swept = True
                await self._look(gone)
            if self._swept == b"0" or len(gone) * 4 < len(rows):
                break
        return swept

    # -- writers

    def keep(self, values: Values, told: list[Any]) -> None:
        """Write the values that a script has stored, without waiting. `told`: its news."""
        stored = values.stored(told)
        if not stored:
            return
        wire = self._caller.link.ready(self._index)
        if wire is None:
            self._begin(self._write(stored))
        else:
            packed = b"".join(pack(*self._set(one)) for one in stored)
            writing = _Writing(lambda: self._begin(self._write(stored)))
            wire.send_for(writing, packed, len(stored), self._caller.link.within_s(urgent=False))

    async def kept(self, values: Values, told: list[Any]) -> None:
        """Write the values that a script has stored, and wait for it."""
        if stored := values.stored(told):
            await self._write(stored)

    async def _write(self, stored: Sequence[Stored]) -> None:
        """Write values; where the server has no room, their entries go, so that nobody waits for them."""
        try:
            await self._caller.link.pipeline(self._index, [self._set(one) for one in stored])
        except StoreUnavailable:
            asked = [word for one in stored for word in (one.put.key, 0, one.stamp.decode(), "")]
            with suppress(StoreUnavailable):
                await self._caller.ask("read", asked, repeats=True)

    def _set(self, one: Stored) -> Command:
        put = one.put
        keep_ms = put.expires_in_us // 1_000 + _SLACK_MS if put.expires_in_us else _KEEP_MS
        return ("SET", self._value_key + put.key, one.name + put.value, "PX", keep_ms)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def invalidate(self, names: Invalidation, since: Cursor) -> News:
        """See `Partition`."""
        if names.keys and not (names.tags or names.families or names.versions or names.closes):
            _, news = await self._voids(names.keys, since)
        else:
            _, news = await self._invalidations((names,), since)
        return news

    def _voided(
        self, keys: Sequence[str], since: Cursor, replies: Replies
    ) -> tuple[Sequence[None], News] | Coroutine[Any, Any, tuple[Sequence[None], News]]:
        told, done = replies.script
        return ((), decode_news(told, since)) if done else self._void_among_intents(keys, since)

    async def _void_among_intents(self, keys: Sequence[str], since: Cursor) -> tuple[Sequence[None], News]:
        return await self._invalidations((Invalidation(keys=tuple(keys)),), since, alone=True)

    async def plant(self, instance: str, owner: Owner, keys: Sequence[str], since: Cursor) -> Planted:
        """See `Partition`."""
        request = (instance, owner_of(owner), tuple(keys))
        told, refused = await self._caller.ask("plant", request, since, repeats=True)
        return Planted(decode_news(told, since), Refusal.LEASE_LOST if refused else None)

    # -- inspection

    async def cache_stats(self) -> CacheStats:
        """See `Partition`. Of many entries or tokens a thousand are looked at, and the rest is reckoned from them."""
        _, counts = await self._caller.ask("cache_stats", None, repeats=True)
        return CacheStats(
            **dict(
                zip(("entries", "bytes", "intents", "tokens", "position", "log_length", "epoch"), counts, strict=True)
            )
        )

    async def intents(self, key: str) -> tuple[Intent, ...]:
        """See `Partition`."""
        _, shown = await self._caller.ask("intents", key, repeats=True)
        return intents_of(shown)


class _Writing:
    """Hears what became of values that were written (an `Answer`): `again` is called if one was refused."""

    def __init__(self, again: Callable[[], None]) -> None:
        self._again = again

    def done(self) -> bool:
        return False

    def set_result(self, told: Any, /) -> None:
        replies: list[Any] = told if told.__class__ is list else [told]
        if any(isinstance(reply, ReplyError) for reply in replies):
            self._again()

    def set_exception(self, error: Exception, /) -> None:
        """The connection is lost: its entry is without a value, and so a miss."""


def value_of(row: bytes, value: bytes | None) -> bytes | None:
    """Return an entry's value, given its row and what lies in the value's key; None if that is another, or nothing."""
    _, _, _, size, name = _ROW.unpack_from(row)
    if not size:
        return b""
    if value is None or len(value) != size + 8 or not value.startswith(name):
        return None
    return value[8:]


def _has_value(row: bytes) -> bool:
    """Say whether there should be a value in a key of its own. The row that lets the hash exist is empty."""
    return len(row) > _ROW.size and _ROW.unpack_from(row)[3] > 0


def entry_of(expires_in_us: int, row: bytes, value: bytes) -> Entry | None:
    """Read an entry; None: it was written over."""
    try:
        stamp, position, _, _, _ = _ROW.unpack_from(row)
        checksum, version, _, tags, note = _decode(memoryview(row)[_ROW.size :])
        known = version_of(version)
        return Entry(value, int(position), int(stamp, 16), checksum, expires_in_us, tags, known, note.encode("latin-1"))
    except DAMAGED:
        return None


def _look_of(look: list[Any], value: bytes | None) -> Look | bytes:
    """Read a look; of a hit whose value is not there it returns the row."""
    match look:
        case [1, expires_in_us, row, token, wait_us, floor]:
            found = value_of(row, value)
            entry = None if found is None else entry_of(expires_in_us, row, found)
            if entry is not None:
                number = _number_of(token)
                return Hit(entry, 0, wait_us, number) if wait_us else Hit(entry, number)
            return Miss(int(token, 16), version_of(floor)) if token and not wait_us else row
        case [0, token, floor]:
            return Miss(int(token, 16), version_of(floor))
        case [2, wait_us, floor, token]:
            return Busy(wait_us, version_of(floor), _number_of(token))
        case [_, floor]:
            return Standing(version_of(floor))
        case _:
            raise AssertionError(look)


def _number_of(token: str) -> int:
    return int(token, 16) if token else 0


def _void_of(keys: Sequence[str]) -> Call:
    return Call(tuple(keys))


def _invalidation_of(several: Sequence[Invalidation]) -> Call:
    fields = (tuple(chain.from_iterable(of)) for of in zip(*map(astuple, several), strict=True))
    return Call(names_of(Invalidation(*fields)))


def _invalidated(_: Sequence[Invalidation], since: Cursor, replies: Replies) -> tuple[Sequence[None], News]:
    (told,) = replies.script
    return (), decode_news(told, since)


def _stamp(stamp: int) -> str:
    return hex_of(stamp) if stamp else ""


def _flat(tokens: Sequence[tuple[str, int]]) -> list[str]:
    return [word for key, token in tokens for word in (key, hex_of(token))]
