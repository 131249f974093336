"""`durability=replicated`: what is answered is on a replica."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

import pytest
from tests.redis.linked import world
from tests.redis.servers import RedisServer

from selaras import NotReplicated, Selaras, StoreUnavailable, Task


@asynccontextmanager
async def noting(within_s: float) -> AsyncIterator[tuple[RedisServer, Selaras, Task[[], None]]]:
    """A server, an app on it, and a task; it waits so long for its replica, which is paused by now."""
    with RedisServer() as server, server.replica() as replica:
        app = Selaras(server.url_for(query=f"durability=replicated&replicated_within={within_s}"))

        @app.task
        async def note() -> None: ...

        async with app, asyncio.timeout(30):
            while server.call("WAIT", 1, 100) != 1:
                pass
            replica.pause()
            yield server, app, note
            replica.resume()


async def test_a_wait_for_replicas_that_was_broken_off_is_not_asked_again_over_another_connection() -> None:
    """A master that finds itself replaced breaks it off; asked anew, where nothing had been written, it was answered at once."""
    async with noting(within_s=10) as (server, _, note):
        enqueueing = asyncio.create_task(note.enqueue())
        async with asyncio.timeout(5):
            while not (
                blocked := re.search(
                    r"^id=(\d+) .* flags=b .* cmd=wait ", str(server.call("CLIENT", "LIST")), re.MULTILINE
                )
            ):
                await asyncio.sleep(0.01)
        server.call("CLIENT", "UNBLOCK", blocked[1], "ERROR")

        with pytest.raises(StoreUnavailable, match=r"no replica had it"):
            await enqueueing


async def test_durable_calls_that_meet_wait_for_replicas_together() -> None:
    """One after another, the tenth had waited ten times as long as it asked for."""
    async with noting(within_s=0.4) as (_, _, note):

        async def waited_s(place: int) -> float:
            await asyncio.sleep(place * 0.07)
            begun = perf_counter()
            with pytest.raises(StoreUnavailable, match=r"was done at .* no replica had it within 400 ms"):
                await note.enqueue()
            return perf_counter() - begun

        async with asyncio.timeout(10):
            waits = await asyncio.gather(*(waited_s(place) for place in range(12)))

    assert max(waits) < 2 * 0.4 + 0.6, "the one under way, its own, and what a busy machine takes"


async def test_a_durable_call_that_brings_its_script_does_not_wait_for_that(redis_server: RedisServer) -> None:
    async with world(redis_server.url_for(query="durability=replicated&replicated_within=0.4")) as there:
        calls = [there.count(replicated=True) for _ in range(3)]
        begun = perf_counter()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        took_s = perf_counter() - begun
        assert all(isinstance(error, StoreUnavailable) for error in ended)
        assert redis_server.call("HGET", there.link.common.names.key(0, "count"), "n") == "3"

    assert took_s < 0.4 + 0.4, "one wait, though the server did not know the script"


async def test_a_scope_that_ended_without_a_replica_says_so_once_and_stands_in_nobodys_way() -> None:
    """Asked to end once more it was refused, and the refusal was taken for a lost lease."""
    async with noting(within_s=0.3) as (_, app, _):
        loads = 0

        @app.cached(ttl=60)
        async def row(ident: int) -> int:
            nonlocal loads
            loads += 1
            return ident

        begun = perf_counter()
        with pytest.raises(NotReplicated, match=r"'settle' was done at .* no replica had it within 300 ms"):
            async with row.key(1).writing():
                pass
        with pytest.raises(ValueError, match="the body's own"):
            async with row.key(1).writing():
                raise ValueError("the body's own")
        async with app.lock("line"):
            pass
        assert perf_counter() - begun < 3 * 0.3 + 1
        assert [await row(1) for _ in range(3)] == [1, 1, 1]
        assert loads == 1
        async with app.lock("line", timeout=0.1):
            pass
