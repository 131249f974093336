"""The airline: three cached families and one task. This is all there is to write; Selaras does the rest.

A worker of its own: `selaras worker selaras.demo.airline:app`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

from selaras import Call, Read, Selaras, current_job
from selaras.demo.flights import Airport, Flight, Plane, Weather
from selaras.demo.gauges import reads_of, reporting
from selaras.demo.ledger import Ledger

app = Selaras(namespace=os.environ.get("SELARAS_DEMO_NAMESPACE", "airline"))


@app.resource
async def ledger() -> AsyncIterator[Ledger]:
    """The datastore, opened once a process."""
    opened = Ledger(Path(os.environ["SELARAS_DEMO_LEDGER"]))
    with reporting(lambda: reads_of(app)):  # for the screen; a program of yours has no need of it
        yield opened
    opened.close()


# -- what is read. A body runs on a miss only: it is the datastore read.


@app.cached
async def plane(tailnum: str) -> Plane:
    """A plane's record: every flight of the plane changes it."""
    return await (await ledger()).plane(tailnum)


@app.cached(ttl="1d")
async def weather(origin: str, hour: str) -> Weather | None:
    """One hour's weather; that nothing is known is a value too."""
    return await (await ledger()).weather(origin, hour)


@app.cached(ttl="1d")
async def airport(code: str) -> Airport | None:
    """Where a flight goes."""
    return await (await ledger()).airport(code)


# -- what is done. `writes=plane` puts a flight in the line of its plane, keeps every cache from answering for the
#    record while it runs, and lets no flight that comes after see an older record.


@app.task(writes=plane)
async def fly(
    tailnum: str,
    number: int,
    origin: str,
    dest: str,
    hour: str,
    minutes: int,
    miles: int,
    *,
    record: Plane = Read(plane),
    sky: Weather | None = Read(weather),
    to: Airport | None = Read(airport.by(code="dest")),
) -> str:
    """Enter one flight into its plane's record. Returns where the plane stands now."""
    flight = Flight(tailnum, number, origin, dest, hour, minutes, miles)
    books = await ledger()
    if record.last >= number:
        return record.stands  # an earlier attempt wrote it, and was lost before it could say so
    if record.last < number - 1:
        await books.note_stale_read(flight, record.last)  # must never happen: the demo counts it

    after = record.flown(flight, sky, to)
    if await books.write(after, fence=current_job().fence):
        await plane.key(tailnum).put(after)
    return (await plane(tailnum)).stands


def job_of(flight: Flight) -> Call[str]:
    """Return the job of one flight, not enqueued yet."""
    return fly.call(
        flight.tailnum, flight.number, flight.origin, flight.dest, flight.hour, flight.minutes, flight.miles
    )
