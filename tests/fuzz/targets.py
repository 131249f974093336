"""Everything that reads what it did not write, each as one function of bytes or text, and what it may raise.

The properties beside this file give them what hypothesis makes up; `python -m tests.fuzz.hunt TARGET`, with atheris
installed, what covers more of their code, beginning with the seeds kept here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from struct import Struct
from typing import Any, Final

import click
import msgspec

from selaras import ConfigurationError, StoreUnavailable
from selaras._app.jobs.meta import decode_meta
from selaras._app.setup.opening import address_of
from selaras._app.setup.origin import Origin
from selaras._app.setup.settings import settings_from
from selaras._cache.floors import Floors
from selaras._cache.follower import Follower
from selaras._cache.local import LocalTier
from selaras._core.cache.consistency import ONE_SAME, Ledger, ledger_bytes, ledger_of
from selaras._core.cache.hosted import Hosted, hosted_bytes, hosted_of
from selaras._core.cache.key import checked_name
from selaras._core.cache.lifetimes import Note, Past, note_bytes, note_of
from selaras._core.cache.lineage import Happening, Kept, What, directory_bytes, directory_of, page_bytes, page_of
from selaras._core.cache.packing import LargerThanKept, packed, unpacked
from selaras._core.codec import CorruptBytes, codec_of, peek
from selaras._core.durations import duration_us
from selaras._core.jobs.failure import Failure
from selaras._core.jobs.job import NewJob
from selaras._core.positions import Cursor, Event, News, Scope
from selaras._core.signature import Signature, Unbindable
from selaras._stores.memcached.address import address_of as memcached_of
from selaras._stores.memcached.line import Classic, Line, Meta, Tongue
from selaras._stores.redis.address import Endpoint, masked
from selaras._stores.redis.cells import decode_news, decode_pushed, entry_of
from selaras._stores.redis.packing import Packing
from selaras._stores.redis.records import DAMAGED
from selaras._stores.redis.topology import redirection
from selaras._stores.redis.wire import Wire, WireLost
from selaras._stores.sqlite.cells import tags_of
from selaras._stores.sqlite.connection import UNREADABLE
from selaras._stores.sqlite.rows import rest_kept, waiting_of
from selaras.cli.arguments import read_arguments
from selaras.cli.durations import duration, level


@dataclass
class Product:
    id: int
    price: Decimal
    tags: list[str]
    since: datetime | None = None


def body(id: int, name: str = "", *, product: Product | None = None, more: Any = None) -> None:
    """A task's body."""


SIGNATURE: Final = Signature(body, frozenset(), frozenset())
ORIGIN: Final = Origin("shop", __file__)
_TYPES: Final[Mapping[str, Any]] = {"id": int, "name": str, "product": Product | None, "more": Any}


@dataclass(frozen=True)
class Target:
    """`read` may raise what is `refused`, and nothing else."""

    read: Callable[[Any], object]
    refused: tuple[type[Exception], ...]
    seeds: tuple[Any, ...]


pack_doubles: Final = Struct(">dd").pack
PACKING: Final = Packing(0, 4)
_JOB: Final = NewJob(id="j", task="t", payload=b"\x01p", meta=b"m", line="l", writes=("product:1",), priority=2)
_EVENT: Final = pack_doubles(1, 2) + b"0k"
_LATER: Final = pack_doubles(2, 3) + b"1tag"
_ENTRY: Final = b"%016x" % 5 + pack_doubles(3, 0)
_TAIL: Final = b"\0\0\0\x01" + bytes(8) + msgspec.msgpack.encode((7, f"{1 << 63:016x}", "product", ("a",), "n"))
_BEFORE: Final = bytes(25)  # what a script writes in front of a job's bytes


