"""The right answer, by one plain pass over the rows: no queue, no cache, no concurrency."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from selaras.demo.flights import Flight, Plane, read_airports, read_models, read_weather


class Totals(Struct, frozen=True):
    """All planes, summed."""

    flights: int
    planes: int
    minutes: int
    miles: int
    moves: int


JANUARY = Totals(flights=26_398, planes=3_140, minutes=4_070_239, miles=26_755_517, moves=4_102)
YEAR = Totals(flights=327_346, planes=4_037, minutes=49_326_610, miles=343_180_156, moves=63_870)
"""As counted once, by other means; the plain pass is held to them too."""


def right_answer(flights: Iterable[Flight]) -> dict[str, Plane]:
    """Fly all flights, one after another."""
    weather = {(hour.origin, hour.hour): hour for hour in read_weather()}
    airports = {airport.code: airport for airport in read_airports()}
    models = read_models()
    planes: dict[str, Plane] = {}
    for flight in flights:
        plane = planes.get(flight.tailnum) or Plane(flight.tailnum, models.get(flight.tailnum, ""))
        hour = weather.get((flight.origin, flight.hour))
        planes[flight.tailnum] = plane.flown(flight, hour, airports.get(flight.dest))
    return planes


def total(planes: Iterable[Plane]) -> Totals:
    """Sum the planes."""
    all_planes = list(planes)
    return Totals(
        flights=sum(plane.flights for plane in all_planes),
        planes=len(all_planes),
        minutes=sum(plane.minutes for plane in all_planes),
        miles=sum(plane.miles for plane in all_planes),
        moves=sum(plane.moves for plane in all_planes),
    )


def differences(right: Mapping[str, Plane], found: Iterable[Plane]) -> list[tuple[Plane, Plane]]:
    """Return (right, found) of each plane that came out wrong in any field."""
    there = {plane.tailnum: plane for plane in found}
    return [
        (plane, there.get(tailnum) or replace(Plane(tailnum), model=plane.model))
        for tailnum, plane in right.items()
        if there.get(tailnum) != plane
    ]
