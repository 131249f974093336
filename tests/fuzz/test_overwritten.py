"""Bytes in the store that somebody else has written over: what they belonged to is lost, and nothing beside it."""

from __future__ import annotations

import asyncio
import os
import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from selaras import Selaras

JOBS = 12
VICTIMS = 3


class Shop:
    """An app on a store, with jobs that wait and values that are cached."""

    def __init__(self, url: str) -> None:
        self.app = Selaras(url, retries=0, lease=2, heartbeat=0.5)
        self.ran: list[int] = []

        @self.app.cached
        async def price(id: int) -> float:
            return id * 1.5

        @self.app.task
        async def note(n: int, text: str) -> int:
            self.ran.append(n)
            assert await price(n) == n * 1.5
            return n

        @self.app.task(writes=price)
        async def reprice(id: int, text: str) -> int:
            self.ran.append(id)
            return id

        self.price, self.note, self.reprice = price, note, reprice

    async def fill(self) -> None:
        async with self.app:
            for n in range(JOBS):
                await self.price(n)
                await self.note.options(id=f"note-{n}").enqueue(n, "x" * 20)
                await self.reprice.options(id=f"reprice-{n}").enqueue(n, "x" * 20)

    async def work(self) -> int:
        async with asyncio.timeout(20):
            return int(await self.app.worker(burst=True).run())

    async def ends(self) -> dict[str, str]:
        async with self.app:
            names = [f"{task}-{n}" for task in ("note", "reprice") for n in range(JOBS)]
            return {name: str((await self.app.job(name).info()).state) for name in names}


def junk(chance: Random) -> bytes:
    """Bytes of many kinds, and among them what an unwary reader would execute."""
    return chance.choice(
        [
            b"",
            chance.randbytes(chance.randrange(1, 40)),
            b"\x01" + chance.randbytes(8),
            b"\x02" + chance.randbytes(8),
            b"\xdf\xff\xff\xff\xff",
            b"\x92" * 2_000,
            pickle.dumps(_Bomb()),
        ]
    )


class _Bomb:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (os.environ["SELARAS_BOMB"],)


@pytest.fixture
def bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SELARAS_BOMB", str(tmp_path / "exploded"))
    return tmp_path / "exploded"


async def check(shop: Shop, victims: set[str], bomb: Path) -> None:
    assert await shop.work() == 0
    ends = await shop.ends()
    assert {name: state for name, state in ends.items() if name not in victims and state != "succeeded"} == {}
    assert {ends[name] for name in victims} <= {"succeeded", "failed"}
    async with shop.app:
        assert [await shop.price(n) for n in range(JOBS)] == [n * 1.5 for n in range(JOBS)]
    assert not bomb.exists()


@pytest.mark.parametrize("seed", range(6))
async def test_rows_of_the_file_that_were_written_over_cost_no_neighbour(seed: int, tmp_path: Path, bomb: Path) -> None:
    chance = Random(seed)
    shop = Shop(f"sqlite:///{tmp_path / 'selaras.db'}")
    await shop.fill()
    victims = set()
    with sqlite3.connect(tmp_path / "selaras.db") as connection:
        for _ in range(VICTIMS):
            name = f"{chance.choice(['note', 'reprice'])}-{chance.randrange(JOBS)}"
            column = chance.choice(["payload", "meta", "more"])
            victims.add(name)
            assert connection.execute(f"update jobs set {column} = ? where id = ?", [junk(chance), name]).rowcount == 1
            column = chance.choice(["value", "tags", "note"])
            changed = connection.execute(
                f"update entries set {column} = ? where key = ?", [junk(chance), f"price:{chance.randrange(JOBS)}"]
            )
            assert changed.rowcount == 1
    connection.close()

    await check(Shop(f"sqlite:///{tmp_path / 'selaras.db'}"), victims, bomb)


async def test_a_cached_value_whose_tags_were_written_over_is_a_miss_and_stops_no_turn(
    tmp_path: Path, bomb: Path
) -> None:
    """A claim that planted an intent on its key could not read it: no turn of the partition came to an end."""
    await overwrite(tmp_path, "update entries set tags = ? where key = 'price:3'", b"\x01")

    await check(Shop(f"sqlite:///{tmp_path / 'selaras.db'}"), set(), bomb)


async def test_a_job_whose_declaration_was_written_over_is_dead_lettered_and_keeps_its_bytes(
    tmp_path: Path, bomb: Path
) -> None:
    """What it writes is no longer known: it must not run without its intents."""
    await overwrite(tmp_path, "update jobs set more = ? where id = 'reprice-3'", b"nonsense")
    shop = Shop(f"sqlite:///{tmp_path / 'selaras.db'}")

    await check(shop, {"reprice-3"}, bomb)

    assert shop.ran.count(3) == 1  # note-3
    async with shop.app:
        failure = (await shop.app.job("reprice-3").info()).failure
    assert failure is not None
    assert failure.type == "CorruptBytes"
    with sqlite3.connect(tmp_path / "selaras.db") as connection:
        assert connection.execute("select meta from jobs where id = 'reprice-3'").fetchone() == (b"\xc1nonsense",)
    connection.close()


async def overwrite(folder: Path, statement: str, data: bytes) -> None:
    await Shop(f"sqlite:///{folder / 'selaras.db'}").fill()
    with sqlite3.connect(folder / "selaras.db") as connection:
        assert connection.execute(statement, [data]).rowcount == 1
    connection.close()
