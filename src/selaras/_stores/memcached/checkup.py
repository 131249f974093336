"""Looks at the host tier's memcached as a physician would: changes nothing of what it holds, and says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from selaras._contracts.clock import Clock
from selaras._contracts.finding import Finding, doubtful, fine
from selaras._contracts.shelf import Found, ShelfDown
from selaras._stores.memcached.address import Address
from selaras._stores.memcached.shelf import MemcachedShelf

_ABOUT: Final = "host tier"
_PATIENCE_S: Final = 2.0
_LOOKS: Final = 50
_LOOPBACK: Final = ("localhost", "127.", "::1")
_FULL_SHARE: Final = 0.9
_MIB: Final = 1 << 20
_NAME: Final = b"selaras:doctor"
"""A name that no value has."""


async def check_up(where: Address, *, patience_us: int, clock: Clock) -> tuple[Finding, ...]:
    """Look at a memcached, whatever state it is in. What is wrong with it hurts nobody: all of it is a warning at most."""
    findings = _place(where)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            stats = await _stats(where)
    except (OSError, TimeoutError) as error:
        why = str(error) or f"no answer within {_PATIENCE_S:g} s"
        remedy = "start it, or take host_tier= out: until then reads do without it"
        return (*findings, doubtful(_ABOUT, where.shown, f"it does not answer: {why}", remedy))
    version = stats.get("version", "?")
    findings.append(fine(_ABOUT, where.shown, f"memcached {version}, {stats.get('curr_items', '?')} items"))
    return (*findings, _room(where, stats), await _speed(where, patience_us, clock))


def _place(where: Address) -> list[Finding]:
    if where.path or where.host.startswith(_LOOPBACK):
        return []
    remedy = "give each machine one of its own: values of another machine are never served, and each look is a trip"
    return [doubtful(_ABOUT, where.shown, f"{where.host} may be another machine", remedy)]


def _room(where: Address, stats: dict[str, str]) -> Finding:
    held, most, evicted = (int(stats.get(name, 0)) for name in ("bytes", "limit_maxbytes", "evictions"))
    found = f"{held / _MIB:.1f} of {most / _MIB:.0f} MiB, {evicted:,} evicted since its start"
    if evicted and held > most * _FULL_SHARE:
        remedy = "give it more memory (-m), if its hits are too few: what does not fit is asked of the shared tier"
        return doubtful(_ABOUT, where.shown, found, remedy, bytes=held, bytes_most=most, evictions=evicted)
    return fine(_ABOUT, where.shown, found, bytes=held, bytes_most=most, evictions=evicted)


async def _speed(where: Address, patience_us: int, clock: Clock) -> Finding:
    shelf = MemcachedShelf(where, patience_us=round(_PATIENCE_S * 1_000_000))
    try:
        took_us = [await _look(shelf, clock) for _ in range(_LOOKS)]
    finally:
        await shelf.close()
    answered = sorted(us for us in took_us if us is not None)
    if len(answered) < _LOOKS:
        return doubtful(_ABOUT, where.shown, f"{_LOOKS - len(answered)} of {_LOOKS} looks failed", "see its log")
    median, slowest = answered[len(answered) // 2], answered[-1]
    found = f"a look takes {median} us, the slowest of {_LOOKS} took {slowest}"
    if median * 2 > patience_us:
        remedy = f"raise host_timeout=, which is {patience_us} us, or take host_tier= out"
        return doubtful(_ABOUT, where.shown, found, remedy, median_us=median, slowest_us=slowest)
    return fine(_ABOUT, where.shown, found, median_us=median, slowest_us=slowest)


async def _look(shelf: MemcachedShelf, clock: Clock) -> int | None:
    told: asyncio.Future[Found | ShelfDown | None] = asyncio.get_running_loop().create_future()
    began = clock.instant_ns()
    shelf.ask(_NAME, told.set_result)
    return None if isinstance(await told, ShelfDown) else (clock.instant_ns() - began) // 1_000


async def _stats(where: Address) -> dict[str, str]:
    if where.path:
        reader, writer = await asyncio.open_unix_connection(where.path)
    else:
        reader, writer = await asyncio.open_connection(where.host, where.port)
    try:
        writer.write(b"stats\r\n")
        return _facts((await reader.readuntil(b"END\r\n")).decode("ascii", "replace").split("\r\n"))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise OSError(f"what answers is no memcached ({error})") from error
    finally:
        writer.close()


def _facts(lines: Sequence[str]) -> dict[str, str]:
    found = (line.split(" ", 2) for line in lines)
    return {words[1]: words[2] for words in found if len(words) == 3 and words[0] == "STAT"}
