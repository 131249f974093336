"""The program that is measured: as small as a program can be, with default settings."""

from __future__ import annotations

import time

from msgspec import Struct

from selaras import Read, Selaras

app = Selaras(namespace="bench")


class Product(Struct, frozen=True):
    """A small frozen value, as cached values are."""

    id: int
    name: str
    price: float


@app.cached
async def product(id: int) -> Product:
    """Stand for a datastore."""
    return Product(id, f"product {id}", 9.5)


@app.task
async def nothing(number: int) -> None:
    """Do nothing."""


@app.task
async def look(id: int, *, p: Product = Read(product)) -> None:
    """Read one product."""


@app.task(writes=product)
async def change(id: int, *, p: Product = Read(product)) -> None:
    """Read one product, and be its writer."""


@app.task
async def started_at(number: int) -> int:
    """Say when this began."""
    return time.monotonic_ns()
