"""Keeps a partition's house: due jobs, lost workers, expiry, retention; and asks after orphaned intents.

It is no job and stands in no queue: a deep backlog cannot starve it, and it starts with the worker (BR-067). Every
worker keeps house; a round that finds nothing to do costs the store a look.
"""

from __future__ import annotations

from asyncio import Event
from collections.abc import Callable, Sequence
from typing import Final

from selaras._contracts.clock import Clock, Entropy
from selaras._contracts.host import Host
from selaras._contracts.limits import INTENT_GRACE_US
from selaras._contracts.observer import Observer
from selaras._contracts.partition import Owner, Partition, Resolve, Tended
from selaras._core.cache.entry import Intent
from selaras._core.errors import StoreUnavailable
from selaras._core.events import Housekept, Trouble
from selaras._core.jobs.job import Attempt, Fate
from selaras._core.jobs.retry import Backoff
from selaras._worker.telling import tell
from selaras._worker.waiting import within

TEND_EVERY: Final = 1.0
TEND_IDLE: Final = 5.0
"""Where nothing is to be kept and nothing runs here, rounds grow apart up to so much, and to a third of a lease."""

TEND_SPREAD: Final = 0.25
"""Workers do not keep house in step."""

TEND_MOST: Final = 500
RELAY_EVERY: Final = 60.0
"""Outboxes are looked at so often though nobody said that anything waits there: rounds of housekeeping say it sooner."""

STANDING_US: Final = {Fate.SETTLED: 0, Fate.GONE: INTENT_GRACE_US}
"""How long an orphaned intent still stands, by what became of its attempt: a zombie of one that is lost for good may
still commit. One that runs keeps its intents, and one that may run again leaves them to the next attempt."""

AGAIN: Final = Backoff(first_us=100_000, most_us=5_000_000)


class Keeper:
    """Housekeeping over all partitions of a store.

    Args:
        lease_us: of this worker, and as a rule of the others.
    """

    def __init__(
        self,
        partitions: Sequence[Partition],
        host: Host,
        clock: Clock,
        entropy: Entropy,
        observer: Observer,
        *,
        lease_us: int,
    ) -> None:
        self._partitions = partitions
        self._host = host
        self._clock = clock
        self._entropy = entropy
        self._observer = observer
        self._idle_most = max(TEND_EVERY, min(TEND_IDLE, lease_us / 3_000_000))
        self._outbox = Event()
        self.relaying = False
        self.relayed = 0  # how often something was delivered: work may have come of it in any partition

    def relay_soon(self) -> None:
        """Effects wait in an outbox."""
        self._outbox.set()

    @property
    def quiet(self) -> bool:
        """Whether no effect is known to wait."""
        return not self.relaying and not self._outbox.is_set()

    async def tend(self, partition: Partition, busy: Callable[[], bool] = lambda: True) -> None:
        """Keep one partition's house for ever: once a second, and less often where there is nothing to keep.

        Args:
            busy: says whether something runs here.
        """
        failures, every = 0, TEND_EVERY
        while True:
            pause = 0.0
            try:
                tended = await partition.tend(TEND_MOST)
                await self._follow(partition, tended)
                failures = 0
                every = TEND_EVERY if busy() or _found(tended) else min(every * 2, self._idle_most)
                if not tended.again:
                    pause = every + TEND_SPREAD * self._entropy.random()
            except StoreUnavailable:  # the turns tell of it
                failures += 1
            except Exception as error:  # noqa: BLE001 - housekeeping must never end
                failures += 1
                tell(self._observer, Trouble(where="housekeeping", error=f"{type(error).__name__}: {error}"))
            if failures:
                pause = AGAIN.delay_us(failures, self._entropy) / 1_000_000
            await self._clock.sleep(pause)

    async def _follow(self, partition: Partition, tended: Tended) -> None:
        if tended.outbox:
            self.relay_soon()
        if tended.promoted or tended.lost or tended.expired or tended.purged or tended.unroutable:
            event = Housekept(
                partition=partition.index,
                promoted=tended.promoted,
                lost=tended.lost,
                expired=tended.expired,
                purged=tended.purged,
                unroutable=tended.unroutable,
            )
            tell(self._observer, event)
        if tended.orphans:
            await ask_after(self._partitions, partition, tended.orphans)

    async def relay(self) -> None:
        """Deliver what waits in outboxes as soon as it is known, for ever."""
        failures = 0
        while True:
            await within(self._clock, RELAY_EVERY, self._outbox)
            self._outbox.clear()
            self.relaying = True
            try:
                while await self._host.relay():
                    self.relayed += 1
                failures = 0
            except StoreUnavailable:
                failures += 1
            except Exception as error:  # noqa: BLE001 - relaying must never end
                failures += 1
                tell(
                    self._observer,
                    Trouble(where="relaying between partitions", error=f"{type(error).__name__}: {error}"),
                )
            if failures:
                self._outbox.set()
                await self._clock.sleep(AGAIN.delay_us(failures, self._entropy) / 1_000_000)
            self.relaying = False


async def ask_after(partitions: Sequence[Partition], partition: Partition, orphans: Sequence[Intent]) -> None:
    """Ask the homes of intents what became of their attempts, and do what follows from it (P17, P18).

    A settle's own effect that comes later finds no intent, and voids.
    """
    by_home: dict[int, list[Intent]] = {}
    for intent in orphans:
        by_home.setdefault(intent.home, []).append(intent)
    for home, intents in by_home.items():
        fates = await partitions[home].fates([Attempt(intent.job, intent.fence) for intent in intents])
        effects = [
            Resolve(
                to=partition.index,
                owner=Owner(home, intent.job, intent.fence),
                keys=(intent.key,),
                stand_us=STANDING_US[fate],
            )
            for intent, fate in zip(intents, fates, strict=True)
            if fate in STANDING_US and not (fate is Fate.GONE and intent.until_us)
        ]
        if effects:
            await partition.accept(effects)


def _found(tended: Tended) -> bool:
    """Say whether there was something to do, so that more may follow soon."""
    return tended != Tended()
