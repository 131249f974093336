"""Every mistake here must be told, by both checkers, in the words that stand above it."""

from __future__ import annotations

from dataclasses import dataclass

from selaras import Key, Read, Selaras

app = Selaras("memory://")


@dataclass(frozen=True)
class Product:
    id: int
    price: float


@app.cached(ttl=300)
async def product(id: int) -> Product:
    return Product(id, 1.0)


@app.task(writes=product)
async def reprice(id: int, factor: float = 1.0, *, p: Product = Read(product)) -> float:
    return p.price * factor


@app.task
async def notify(price: str, channel: str) -> bool:
    return True


# -- declarations


@app.task
# mypy says: Incompatible default for parameter "p" (default has type "Product", parameter has type "str")
# pyright says: "Product" is not assignable to "str"
async def misread(id: int, *, p: str = Read(product)) -> None: ...


# mypy says: No overload variant of "task" of "Selaras" matches argument type "int"
# pyright says: "Literal[3]" is not assignable to "Cached[..., Any]"
app.task(writes=3)

# mypy says: No overload variant of "tag" of "Selaras" matches argument types "str", "int", "str"
# pyright says: No overloads for "tag" match
app.tag("category", 7, by="id")

# mypy says: No overload variant of "task" of "Selaras" matches argument type "Whole"
# pyright says: "Whole" is not assignable to "Cached[..., Any]"
app.task(reads=product.all())

# mypy says: "TagBinding" has no attribute "invalidate"
# pyright says: Cannot access attribute "invalidate" for class "TagBinding"
app.tag("category", by="id").invalidate()

# mypy says: No overload variant of "task" of "Selaras" matches argument types "int", "str"
# pyright says: "Literal['thread']" is not assignable to type "Literal['process']"
app.task(retries=3, executor="thread")

# mypy says: No overload variant of "cached" of "Selaras" matches argument type "str"
# pyright says: "Literal['never']" is not assignable to
app.cached(during_write="never")

# mypy says: Unexpected keyword argument "retrys" for "Selaras"
# pyright says: No parameter named "retrys"
Selaras("memory://", retrys=3)


async def use() -> None:
    # -- arguments of a task

    # mypy says: Argument 1 to "enqueue" of "Task" has incompatible type "str"; expected "int"
    # pyright says: "Literal['42']" is not assignable to "int"
    await reprice.enqueue("42", 1.1)

    # mypy says: Missing positional argument "id" in call to "enqueue" of "Task"
    # pyright says: Argument missing for parameter "id"
    await reprice.enqueue()

    # mypy says: Unexpected keyword argument "faktor" for "enqueue" of "Task"
    # pyright says: No parameter named "faktor"
    await reprice.enqueue(42, faktor=1.1)

    # mypy says: Unexpected keyword argument "delay" for "enqueue" of "Task"
    # pyright says: No parameter named "delay"
    await reprice.enqueue(42, delay=60)

    # mypy says: Too many positional arguments for "call" of "Task"
    # pyright says: Expected 2 positional arguments
    reprice.call(42, 1.1, 3)

    # mypy says: Argument 1 to "__call__" of "Task" has incompatible type "None"; expected "int"
    # pyright says: "None" is not assignable to "int"
    await reprice(None)

    # -- options

    # mypy says: Unexpected keyword argument "prio" for "options" of "Task"
    # pyright says: No parameter named "prio"
    reprice.options(prio=5)

    # mypy says: Argument "at" to "options" of "Task" has incompatible type "str"; expected "datetime | None"
    # pyright says: "Literal['tomorrow']" is not assignable to "datetime"
    reprice.options(at="tomorrow")

    # mypy says: Argument "on_conflict" to "options" of "Task" has incompatible type "Literal['drop']"; expected "Literal['keep', 'replace']"
    # pyright says: "Literal['drop']" is not assignable to type "Literal['keep']"
    reprice.options(on_conflict="drop")

    # mypy says: Argument 1 to "enqueue" of "Prepared" has incompatible type "str"; expected "int"
    # pyright says: "Literal['42']" is not assignable to "int"
    await reprice.options(priority=1).enqueue("42")

    # -- results

    job = await reprice.enqueue(42)

    # mypy says: Incompatible types in assignment (expression has type "float", variable has type "str")
    # pyright says: "float" is not assignable to "str"
    text: str = await job.result()

    # -- cached values

    # mypy says: Argument 1 to "__call__" of "Cached" has incompatible type "str"; expected "int"
    # pyright says: "Literal['42']" is not assignable to "int"
    await product("42")

    # mypy says: Missing positional argument "id" in call to "key" of "Cached"
    # pyright says: Argument missing for parameter "id"
    product.key()

    # mypy says: Argument 1 to "put" of "Key" has incompatible type "dict[str, int]"; expected "Product"
    # pyright says: Argument of type "dict[str, int]" cannot be assigned to parameter "value" of type "Product"
    await product.key(42).put({"id": 42})

    # mypy says: Incompatible types in assignment (expression has type "Key[Product]", variable has type "Key[str]")
    # pyright says: "Key[Product]" is not assignable to "Key[str]"
    key: Key[str] = product.key(42)

    # mypy says: Argument "fresh" to "get" of "Key" has incompatible type "Literal['fresh']"
    # pyright says: "Literal['fresh']" is not assignable to
    await product.key(42).get(fresh="fresh")

    # mypy says: "Product" has no attribute "sku"
    # pyright says: Cannot access attribute "sku" for class "Product"
    print((await product(42)).sku, text, key)

    # -- steps

    # mypy says: Argument 1 to "then" of "Call" has incompatible type "Task[[str, str], bool]"
    # pyright says: Argument of type "Task[(price: str, channel: str), bool]" cannot be assigned to parameter "step"
    reprice.call(42).then(notify, channel="#ops")

    # mypy says: Missing positional argument "channel" in call to "then" of "Call"
    # pyright says: Argument missing for parameter "channel"
    reprice.call(42).then(describe)

    # mypy says: Argument 2 to "then" of "Call" has incompatible type "int"; expected "str"
    # pyright says: "Literal[7]" is not assignable to "str"
    reprice.call(42).then(describe, 7)

    # -- twins

    # mypy says: Argument 1 to "enqueue" of "BlockingTask" has incompatible type "str"; expected "int"
    # pyright says: "Literal['42']" is not assignable to "int"
    reprice.sync.enqueue("42")

    # mypy says: Incompatible types in "await" (actual type "Product", expected type "Awaitable[Any]")
    # pyright says: "Product" is not awaitable
    await product.sync(42)


@app.task
async def describe(price: float, channel: str) -> str:
    return f"{price} {channel}"
