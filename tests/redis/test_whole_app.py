"""The whole product on real servers: by the newer protocol, under odd names, on a server that is full or has just been started."""

from __future__ import annotations

import asyncio
from time import perf_counter
from urllib.parse import quote

import pytest
from tests.app.work import working
from tests.redis.servers import RedisServer, until
from tests.redis.test_rights import all_there_is_to_do

from selaras import JobFailed, Read, Selaras, StoreRefused, StoreUnavailable
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


async def test_an_idle_worker_hears_that_everything_was_forgotten() -> None:
    """Its bell was forgotten, too: it slept on until its next heartbeat, and whoever waited was told that there was none."""

    async def echo(number: int) -> int:
        return number

    with RedisServer() as server:
        app, client = Selaras(server.url), Selaras(server.url)
        app.task(echo)
        sent = client.task(echo)
        async with client, working(app):
            assert await (await sent.enqueue(1)).result(timeout=10) == 1
            await asyncio.sleep(0.3)
            server.call("FLUSHALL")
            begun = perf_counter()
            assert await (await sent.enqueue(2)).result(timeout=10) == 2
            assert perf_counter() - begun < 2


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


@pytest.mark.parametrize("away", ["not there", "paused"])
async def test_a_process_that_begins_while_the_server_is_away_answers_reads(
    away: str, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer() as server:
        app = Selaras(server.url, shared_timeout=0.3)
        loads = list[int]()

        @app.cached(ttl=100)
        async def product(id: int) -> int:
            loads.append(id)
            await asyncio.sleep(0.01)
            return id

        if away == "paused":
            server.pause()
        else:
            server.stop()
        try:
            async with app:
                assert await product(1) == 1
                reading = await product.key(1).read()
                assert (reading.value, reading.tier, reading.why) == (1, "loader", "the store does not answer")
                loads.clear()
                assert await asyncio.gather(*[product.key(2).get(fresh="strict") for _ in range(50)]) == [2] * 50
                assert len(loads) <= 2
                assert await app.read_many([product.key(3), product.key(4)]) == [3, 4]
                assert (await app.warm([product.key(5)])).unkept == 1
                with pytest.raises(StoreUnavailable):
                    await product.key(1).invalidate()
                with pytest.raises(StoreUnavailable):
                    async with product.key(1).writing():
                        raise AssertionError("nobody was told of it")

                if away == "paused":
                    server.resume()
                else:
                    server.start()
                while (await product.key(1).read()).tier == "loader":
                    await asyncio.sleep(0.02)
                async with product.key(1).writing():
                    pass
                while not app.process().opened:
                    await asyncio.sleep(0.02)
                assert product.at_hand(3) is None
                assert await product(1) == 1
                assert product.at_hand(1) == (1,)
        finally:
            if away == "paused":
                server.resume()
        said = [record.getMessage() for record in caplog.records if "shared tier" in record.getMessage()]
        assert "does not answer" in said[0]
        assert "answers again" in said[-1]
        assert not app.process().opened


async def test_what_was_closed_while_it_was_being_reached_stays_closed() -> None:
    with RedisServer() as server:
        app = Selaras(server.url, shared_timeout=0.1)

        @app.cached(ttl=100)
        async def product(id: int) -> int:
            return id

        server.pause()
        try:
            assert await product(1) == 1
            process = app.process()
            await app.close()
        finally:
            server.resume()
        await asyncio.sleep(0.3)
        assert not process.opened
        assert await product(1) == 1
        await app.close()


async def test_a_server_that_refuses_us_is_no_server_that_is_away(redis_server: RedisServer) -> None:
    app = Selaras(f"redis://nobody:wrong@127.0.0.1:{redis_server.port}/0")

    @app.cached(ttl=100)
    async def product(id: int) -> int:
        return id

    with pytest.raises(StoreRefused):
        await product(1)
    with pytest.raises(StoreRefused):
        async with app:
            pass
