"""The face of Selaras, by example. Its database is this process's memory, so it runs in one process: see `test_stock.py`."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from selaras import Fail, Read, Retry, Selaras, Tag, current_job

app = Selaras("sqlite:///stock.db")


@dataclass(frozen=True)
class Product:
    id: int
    name: str
    price: float
    category: int


class Shelf(dict[int, Product]):
    """Stands for a database."""


@app.resource  # opened at first need, closed with the process, replaced in tests
async def shelf() -> AsyncIterator[Shelf]:
    yield Shelf({42: Product(42, "kettle", 10.0, 7), 43: Product(43, "teapot", 20.0, 7)})


def tags_of(p: Product | None) -> list[Tag]:
    return [app.tag("category", p.category)] if p else []


@app.cached(ttl="5m", tags=tags_of)
async def product(id: int) -> Product | None:  # None is a value, too
    return (await shelf()).get(id)


@app.task(writes=product, retries=3, timeout=30)
async def discount(id: int, percent: float, *, p: Product | None = Read(product)) -> float:
    if p is None:  # read before the body: warm, with the whole batch, and a hit although this job writes it
        raise Fail(f"no product {id}")
    changed = replace(p, price=p.price * (1 - percent / 100))
    (await shelf())[id] = changed  # a real one says: ... where fence <= :fence, with current_job().fence
    await product.key(id).put(changed)  # stored when the job succeeds, dropped when it does not
    await announce.enqueue(7, f"{p.name} now costs {changed.price:.2f}")  # released with its success, too
    return changed.price


@app.task(lock="mail:{customer}")  # order only: one at a time for a customer, as they were enqueued
async def announce(customer: int, text: str) -> None:
    if not text and current_job().attempt == 1:
        raise Retry(delay=5)
    print(f"to customer {customer}: {text}")


@app.task
def receipt(price: float, customer: int) -> str:  # a plain function runs in a thread
    return f"customer {customer}: {price:.2f}"


async def main() -> None:
    print(await product(42))  # from this process's memory, the store, or the body above
    print(await product.key(42).get(fresh="strict"))  # as of now: one small look, the value still from memory
    print(await app.read_many(product.key(i) for i in (42, 43, 44)))  # one trip
    reading = await product.key(42).read()
    print(reading.tier, reading.age, reading.why)

    job = await discount.enqueue(42, 10)  # checked against the signature, here
    print(await job.result(timeout="30s"), (await job.info()).state)
    await discount.options(delay="1m", priority=5, unique="discount:43").enqueue(43, 5)
    await app.enqueue_many(discount.call(i, 1) for i in (42, 43))
    last = await discount.call(42, 10).then(receipt, customer=7).enqueue()  # its value is receipt's first argument
    print(await last.result(timeout="30s"))

    async with product.key(43).writing():  # a write outside of jobs: around the transaction
        (await shelf()).pop(43, None)
    await app.tag("category", 7).invalidate()
    async with app.lock("mail:7") as lock:  # the line that jobs stand in, too
        print(lock.fence > 0)
