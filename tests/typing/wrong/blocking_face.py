"""Mistakes of a program without a loop; told as those with one."""

from __future__ import annotations

from dataclasses import dataclass

import selaras
from selaras.blocking import Read, Selaras

app = Selaras("memory://")
other = selaras.Selaras("memory://")


@dataclass(frozen=True)
class Product:
    id: int
    price: float


@app.cached(ttl=300)
def product(id: int) -> Product:
    return Product(id, 1.0)


@app.task(writes=product)
def reprice(id: int, factor: float = 1.0, *, p: Product = Read(product)) -> float:
    return p.price * factor


@other.cached
async def elsewhere(id: int) -> Product:
    return Product(id, 1.0)


# mypy says: No overload variant of "task" of "BlockingSelaras" matches argument type "Cached[[int], Product]"
# pyright says: "Cached[(id: int), Product]" is not assignable to "BlockingCached[..., Any]"
app.task(writes=elsewhere)


def use() -> None:
    # mypy says: Argument 1 to "enqueue" of "BlockingTask" has incompatible type "str"; expected "int"
    # pyright says: "Literal['42']" is not assignable to "int"
    reprice.enqueue("42")

    # mypy says: Unexpected keyword argument "delay" for "enqueue" of "BlockingTask"
    # pyright says: No parameter named "delay"
    reprice.enqueue(42, delay=60)

    # mypy says: Incompatible types in assignment (expression has type "float", variable has type "str")
    # pyright says: "float" is not assignable to "str"
    text: str = reprice.enqueue(42).result()

    # mypy says: Argument 1 to "__call__" of "BlockingCached" has incompatible type "str"; expected "int"
    # pyright says: "Literal['42']" is not assignable to "int"
    product("42")

    # mypy says: Argument 1 to "put" of "BlockingKey" has incompatible type "float"; expected "Product"
    # pyright says: "float" is not assignable to "Product"
    product.key(42).put(1.0)

    # mypy says: Argument 1 to "then" of "BlockingCall" has incompatible type "BlockingTask[[int, float, DefaultNamedArg(Product, 'p')], float]"
    # pyright says: is not assignable to
    reprice.call(42).then(reprice)

    # mypy says: Argument "after" to "options" of "BlockingTask" has incompatible type "int"
    # pyright says: "Literal[3]" is not assignable to
    reprice.options(after=3)

    print(text)
