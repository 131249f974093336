"""A program beside the workers: enqueues, waits for ends, reads at every level, writes in scopes. `python -m chaos.client`.

SIGTERM ends it in order; `CHAOS_FLIGHTS` says that it enqueues the demo's flights, too, and how many a second.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from itertools import count
from random import Random
from typing import Any, Final

from chaos.history import Enqueued, Erred, Opened, Told, Voided, Wrote, now
from chaos.program import ITEMS, LINKS, NAME, SEED, item, link, link_id, look, notes, read_item, rows, write
from selaras import Call, SelarasError
from selaras._worker.fleet import follow_fleet
from selaras.demo.airline import app, fly
from selaras.demo.flights import read_flights

_GAP_S: Final = 0.04
_WAIT_S: Final = 20.0
_FLIGHTS: Final = int(os.environ.get("CHAOS_FLIGHTS", "0"))
_BATCH: Final = 25


class Client:
    """One client."""

    def __init__(self) -> None:
        self._chance = Random(f"{SEED} {NAME}")
        self._numbers = count()
        self._waiting: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._last = ""

    async def run(self) -> None:
        """Do one thing after another until told to stop."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        follow_fleet(lambda _: self._stop_from_outside(loop))
        async with app:
            notes.add(Opened(at=now()))
            flying = asyncio.create_task(self._fly()) if _FLIGHTS else None
            while not self._stop.is_set():
                await self._try(self._one_thing)
                await asyncio.sleep(_GAP_S * 2 * self._chance.random())
            for task in self._waiting:
                task.cancel()
            await asyncio.gather(*self._waiting, return_exceptions=True)
            if flying:
                await flying

    def _stop_from_outside(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(self._stop.set)

    async def _try(self, do: Callable[[], Awaitable[None]]) -> None:
        try:
            await do()
        except (SelarasError, TimeoutError) as error:
            notes.add(Erred(what=f"{type(error).__name__}: {error}"[:200], at=now()))
            await asyncio.sleep(0.1)

    async def _one_thing(self) -> None:
        dice = self._chance.random()
        if dice < 0.25:
            await self._write()
        elif dice < 0.35:
            ids = [self._chance.randrange(ITEMS) for _ in range(3)]
            await self._enqueue([f"look-{self._name()}"], look.options(id=f"look-{self._last}").call(ids))
        elif dice < 0.37:
            chain = self._name()
            await self._enqueue([link_id(chain, number) for number in range(1, LINKS + 1)], link(chain, 1))
        elif dice < 0.40:
            await self._scope()
        elif dice < 0.42:
            id = self._chance.randrange(ITEMS)
            called = now()
            await item.key(id).invalidate()
            notes.add(Voided(key=item.key(id).name, called=called, at=now()))
        else:
            await read_item(self._chance.randrange(ITEMS), self._chance.choice([None, "strict", "strict", 0.3]))

    def _name(self) -> str:
        self._last = f"{NAME}-{next(self._numbers)}"
        return self._last

    async def _write(self) -> None:
        id = self._chance.randrange(ITEMS)
        job = f"write-{self._name()}"
        await self._enqueue([job], write.options(id=job).call(id))
        if self._chance.random() < 0.5:
            task = asyncio.create_task(self._try(lambda: self._wait(job, id)))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def _enqueue(self, jobs: list[str], call: Call[Any]) -> None:
        called = now()
        try:
            await app.enqueue_many([call])
        except BaseException:
            notes.add(Enqueued(jobs=jobs, called=called, at=now(), sure=False))
            raise
        notes.add(Enqueued(jobs=jobs, called=called, at=now()))

    async def _wait(self, job: str, id: int) -> None:
        await app.job(job).result(timeout=_WAIT_S)
        notes.add(Told(job=job, at=now()))
        await read_item(id, self._chance.choice([None, 5.0]))

    async def _scope(self) -> None:
        id = self._chance.randrange(ITEMS)
        job, row = f"scope-{self._name()}", item.key(id).name
        called = 0
        try:
            async with item.key(id).writing():
                await asyncio.sleep(self._chance.random() ** 3 * 0.2)
                version = (await rows()).write(row, job, 0)
                called = now()
                notes.add(Wrote(key=row, version=version, at=called, job=job, scope=True))
        finally:
            await asyncio.sleep(0)
        notes.add(Voided(key=row, called=called, at=now()))

    async def _fly(self) -> None:
        """Enqueue the flights of the airline, a batch at a time, each until it was surely accepted.

        A batch that may have been accepted is enqueued again under the same ids.
        """
        flights = read_flights(year=False)
        for first in range(0, len(flights), _BATCH):
            if self._stop.is_set():
                return
            calls = []
            ids = []
            for flight in flights[first : first + _BATCH]:
                id = f"fly-{flight.tailnum}-{flight.number}"
                ids.append(id)
                calls.append(
                    fly.options(id=id).call(
                        flight.tailnum,
                        flight.number,
                        flight.origin,
                        flight.dest,
                        flight.hour,
                        flight.minutes,
                        flight.miles,
                    )
                )
            while True:
                called = now()
                try:
                    await app.enqueue_many(calls)
                except SelarasError as error:
                    notes.add(Erred(what=f"{type(error).__name__}: {error}"[:200], at=now()))
                    await asyncio.sleep(0.2)
                else:
                    notes.add(Enqueued(jobs=ids, called=called, at=now()))
                    break
            await asyncio.sleep(_BATCH / _FLIGHTS)


if __name__ == "__main__":
    asyncio.run(Client().run())
