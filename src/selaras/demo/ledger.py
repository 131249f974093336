"""The airline's own datastore, a SQLite database: what the jobs write, and what the cache stands in front of."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import asdict

from selaras.demo.flights import Airport, Flight, Plane, Weather, read_airports, read_weather

_SCHEMA = """
create table plane (
    tailnum text primary key, model text not null, flights int not null default 0, minutes int not null default 0,
    miles int not null default 0, moves int not null default 0, rainy int not null default 0,
    origin text not null default '', stands text not null default '', last int not null default 0,
    fence int not null default 0
) without rowid;
create table weather (origin text, hour text, rain real not null, primary key (origin, hour)) without rowid;
create table airport (code text primary key, name text not null) without rowid;
create table stale_read (tailnum text not null, number int not null, seen int not null);
"""

_PLANE = "select tailnum, model, flights, minutes, miles, moves, rainy, origin, stands, last from plane"

_CHANGE = """
update plane set flights = :flights, minutes = :minutes, miles = :miles, moves = :moves, rainy = :rainy,
    origin = :origin, stands = :stands, last = :last
"""


class Ledger:
    """One process's connection to the ledger.

    A call of a job's gives way to other jobs, as any driver's does, and then blocks for some twenty microseconds:
    handing it to a thread would take longer.
    """

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        # A write ahead log lets readers go on beside a writer; its commits need no wait for the disk, and outlive
        # any process that is killed.
        self._connection.executescript("pragma journal_mode = wal; pragma synchronous = normal")

    @classmethod
    def create(
        cls, path: Path, planes: Iterable[Plane], weather: Iterable[Weather], airports: Iterable[Airport]
    ) -> Ledger:
        """Make a new ledger, in which no plane has flown yet."""
        ledger = cls(path)
        ledger._fill(planes, weather, airports)
        return ledger

    def _fill(self, planes: Iterable[Plane], weather: Iterable[Weather], airports: Iterable[Airport]) -> None:
        self._connection.executescript(_SCHEMA)
        with self._connection as transaction:
            transaction.execute("begin")
            transaction.executemany(
                "insert into plane (tailnum, model) values (?, ?)", ((plane.tailnum, plane.model) for plane in planes)
            )
            transaction.executemany(
                "insert into weather values (?, ?, ?)", ((hour.origin, hour.hour, hour.rain) for hour in weather)
            )
            transaction.executemany(
                "insert into airport values (?, ?)", ((airport.code, airport.name) for airport in airports)
            )

    def close(self) -> None:
        """Let go of the database."""
        self._connection.close()

    async def plane(self, tailnum: str) -> Plane:
        """Read a plane's record."""
        return Plane(*(await self._execute(f"{_PLANE} where tailnum = ?", (tailnum,))).fetchone())

    async def weather(self, origin: str, hour: str) -> Weather | None:
        """Read the weather of one hour at one airport, if it is known."""
        query = "select origin, hour, rain from weather where origin = ? and hour = ?"
        row = (await self._execute(query, (origin, hour))).fetchone()
        return Weather(*row) if row else None

    async def airport(self, code: str) -> Airport | None:
        """Read an airport, if it is known."""
        row = (await self._execute("select code, name from airport where code = ?", (code,))).fetchone()
        return Airport(*row) if row else None

    async def write(self, plane: Plane, *, fence: int) -> bool:
        """Write a plane's record once, however often its job is run. Returns whether this call did it.

        A job may be run again when its worker was lost: after the write, before the worker could say so. Then the
        flight is in the row already (`last`). And a worker that was only thought lost may wake up late: then the row
        bears the higher fence of the attempt that took its place. Both are refused here, in the very statement that
        writes, since nobody but the datastore can tell.
        """
        written = await self._execute(
            f"{_CHANGE}, fence = :fence where tailnum = :tailnum and fence <= :fence and last < :last",
            {**asdict(plane), "fence": fence},
        )
        return written.rowcount == 1

    async def overwrite(self, plane: Plane) -> None:
        """Write a plane's record, whatever stands there: what most code does."""
        await self._execute(f"{_CHANGE} where tailnum = :tailnum", asdict(plane))

    async def note_stale_read(self, flight: Flight, seen: int) -> None:
        """Remember that a job was shown a record that was older than its plane's previous flight."""
        await self._execute("insert into stale_read values (?, ?, ?)", (flight.tailnum, flight.number, seen))

    async def _execute(self, statement: str, parameters: Mapping[str, object] | Sequence[object]) -> sqlite3.Cursor:
        await asyncio.sleep(0)
        return self._connection.execute(statement, parameters)

    # -- for whoever looks at it afterwards

    def flown_planes(self) -> list[Plane]:
        """Read all planes that have flown."""
        return [Plane(*row) for row in self._connection.execute(f"{_PLANE} where flights > 0")]

    def stale_reads(self) -> int:
        """Count the reads that showed an old record."""
        return int(self._connection.execute("select count(*) from stale_read").fetchone()[0])


def prepare(path: Path, flights: Sequence[Flight], models: dict[str, str]) -> Ledger:
    """Make the ledger for these flights: their planes, not flown yet, and all weather and airports."""
    planes = {flight.tailnum: Plane(flight.tailnum, models.get(flight.tailnum, "")) for flight in flights}
    return Ledger.create(path, planes.values(), read_weather(), read_airports())
