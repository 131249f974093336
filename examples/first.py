"""The first program: a price that a program and its workers agree on.

selaras worker first:app     # in one terminal, in this folder
python first.py              # in another
"""

import asyncio
import sqlite3
from pathlib import Path

from selaras import Selaras

app = Selaras()  # its store: selaras.db, beside this file
db = sqlite3.connect(Path(__file__).with_name("shop.db"), isolation_level=None)
db.execute("create table if not exists product (id integer primary key, price real)")
db.execute("insert or ignore into product values (42, 10.0)")


@app.cached(ttl=300)  # the body is the datastore read: it runs on a miss only
async def price_of(id: int) -> float:
    return float(db.execute("select price from product where id = ?", [id]).fetchone()[0])


@app.task(writes=price_of)  # the line, the write intent and the invalidation follow from this
async def reprice(id: int, price: float) -> float:
    db.execute("update product set price = ? where id = ?", [price, id])
    return await price_of(id)  # what it has just written


async def main() -> None:
    async with app:
        old = await price_of(42)
        print("before:      ", old)
        job = await reprice.enqueue(42, old * 1.25)
        print("the job says:", await job.result(timeout=30))
        print("after:       ", await price_of(42))


if __name__ == "__main__":
    asyncio.run(main())