def follow(data: bytes) -> None:
    """Hear four bytes a reply, in any order and of any log. Raises AssertionError where something goes back."""
    instants = iter(range(1, 1 << 30))
    follower = Follower(0, _local(), lambda: next(instants))
    for step in range(0, len(data) - 3, 4):
        position, what, epoch, sent = data[step : step + 4]
        events = tuple(
            Event(one, Scope(one % 3), f"k{one % 5}") for one in range(max(0, position - what % 8), position + 1) if one
        )
        reset = what > 200
        news = News(Cursor(position, position), () if reset else events, reset=reset, epoch=epoch // 64)
        before = follower.epoch, follower.applied.position, follower.confirmed_ns
        trusted = follower.heard(news, sent)
        after = follower.epoch, follower.applied.position, follower.confirmed_ns
        assert after[0] >= before[0]
        assert after[2] >= before[2]
        assert after[1] >= before[1] or after[0] > before[0] or reset
        assert trusted or after == before
        assert follower.untouched("k1", follower.applied.position, "f", ())


def speak(tongue: Tongue, data: bytes) -> None:
    """Hear a memcached in two pieces: its greeting first, where the first byte is odd. Everybody who asked is told something."""
    loop = asyncio.new_event_loop()
    told: list[object] = []
    line = Line(loop, patience_s=60, lost=lambda _: None)
    line.connection_made(_Closed())
    line._tongue = tongue
    if data[:1] > b"\x7f":
        line._greeting = loop.create_future()
        line._greeting.add_done_callback(lambda greeting: greeting.exception())
    else:
        line._said.append(b"")  # nobody flushes here
        for _ in range(3):
            line.ask(b"n", told.append)
    half = 1 + len(data) // 2
    line.data_received(data[1:half])
    line.data_received(data[half:])
    line.abort("over")
    loop.close()
    assert len(told) == (0 if data[:1] > b"\x7f" else 3)


def answer(data: bytes) -> None:
    """Hear a Redis server in two pieces, with three who wait, one of them for two replies. Everybody is told something."""
    loop = asyncio.new_event_loop()
    wire = Wire(loop, on_lost=lambda _: None, on_push=_said if data[:1] > b"\x7f" else None)
    wire.connection_made(_Closed())
    asked = [wire.send(b"", wanted, 60) for wanted in (1, 2, 1)]
    half = 1 + len(data) // 2
    wire.data_received(data[1:half])
    if wire.open:
        wire.data_received(data[half:])
    wire.abort("over")
    for one in asked:
        assert isinstance(one.exception(), WireLost | None)
    assert wire.reason
    loop.close()


def _said(push: list[Any]) -> None:
    """Hear what a server says unasked."""


def tell_log(data: bytes) -> None:
    """Read a log's events, each behind a byte of length, from one at 1 on. Raises AssertionError where one cannot be of it."""
    events, at = [_EVENT], 0
    while at < len(data):
        events.append(data[at + 1 : at + 1 + data[at]])
        at += 1 + data[at]
    news = decode_news([9, 4, 1, 0, events], Cursor(1, 2))
    assert news.tail == Cursor(9, 4)
    assert all(1 < event.position <= 9 for event in news.events)


class _Closed(asyncio.Transport):
    def abort(self) -> None:
        """See asyncio."""


def _local() -> LocalTier:
    return LocalTier(bytes_most=1 << 20, entries_most=100, floors=Floors(1_000_000_000), instant=lambda: 0)


BYTES: Final[Mapping[str, Target]] = {
    "value": Target(
        codec_of(Product).decode, (CorruptBytes,), (codec_of(Product).encode(Product(1, Decimal(2), ["a"])),)
    ),
    "anything": Target(codec_of(Any).decode, (CorruptBytes,), (codec_of(Any).encode({"a": [1, {2}, (3,)]}),)),
    "sealed value": Target(
        codec_of(Product, sealed=True).decode,
        (CorruptBytes,),
        (codec_of(Product, sealed=True).encode(Product(1, Decimal(2), ["a"])),),
    ),
    "peek": Target(peek, (CorruptBytes,), (codec_of(Any).encode({"a": 1}),)),
    "payload": Target(SIGNATURE.decode, (CorruptBytes, Unbindable), (SIGNATURE.encode(SIGNATURE.bind((1, "x"), {})),)),
    "meta": Target(decode_meta, (ValueError,), (b"\x81\xa7retries\x03",)),
    "failure": Target(Failure.decode, (), (Failure("ValueError", "no").encode(),)),
    "job in Redis": Target(lambda data: PACKING.job_of("j", data), DAMAGED, (PACKING.blob_of(_JOB),)),
    "job's record in Redis": Target(
        lambda data: PACKING.record_of("j", _BEFORE + data, None), DAMAGED, (PACKING.blob_of(_JOB) + bytes(2),)
    ),
    "effect in Redis": Target(
        PACKING.effect_of,
        DAMAGED,
        tuple(b"%016x" % 1 + msgspec.msgpack.encode(effect) for effect in ((1, "free_unique", "u", "j"),)),
    ),
    "entry in Redis": Target(lambda data: entry_of(0, _ENTRY + data, b"v"), (), (_TAIL,)),
    "log in Redis": Target(tell_log, (), (bytes((len(_LATER),)) + _LATER,)),
    "news that Redis pushes": Target(
        decode_pushed, (), (pack_doubles(1, 2) + Struct(">dI").pack(0, len(_LATER)) + _LATER,)
    ),
    "Redis' answer": Target(
        answer,
        (),
        (
            b"\0+OK\r\n*2\r\n$1\r\na\r\n:5\r\n-ERR no\r\n$-1\r\n",
            b"\xff>3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n+PONG\r\n",
        ),
    ),
    "more of a job in SQLite": Target(
        lambda data: (rest_kept(data), waiting_of("j", "t", b"", b"", data)),
        (),
        (msgspec.msgpack.encode(((0, False, ("k",)), [], {0: 3})),),
    ),
    "tags in SQLite": Target(tags_of, UNREADABLE, (msgspec.msgpack.encode(("a", "b")),)),
    "entry of the host tier": Target(
        hosted_of, (), (hosted_bytes(Hosted("product:1", 1, 2, 3, 4, 5, ("a", "b"), b"n", b"v")),)
    ),
    "note": Target(note_of, (), (note_bytes(Note(past=Past(1, 2))),)),
    "ledger of audits": Target(ledger_of, (), (ledger_bytes(Ledger({"a\x1fb\x1fc": ONE_SAME})),)),
    "page of lineage": Target(page_of, (), (page_bytes([Happening(1, What.READ, "k", position=2)]),)),
    "directory of lineage": Target(directory_of, (), (directory_bytes([Kept("p", 2, 3)]),)),
    "packed value": Target(
        lambda data: unpacked(data, 1 << 20), (CorruptBytes, LargerThanKept), (packed(bytes(5_000), 100),)
    ),
    "memcached's answer": Target(
        lambda data: speak(Meta(), data),
        (),
        (
            b"\0EN\r\nVA 3 c7\r\nE\r\n\r\nVA 0 c8\r\n\r\n",
            b"\xffMN\r\nVERSION 1.6.18\r\nSTAT item_size_max 1048576\r\nEND\r\n",
        ),
    ),
    "memcached's classic answer": Target(
        lambda data: speak(Classic(), data),
        (),
        (b"\0END\r\nVALUE n 0 3 7\r\nE\r\n\r\nEND\r\nVALUE n 0 0 8\r\n\r\nEND\r\n",),
    ),
    "log": Target(follow, (), (bytes((1, 1, 0, 1, 3, 2, 0, 2, 2, 255, 64, 3)),)),
}

TEXTS: Final[Mapping[str, Target]] = {
    "duration": Target(duration_us, (ConfigurationError,), ("1h30m", "250ms", "1e3")),
    "typed duration": Target(duration, (click.ClickException, ValueError), ("10m",)),
    "typed level": Target(level, (click.ClickException, ValueError), ("strict", "1.5")),
    "name": Target(lambda text: checked_name(text, what="name"), (ConfigurationError,), ("product",)),
    "url": Target(
        lambda text: address_of(text, "", ORIGIN),
        (ConfigurationError,),
        ("sqlite:///x.db?synchronous=full", "memory://"),
    ),
    "server's url": Target(
        lambda text: address_of(text, "", ORIGIN),
        (ConfigurationError,),
        ("redis://u:p@h:1/0?prefix=x", "redis+sentinel://a,b:1/m/0", "redis+cluster://[::1]:7000?partitions=4"),
    ),
    "memcached's url": Target(
        memcached_of, (ConfigurationError,), ("unix:///run/memcached.sock", "memcached://127.0.0.1:11211")
    ),
    "masked url": Target(masked, (), ("redis://u:p@h:1/0", "redis://:p@/w@h")),
    "redirection": Target(
        lambda text: redirection(f"MOVED 1 {text}", Endpoint("h", 1)), (StoreUnavailable,), ("h:1", ":7000", "[::1]:7")
    ),
    "setting": Target(
        lambda text: settings_from({}, {"SELARAS_LEASE": text, "SELARAS_LOCAL_BYTES": text}),
        (ConfigurationError,),
        ("15", "60"),
    ),
    "typed arguments": Target(
        lambda text: read_arguments(body, _TYPES, text.split("\n")),
        (click.ClickException,),
        ('1\nx\nproduct={"id": 1, "price": "2", "tags": []}', "id=3\nmore=[1, 2]"),
    ),
}


def fuzzed(target: Target, data: Any) -> None:
    """Read it. Raises what the target may not raise."""
    try:
        target.read(data)
    except target.refused:
        pass


def text_of(data: bytes) -> str:
    """Return bytes as any text that a shell or a file could hold."""
    return data.decode("utf-8", "surrogateescape")
