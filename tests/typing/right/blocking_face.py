"""The same program without a loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, assert_type

import selaras
from selaras.blocking import Binding, Call, Job, JobInfo, Key, Lock, Read, Reading, Resource, Selaras, Tag, Task, Worker

app = Selaras("memory://")


@dataclass(frozen=True)
class Product:
    id: int
    price: float


@app.resource
def db() -> Iterator[dict[int, float]]:
    yield {}


@app.cached(ttl=300)
def product(id: int, *, region: str = "eu") -> Product:
    return Product(id, db()[id])


@app.cached
async def slow(id: int) -> str | None:
    return None


@product.batch
def load(ids: list[Any]) -> list[Product]:
    return [Product(id, 1.0) for id in ids]


@app.task(writes=product, reads=[slow], retries=3)
def reprice(id: int, factor: float = 1.0, *, p: Product = Read(product)) -> float:
    return p.price * factor


@app.task(writes=[app.tag("category", by="id"), product.all()])
def restock(id: int) -> None: ...


@app.task(writes=product.by(id="sku"), lock=product.by(id="sku"))
async def asynchronous(sku: int) -> int:
    return sku


@app.task
def notify(price: float, channel: str) -> bool:
    return True


binding: Binding[Product] = product.by(id="sku")
some_task: Task[[float, str], bool] = notify


def use() -> None:
    assert_type(product(42, region="us"), Product)
    assert_type(slow(1), str | None)
    key = product.key(42)
    assert_type(key, Key[Product])
    assert_type(key.get(fresh="strict"), Product)
    assert_type(key.read(), Reading[Product])
    key.put(Product(1, 2.0))
    assert_type(app.read_many([key, product.key(1)]), list[Product])
    assert_type(app.tag("category", 7), Tag)
    with key.writing():
        key.invalidate()
    with app.tag("category").writing(), product.all().writing():
        product.all().invalidate()

    job = reprice.enqueue(42, 1.1)
    assert_type(job, Job[float])
    assert_type(job.result(timeout=10), float)
    assert_type(job.info(), JobInfo)
    assert_type(job.cancel(), bool)
    assert_type(reprice(42), float)
    assert_type(asynchronous(1), int)
    assert_type(reprice.options(delay=60, after=job).enqueue(42), Job[float])
    assert_type(app.job("r-42"), Job[Any])
    call = reprice.call(42, factor=1.1)
    assert_type(call, Call[float])
    assert_type(call.then(notify, "#ops").enqueue(), Job[bool])
    assert_type(call.then(notify.options(priority=1), channel="#ops"), Call[bool])
    assert_type(app.enqueue_many(reprice.call(i, 1.1) for i in range(3)), list[Job[float]])

    with app.lock("mail:7", lease=30) as lock:
        assert_type(lock, Lock)
        assert_type(lock.fence, int)
    assert_type(db, Resource[dict[int, float]])
    assert_type(db(), dict[int, float])
    assert_type(app.worker(burst=True), Worker)

    # twins
    assert_type(app.aio, selaras.Selaras)
    assert_type(job.aio, selaras.Job[float])
    assert_type(key.aio, selaras.Key[Product])
    assert_type(call.aio.sync, Call[float])
    with app as opened:
        assert_type(opened, Selaras)
