"""The whole product on real servers: by the newer protocol, under odd names, on a server that is full or has just been started."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import pytest
from tests.app.work import working
from tests.redis.servers import RedisServer, until
from tests.redis.test_rights import all_there_is_to_do

from selaras import JobFailed, Read, Selaras, StoreUnavailable
from selaras._stores.redis.address import Names, redis_address

ODD = "{a}% *[?]\\\n\u00e9:&"


@pytest.mark.parametrize("query", ["protocol=3", f"prefix={quote(ODD, safe='')}"], ids=["RESP3", "an odd prefix"])
async def test_all_there_is_to_do_is_done(redis_server: RedisServer, query: str) -> None:
    url = redis_server.url_for(query=query)

    await all_there_is_to_do(url)

    stem = Names(redis_address(url).prefix).stem(0)
    keys = redis_server.call("KEYS", "*")
    assert isinstance(keys, list)
    assert len(keys) > 20
    assert {str(key)[: len(stem)] for key in keys} == {stem}


async def test_a_full_server_lets_what_runs_end_and_goes_on_when_there_is_room() -> None:
    with RedisServer() as server:
        app = Selaras(server.url, backoff=0.1, backoff_most=0.1)
        rows, started, go = dict.fromkeys(range(5), 0), list[int](), asyncio.Event()

        @app.cached(ttl=100)
        async def product(id: int) -> int:
            return rows.get(id, 0)

        @app.task(writes=product)
        async def bump(id: int, *, before: int = Read(product)) -> int:
            started.append(id)
            await go.wait()
            rows[id] = before + 1
            await product.key(id).put(rows[id])
            return rows[id]

        @app.task(retries=2)
        async def fails() -> None:
            raise ValueError("as ever")

        async with app, working(app):
            running = [await bump.enqueue(id) for id in rows]
            failing = await fails.options(delay=0.5).enqueue()
            while len(started) < len(rows):
                await asyncio.sleep(0.01)

            server.call("CONFIG", "SET", "maxmemory", 1)  # less than it has
            with pytest.raises(StoreUnavailable, match=r"is out of memory .'enqueue'.*nothing was done"):
                await bump.enqueue(0)
            with pytest.raises(StoreUnavailable, match="is out of memory"):
                async with product.key(0).writing():
                    pass
            assert await product(77) == 0
            await product.key(77).invalidate()
            go.set()
            assert [await job.result(timeout=20) for job in running] == [1] * len(rows)
            with pytest.raises(JobFailed, match="as ever"):
                await failing.result(timeout=20)
            assert (await failing.info()).attempt == 3

            server.call("CONFIG", "SET", "maxmemory", 0)
            assert await (await bump.enqueue(0)).result(timeout=20) == 2
            assert await app.read_many(product.key(id) for id in rows) == [2, 1, 1, 1, 1]


async def test_a_server_that_loads_what_it_kept_is_waited_for_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer(appendonly="yes", key_load_delay=500, loading_process_events_interval_bytes=1024) as server:
        app = Selaras(server.url)

        @app.task
        async def work() -> int:
            return 7

        async with app:
            job = await work.enqueue()
        server.call("DEBUG", "POPULATE", 5_000, "filler", 200)
        server.call("BGREWRITEAOF")
        until(lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0", "the log is written anew")
        server.stop()
        server.start(wait=False)
        until(lambda: server.info("persistence")["loading"] == "1", "it loads")

        async with app:
            await app.worker(burst=True).run()
            assert await job.result() == 7
        assert "is loading its data" in caplog.text
