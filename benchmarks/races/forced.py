"""The races, each forced step by step: `python -m benchmarks.races.forced ADAPTER URL PORT` prints one line of JSON a race.

A, B: two clients of one cache, each with what an own process would have: connections, a local tier. PORT: of the server, 0 if
there is none. A's way to it leads through a wire that can be held up, cut, or fall silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import sys
from asyncio import Event, StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self

OLD: Final = 1
NEW: Final = 2
ABSENT: Final = 9  # a plain number: not every cache gives back what else it was given
PATIENCE_S: Final = 25.0
SILENT_S: Final = 2.0

Race = Callable[["Ring"], Awaitable["Verdict"]]
Verdict = tuple[bool, str]
"""Whether it survived, and what was seen."""


class NotMet(Exception):
    """The race cannot come about here; the message says why."""


class Wire:
    """A way to the server, as a client sees it."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server: asyncio.Server | None = None
        self._open = Event()
        self._open.set()
        self._ends: list[tuple[bytearray, StreamWriter]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self.silent = False
        self.refuses = False

    async def start(self) -> int:
        """Listen; return the port."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def hold_replies(self) -> None:
        """What is not pushed by the server stays on its way."""
        self._open.clear()

    def release(self) -> None:
        """It arrives."""
        self._open.set()

    def cut(self) -> None:
        """Cut all connections; the other side learns of it."""
        for _, client in self._ends:
            client.close()
        self._ends.clear()

    async def _connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        if self.refuses:
            writer.close()
            return
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._to)
        said = bytearray()
        self._ends.append((said, writer))
        for work in (self._up(reader, to_server, said), self._down(from_server, writer, said)):
            task = asyncio.get_running_loop().create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _up(self, reader: StreamReader, server: StreamWriter, said: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                said += data
                server.write(data)
        server.close()

    async def _down(self, server: StreamReader, client: StreamWriter, said: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := await server.read(65536):
                if self.silent:
                    continue
                if b"SUBSCRIBE" not in bytes(said).upper():
                    await self._open.wait()
                client.write(data)
        client.close()

    async def close(self) -> None:
        """End it."""
        self.cut()
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()


class Ring:
    """Two clients, one row of a datastore, and one way to each."""

    def __init__(self, adapter: Any, url: str, port: int, name: str) -> None:
        self.adapter, self.url, self.port, self.name = adapter, url, port, name
        self.row = OLD
        self.a: Any = None
        self.b: Any = None
        self.wire: Wire | None = None

    async def __aenter__(self) -> Self:
        url = self.url
        if self.port:
            self.wire = Wire(self.port)
            url = url.replace(f":{self.port}", f":{await self.wire.start()}")
        self.a = await self.adapter.open(url, self.name, self.load)
        self.b = self.a if self.adapter.ALONE else await self.adapter.open(self.url, self.name, self.load)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self.wire is not None:
            self.wire.release()
            self.wire.silent = self.wire.refuses = False
        for client in {id(self.a): self.a, id(self.b): self.b}.values():
            with contextlib.suppress(Exception):
                async with asyncio.timeout(5):
                    await client.close()
        if self.wire is not None:
            await self.wire.close()

    async def load(self) -> int:
        """Read the datastore; the next load may be held up after it has read."""
        row = self.row
        if self._late is not None:
            read, go_on = self._late
            self._late = None
            read.set()
            await go_on.wait()
        return row

    _late: tuple[Event, Event] | None = None

    def hold_load(self) -> tuple[Event, Event]:
        """Hold the next load: (it has read, it may go on)."""
        self._late = Event(), Event()
        return self._late

    async def both(self, expected: int = NEW) -> Verdict:
        """Read by both, each twice."""
        got = [await client.get() for client in (self.a, self.b, self.a, self.b)]
        return all(value == expected for value in got), f"A read {_said(got[::2])}, B read {_said(got[1::2])}"

    def needs_a_local_tier(self) -> Wire:
        """Say that only what a process remembers by itself can be meant."""
        if not self.adapter.LOCAL:
            raise NotMet("no local tier")
        if self.wire is None:
            raise NotMet("no wire")
        return self.wire


def _said(values: list[int]) -> str:
    names = {OLD: "old", NEW: "new", ABSENT: "absent"}
    return ", ".join(dict.fromkeys(names.get(value, str(value)) for value in values))


# -- fills


async def late_fill(ring: Ring, old: int = OLD) -> Verdict:
    """A misses and loads the old value; B writes and invalidates; A stores."""
    ring.row = old
    read, go_on = ring.hold_load()
    reading = asyncio.create_task(ring.a.get())
    await read.wait()
    await ring.b.write(lambda: _set(ring, NEW))
    go_on.set()
    await reading
    return await ring.both()


async def late_absence(ring: Ring) -> Verdict:
    """The same, and what A stores is that there is nothing."""
    return await late_fill(ring, ABSENT)


async def late_reply(ring: Ring) -> Verdict:
    """A's reply with the old value is on its way; B writes; A hears of it; then the reply arrives."""
    wire = ring.needs_a_local_tier()
    await ring.b.get()
    await ring.a.get(key="another")  # connected, and subscribed
    wire.hold_replies()
    reading = asyncio.create_task(ring.a.get())
    await asyncio.sleep(0.3)
    await ring.b.write(lambda: _set(ring, NEW))
    await asyncio.sleep(0.3)
    wire.release()
    await reading
    await asyncio.sleep(0.2)
    return await ring.both()


# -- news


async def subscriber_away(ring: Ring) -> Verdict:
    """A holds the value; its connections are cut; B writes meanwhile; A is back."""
    wire = ring.needs_a_local_tier()
    await ring.a.get()
    await ring.a.get()
    wire.refuses = True
    wire.cut()
    await asyncio.sleep(0.1)
    await ring.b.write(lambda: _set(ring, NEW))
    wire.refuses = False
    await asyncio.sleep(1.2)
    return await _twice(ring)


async def silence(ring: Ring) -> Verdict:
    """A holds the value; what the server sends no longer arrives, and nobody is told; B writes; 2 s later A reads."""
    wire = ring.needs_a_local_tier()
    await ring.a.get()
    await ring.a.get()
    wire.silent = True
    await ring.b.write(lambda: _set(ring, NEW))
    await asyncio.sleep(SILENT_S)
    reading = asyncio.create_task(ring.a.get())
    done, _ = await asyncio.wait([reading], timeout=8)
    if not done:
        reading.cancel()
        return True, "A waits, and serves nothing old"
    if (error := reading.exception()) is not None:
        return True, f"A is told: {type(error).__name__}"
    return reading.result() == NEW, f"A read {_said([reading.result()])}"


async def _twice(ring: Ring) -> Verdict:
    for _ in range(3):  # the first may find its connection gone, and say so
        try:
            value = await ring.a.get()
        except Exception:  # noqa: BLE001 - each library has errors of its own
            continue
        return value == NEW, f"A read {_said([value])}"
    return True, "A is told that it cannot read"


# -- transactions and jobs


async def invalidated_before_the_commit(ring: Ring) -> Verdict:
    """The writer invalidates inside its transaction; A reads the old row, and stores it; the transaction commits."""
    await ring.a.get()
    await ring.b.write_in_transaction(ring.a.get, lambda: _set(ring, NEW))
    return await ring.both()


async def killed_after_the_commit(ring: Ring) -> Verdict:
    """The writer is killed between its commit and what would follow it."""
    if ring.adapter.ALONE:
        raise NotMet("one process")
    await ring.a.get()
    await ring.b.commit_and_die(lambda: _set(ring, NEW))
    return await ring.both()


async def dependent_job_first(ring: Ring) -> Verdict:
    """A job commits; the next job, which was waiting for it, begins at once where the old value is remembered."""
    await ring.a.get()
    value = await ring.b.commit_and_follow(lambda: _set(ring, NEW), ring.a)
    return value == NEW, f"the job read {_said([value])}"


async def job_before_the_commit(ring: Ring) -> Verdict:
    """A job is enqueued inside of the transaction that creates what it reads."""
    ring.row = ABSENT
    value = await ring.b.enqueue_and_commit(lambda: _set(ring, NEW), ring.a)
    after = await ring.a.get()
    return value == after == NEW, f"the job read {_said([value])}, and afterwards A {_said([after])}"


async def rolled_back(ring: Ring) -> Verdict:
    """A job writes through to the cache, then fails; its transaction is rolled back."""
    await ring.a.get()
    await ring.b.put_and_fail(NEW)
    return await ring.both(OLD)


async def zombie(ring: Ring) -> Verdict:
    """A first attempt is held up before it writes through; the second has done so, with a newer row, when it wakes."""
    await ring.a.get()
    await ring.b.put_late(OLD, lambda: _set(ring, NEW), NEW, ring.a)
    return await ring.both()


# -- time


async def past_its_ttl(ring: Ring) -> Verdict:
    """The ttl of a second is over, and the server has not looked for what is over yet."""
    if not ring.adapter.LOCAL:
        raise NotMet("no local tier")
    await ring.b.get()
    await ring.a.get()  # filled from what B stored
    await ring.a.get()
    ring.row = NEW
    await asyncio.sleep(ring.adapter.TTL_S + 0.4)
    value = await ring.a.get()
    return value == NEW, f"A read {_said([value])}"


async def refused_by_the_server(ring: Ring) -> Verdict:
    """The server has no room for what A writes through; A must not read what nobody else has."""
    if not ring.port:
        raise NotMet("no server")
    await ring.a.get()
    await ring.b.get()
    await _configure(ring.port, "maxmemory", "1")
    try:
        await ring.a.put(NEW)
    except Exception:  # noqa: BLE001 - each library has errors of its own: it was told
        pass
    finally:
        await _configure(ring.port, "maxmemory", "0")
    got = [await ring.a.get(), await ring.b.get()]
    return got[0] == got[1], f"A read {_said(got[:1])}, B read {_said(got[1:])}"


async def lock_shorter_than_the_work(ring: Ring) -> Verdict:
    """A's work takes three times as long as its lock lasts; B waits for the same lock."""
    if ring.adapter.ALONE:
        raise NotMet("one process")
    inside, most = 0, 0

    async def hold(client: Any, seconds: float) -> None:
        nonlocal inside, most
        async with client.lock(1.0):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(seconds)
            inside -= 1

    first = asyncio.create_task(hold(ring.a, 3.2))
    await asyncio.sleep(0.4)
    second = asyncio.create_task(hold(ring.b, 0.1))
    await asyncio.wait([first, second], timeout=12)
    told = first.exception() if first.done() and not first.cancelled() else None
    for task in (first, second):
        task.cancel()
    return most == 1, f"{most} held it at once" + (f"; A was told at its end: {type(told).__name__}" if told else "")


RACES: Final[dict[str, Race]] = {
    "F1 late fill": late_fill,
    "F2 late reply": late_reply,
    "F3 late absence": late_absence,
    "B1 subscriber away": subscriber_away,
    "B2 silence": silence,
    "Q1 invalidated before the commit": invalidated_before_the_commit,
    "Q2 killed after the commit": killed_after_the_commit,
    "Q3 dependent job first": dependent_job_first,
    "Q4 job before the commit": job_before_the_commit,
    "Q6 rolled back": rolled_back,
    "Q7 zombie": zombie,
    "T3 past its ttl": past_its_ttl,
    "T5 refused by the server": refused_by_the_server,
    "K5 lock shorter than the work": lock_shorter_than_the_work,
}


def _set(ring: Ring, value: int) -> None:
    ring.row = value


async def _configure(port: int, name: str, value: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"CONFIG SET {name} {value}\r\n".encode())
    await reader.readline()
    writer.close()


async def run(adapter: Any, url: str, port: int, name: str) -> dict[str, str | bool | None]:
    """Force one race."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            async with Ring(adapter, url, port, name.partition(" ")[0].lower()) as ring:
                survived, seen = await RACES[name](ring)
    except NotMet as error:
        return {"race": name, "survived": None, "seen": str(error)}
    except Exception as error:  # noqa: BLE001 - what a library raises here is what was seen
        return {"race": name, "error": True, "survived": None, "seen": f"{type(error).__name__}: {str(error)[:120]}"}
    return {"race": name, "survived": survived, "seen": seen}


async def main() -> None:
    """Force all races, or those that are named."""
    module, url, port = sys.argv[1:4]
    adapter = importlib.import_module(f"benchmarks.races.adapters.{module}")
    for name in RACES:
        if not sys.argv[4:] or name.partition(" ")[0] in sys.argv[4:]:
            # A context each: what one leaves open is not the next one's.
            print(json.dumps(await asyncio.create_task(run(adapter, url, int(port), name))), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
