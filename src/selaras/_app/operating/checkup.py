"""Looks at a store from outside, without opening or changing it."""

from __future__ import annotations

import asyncio
import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from selaras._app.setup.opening import Address, driver_of, said_partitions
from selaras._app.setup.settings import Settings
from selaras._contracts.clock import Clock
from selaras._contracts.finding import Finding, doubtful, fine
from selaras._stores.memcached.address import address_of as shelf_address_of
from selaras._stores.memcached.checkup import check_up as check_up_memcached
from selaras._stores.sqlite.checkup import check_up as check_up_sqlite
from selaras._worker.system import clock_origin

if TYPE_CHECKING:
    from selaras._stores.redis.address import RedisAddress


async def check_up(address: Address, clock: Clock, settings: Settings) -> tuple[Finding, ...]:
    """Look at the store of an address, whatever state it is in, and at the host tier."""
    found = await _check_up_store(address, clock, settings)
    if not settings.host_tier:
        return found
    if not clock_origin():
        remedy = "take host_tier= out: it is for Linux, where processes can tell that they share one clock"
        return (*found, doubtful("host tier", "", "left out: this system tells no id of its boot", remedy))
    shelf = shelf_address_of(settings.host_tier)
    return (*found, *await check_up_memcached(shelf, patience_us=settings.host_timeout, clock=clock))


async def _check_up_store(address: Address, clock: Clock, settings: Settings) -> tuple[Finding, ...]:
    versions = f"selaras {version('selaras')}, Python {platform.python_version()}"
    first = fine("versions", "", versions)
    said = said_partitions(address, settings.said_partitions)
    if address.redis is not None:
        return (first, *await _check_up_redis(replace(address.redis, partitions=said), clock))
    return (first, *await asyncio.to_thread(lambda: tuple(check_up_sqlite(Path(address.path), said))))


async def _check_up_redis(address: RedisAddress, clock: Clock) -> list[Finding]:
    with driver_of(address):
        from selaras._stores.redis.checkup import check_up as check_up_redis
    return [finding async for finding in check_up_redis(address, clock)]
