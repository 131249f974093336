"""A program whose every type both checkers must see as written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from selaras import (
    Binding,
    Cached,
    Call,
    Job,
    JobInfo,
    Key,
    Lock,
    Read,
    Reading,
    Resource,
    Secret,
    Selaras,
    Tag,
    TagBinding,
    Task,
    Whole,
    Writing,
)
from selaras.blocking import Key as BlockingKey

app = Selaras("memory://")


@dataclass(frozen=True)
class Product:
    id: int
    price: float


class Pool:
    async def execute(self, text: str) -> None: ...


# -- declarations


@app.resource
async def db() -> AsyncIterator[Pool]:
    yield Pool()


@app.resource(scope="job")
def cursor() -> Iterator[str]:
    yield "cursor"


@app.cached(ttl=300, tags=["category:{id}"], fresh="strict")
async def product(id: int, *, region: str = "eu") -> Product:
    return Product(id, 1.0)


@app.cached
def maybe(id: int) -> Product | None:
    return None


@app.cached(ttl=timedelta(minutes=5), ttl_none="10s", version=lambda p: p.id)
async def by_sku(sku: str) -> list[Product]:
    return []


class Shop:
    region = "eu"
    product = product  # a family that is no method is called without its object

    @app.cached(self_key="region", ttl=60)
    async def offer(self, id: int, *, rebate: float = 0) -> Product:
        return Product(id, 1.0 - rebate)


@product.batch
async def load(ids: list[Any]) -> Sequence[Product]:
    return [Product(id, 1.0) for id in ids]


@app.task
async def ping() -> None: ...


@app.task(writes=product, retries=3, timeout=30, backoff="1s")
async def reprice(id: int, factor: float = 1.0, *, p: Product = Read(product)) -> float:
    await (await db()).execute("update")
    return p.price * factor


@app.task(writes=[product, app.tag("category", by="id"), maybe.all()])
async def restock(id: int) -> None: ...


@app.task(lock="mail:{customer}", executor="process")
def mail(customer: int, token: Secret[str] = "none") -> list[str]:
    return [token]


@app.task(writes=[product.by(id="sku")], reads=(maybe.by(id="sku"), by_sku), lock=None)
async def both(sku: int, *, rows: list[Product] = Read(by_sku)) -> None: ...


@app.task
async def notify(price: float, channel: str) -> bool:
    return True


@app.task
async def anything(value: object) -> None: ...


# -- what they are


assert_type(db, Resource[Pool])
assert_type(cursor, Resource[str])
product_fn: Callable[..., Any] = product.fn
some_task: Task[[float, str], bool] = notify
some_family: Cached[[int], Product | None] = maybe
binding: Binding[Product] = product.by(id="sku")
wide: Task[..., object] = reprice


async def use() -> None:
    # cached values
    pending = product(42)
    later: Coroutine[Any, Any, Product] = pending
    assert_type(await later, Product)
    assert_type(await product(42, region="us"), Product)
    assert_type(await maybe(1), Product | None)
    assert_type(await by_sku("a"), list[Product])
    assert_type(await Shop().offer(42, rebate=0.1), Product)
    assert_type(await Shop.offer(Shop(), 42), Product)
    assert_type(Shop().offer.key(42), Key[Product])
    assert_type(await Shop().product(42), Product)
    key = product.key(42)
    assert_type(key, Key[Product])
    assert_type(await key.get(fresh="causal"), Product)
    assert_type(await key.get(0.5), Product)
    assert_type(await key.read(), Reading[Product])
    assert_type((await key.read()).value, Product)
    assert_type(await key.put(Product(1, 2.0)), None)
    assert_type(await app.read_many(product.key(n) for n in range(3)), list[Product])
    assert_type(app.tag("category", 7), Tag)
    assert_type(app.tag("category", by="id"), TagBinding)
    assert_type(product.all(), Whole)
    async with key.writing():
        await key.invalidate()
    async with app.tag("category").writing(), product.all().writing() as scope:
        assert_type(scope, Writing)

    # jobs
    job = await reprice.enqueue(42, 1.1)
    assert_type(job, Job[float])
    assert_type(await job.result(timeout="10s"), float)
    assert_type(await job.info(), JobInfo)
    assert_type(await job.cancel(), bool)
    assert_type(await reprice(42), float)
    assert_type(await mail.enqueue(7, token="x"), Job[list[str]])
    assert_type(await reprice.options(delay=60, priority=5, after=[job, "r-1"]).enqueue(42), Job[float])
    assert_type(reprice.job("r-42"), Job[float])
    assert_type(app.job("r-42"), Job[Any])
    call = reprice.call(42, factor=1.1)
    assert_type(call, Call[float])
    assert_type(await call.enqueue(), Job[float])
    assert_type(call.then(notify, "#ops"), Call[bool])
    assert_type(call.then(notify, channel="#ops").then(anything), Call[None])
    assert_type(call.then(notify.options(priority=1), channel="#ops"), Call[bool])
    assert_type(await app.enqueue_many(reprice.call(i, 1.1) for i in range(3)), list[Job[float]])

    # the rest
    async with app.lock("mail:7", lease=30) as lock:
        assert_type(lock, Lock)
        assert_type(lock.fence, int)
    async with app.lock(key):
        pass
    assert_type(await db(), Pool)
    with db.override(Pool):
        pass

    # twins
    assert_type(product.sync(1), Product)
    assert_type(product.sync.key(1), BlockingKey[Product])
    assert_type(notify.sync(1.0, "x"), bool)
    assert_type(key.sync.get(), Product)
    assert_type(job.sync.result(), float)
    assert_type(call.sync.enqueue().aio, Job[float])
