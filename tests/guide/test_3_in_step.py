"""In step: why the queue and the cache are one product. Read these tests from top to bottom."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from selaras import Job, Read, Selaras, WouldDeadlock, current_job


@dataclass(frozen=True)
class Product:
    """What is cached here."""

    id: int
    price: float


class Shop:
    """An app over a table of prices."""

    def __init__(self) -> None:
        self.table = {42: 10.0}
        self.reads = 0
        self.app = app = Selaras("memory://", backoff=0)

        @app.cached(ttl="1h")
        async def product(id: int) -> Product:
            self.reads += 1
            return Product(id, self.table[id])

        self.product = product


async def test_a_task_says_what_it_writes() -> None:
    shop = Shop()
    product = shop.product

    @shop.app.task(writes=product)  # its parameter `id` is the family's `id`, by name
    async def reprice(id: int, factor: float) -> None:
        shop.table[id] *= factor  # update ... ; that is all: no delete, no publish

    async with shop.app:
        assert (await product(42)).price == 10.0
        job = await reprice.enqueue(42, 2.0)
        await shop.app.worker(burst=True).run()
        await job.result()

        assert (await product(42)).price == 20.0  # whoever was told of the end reads nothing older


async def test_a_body_reads_what_it_has_just_written() -> None:
    shop = Shop()
    product = shop.product

    @shop.app.task(writes=product)
    async def reprice(id: int, price: float) -> float:
        shop.table[id] = price
        return (await product(id)).price

    async with shop.app:
        await product(42)
        job = await reprice.enqueue(42, 7.0)
        await shop.app.worker(burst=True).run()

        assert await job.result() == 7.0


async def test_read_modify_write_without_a_datastore_read() -> None:
    shop = Shop()
    product = shop.product

    @shop.app.task(writes=product)
    async def reprice(id: int, factor: float, *, old: Product = Read(product)) -> float:
        new = Product(id, old.price * factor)  # `old` was read before the body: a hit, although it is written
        shop.table[id] = new.price
        await product.key(id).put(new)  # stored if this attempt succeeds
        return new.price

    async with shop.app:
        await product(42)
        jobs = [await reprice.enqueue(42, 2.0) for _ in range(3)]  # they stand in line: one at a time, in order
        await shop.app.worker(burst=True).run()

        assert [await job.result() for job in jobs] == [20.0, 40.0, 80.0]
        assert (await product(42)).price == 80.0
        assert shop.reads == 1


async def test_jobs_of_one_line_run_one_at_a_time_in_order() -> None:
    app = Selaras("memory://")
    sent: list[int] = []

    @app.task(lock="mail:{customer}")  # order only: it writes nothing that is cached
    async def send(customer: int, number: int) -> None:
        sent.append(number)

    async with app:
        for number in range(5):
            await send.enqueue(7, number)
        async with app.lock("mail:7") as lock:  # code outside of jobs stands in the same line
            assert lock.fence
        await app.worker(burst=True).run()

        assert sent == [0, 1, 2, 3, 4]


async def test_what_a_job_enqueues_waits_for_its_success() -> None:
    app = Selaras("memory://", backoff=0)
    mailed: list[str] = []

    @app.task
    async def mail(text: str) -> None:
        mailed.append(text)

    @app.task
    async def order() -> None:
        await mail.enqueue(f"thank you (attempt {current_job().attempt})")
        if current_job().attempt == 1:
            raise ConnectionError("the commit failed")

    async with app:
        await order.enqueue()
        await app.worker(burst=True).run()
        await app.worker(burst=True).run()

        assert mailed == ["thank you (attempt 2)"]  # once: a retried job does not double its children


async def test_so_waiting_for_a_child_inside_its_job_is_refused() -> None:
    app = Selaras("memory://")

    @app.task
    async def part() -> int:
        return 1

    @app.task(retries=0)
    async def whole() -> str:
        child: Job[int] = await part.enqueue()
        with pytest.raises(WouldDeadlock):
            await child.result()
        at_once = await part.options(now=True).enqueue()
        return f"{await at_once.result()} part"

    async with app:
        job = await whole.enqueue()
        await app.worker(burst=True).run()

        assert await job.result() == "1 part"


async def test_a_task_can_run_here_and_now_under_the_same_rules() -> None:
    shop = Shop()
    product = shop.product

    @shop.app.task(writes=product)
    async def reprice(id: int, price: float) -> float:
        shop.table[id] = price
        return price

    async with shop.app:
        await product(42)
        assert await reprice(42, 5.0) == 5.0  # no worker: here, in line, under its intent
        assert (await product(42)).price == 5.0
        assert await reprice.fn(42, 6.0) == 6.0  # the bare function: nobody is told
