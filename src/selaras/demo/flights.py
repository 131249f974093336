"""The input: flights, weather, airports and planes, as they lie beside this module."""

from __future__ import annotations

import csv
import gzip
import io
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from itertools import takewhile

from msgspec import Struct


class Flight(Struct, frozen=True):
    """One flight, and so one job. `number` counts the flights of its plane, from 1: rows of a plane have an order."""

    tailnum: str
    number: int
    origin: str
    dest: str
    hour: str
    minutes: int
    miles: int


class Weather(Struct, frozen=True):
    """One hour at one airport; of some hours nothing is known."""

    origin: str
    hour: str
    rain: float


class Airport(Struct, frozen=True):
    """An airport of the mainland; four that are flown to are not in the file."""

    code: str
    name: str


class Plane(Struct, frozen=True):
    """What is known of a plane: the record that every one of its flights reads, changes and writes back.

    `last` is the number of the last flight that went into it: its version.
    """

    tailnum: str
    model: str = ""
    flights: int = 0
    minutes: int = 0
    miles: int = 0
    moves: int = 0
    rainy: int = 0
    origin: str = ""
    stands: str = ""
    last: int = 0

    def flown(self, flight: Flight, weather: Weather | None, airport: Airport | None) -> Plane:
        """Return the record after one more flight.

        A *move* is a flight that leaves from another New York airport than the one before: it comes out wrong as
        soon as one job reads an old record, one is lost or counted twice, or two swap places.
        """
        return Plane(
            tailnum=self.tailnum,
            model=self.model,
            flights=self.flights + 1,
            minutes=self.minutes + flight.minutes,
            miles=self.miles + flight.miles,
            moves=self.moves + (self.origin not in ("", flight.origin)),
            rainy=self.rainy + (weather is not None and weather.rain > 0),
            origin=flight.origin,
            stands=airport.name if airport else flight.dest,
            last=flight.number,
        )


def read_flights(*, year: bool) -> list[Flight]:
    """Read January's flights, or the whole year's, by scheduled departure."""
    rows = _rows("flights-2013.csv.gz")
    if not year:
        rows = takewhile(lambda row: row["month"] == "1", rows)
    flown: Counter[str] = Counter()
    flights: list[Flight] = []
    for row in rows:
        tailnum = row["tailnum"]
        flown[tailnum] += 1
        flights.append(
            Flight(
                tailnum=tailnum,
                number=flown[tailnum],
                origin=row["origin"],
                dest=row["dest"],
                hour=row["time_hour"],
                minutes=int(row["air_time"]),
                miles=int(row["distance"]),
            )
        )
    return flights


def read_weather() -> Iterator[Weather]:
    """Read the hours whose rain was measured."""
    for row in _rows("weather.csv.gz"):
        if row["precip"] != "NA":
            yield Weather(origin=row["origin"], hour=row["time_hour"], rain=float(row["precip"]))


def read_airports() -> Iterator[Airport]:
    """Read the airports."""
    for row in _rows("airports.csv.gz"):
        yield Airport(code=row["faa"], name=row["name"])


def read_models() -> dict[str, str]:
    """Read which model a plane is; of some planes it is not known."""
    return {row["tailnum"]: f"{row['manufacturer']} {row['model']}" for row in _rows("planes.csv.gz")}


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (
        resources.files("selaras.demo").joinpath("data", name).open("rb") as file,
        gzip.open(file) as plain,
        io.TextIOWrapper(plain, encoding="utf-8", newline="") as text,
    ):
        yield from csv.DictReader(text)
