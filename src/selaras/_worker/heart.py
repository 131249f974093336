"""Keeps the lease: a thread a partition that beats over a connection of its own, whatever the loop does.

The lease belongs to the process instance, so one beat a partition renews everything it holds. A sign of life
must not hang on the thing it vouches for: a body that blocks the loop does not lose its lease (BR-003). Nor on other
partitions: a beat that is held up in one, by a foreign transaction, costs no lease in another (P19).

What owns scopes and locks says so in `Beat.scopes`, from the `state` that it gives its Heart. An instance of a worker
claims jobs and has none; scopes and locks belong to instances of their own.

Laws:
    - A beat names the last turn whose reply was received and then, read *after* it, the attempts held: so it never
      names a turn and misses an attempt of it, which the store would release under a running body (P16).
    - What a beat proves, it proves from the instant it was sent: `fresh_until_ns` is send + lease - margin (P18).
    - A beat that fails is repeated soon; it is never a reason to end.
    - A sleep is timed by a clock that stands still while the machine does. So it is short, and when more time has
      passed than was slept, by the clock of leases or by the wall's, which a store may go by, a beat comes at once:
      between the two looks of a reaper (P19).
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Final

from msgspec import Struct

from selaras._contracts.clock import Clock
from selaras._contracts.limits import REAP_GRACE_US
from selaras._contracts.partition import HeartbeatReply, HeartbeatRequest, Instance
from selaras._contracts.store import Pulse, Store
from selaras._core.jobs.job import Abandoned, Attempt, Settlement
from selaras._core.jobs.lease import Trust

BEATS_PER_LEASE: Final = 3
AGAIN_MOST_US: Final = 500_000
"""A failed beat is tried again after at most this long."""

LOOK_US: Final = REAP_GRACE_US // 4
"""No single sleep is longer."""

JUMP_US: Final = REAP_GRACE_US // 4
"""A sleep that took so much longer than it should have means that a clock jumped, or that the machine slept."""


class Beat(Struct, frozen=True, kw_only=True):
    """What one partition is told, beside being alive. A process that claims no jobs says the default.

    Attributes:
        last_turn: the last turn such that its reply and all before were received; read before `held`.
        held, abandoned, settlements: see `HeartbeatRequest`.
        scopes: all scopes and locks that this instance answers for in this partition, as `HeartbeatRequest.scopes`:
            what is not named is ended as lost. None: nothing is said of them, and they are kept.
    """

    last_turn: int = 0
    held: tuple[Attempt, ...] = ()
    abandoned: tuple[Abandoned, ...] = ()
    settlements: tuple[Settlement, ...] = ()
    scopes: tuple[Attempt, ...] | None = None


def say_nothing(partition: int) -> Beat:
    """Return the beat of a process that runs no jobs: it keeps its scopes and locks."""
    del partition
    return Beat()


def hear_nothing(partition: int, beat: Beat, reply: HeartbeatReply) -> None:
    """Ignore a reply."""
    del partition, beat, reply


class Heart:
    """Beats for one instance over all partitions, every third of its lease or more often.

    Args:
        instance: enrolled already, in every partition, by requests sent at or after `enrolled_ns`.
        state: asked in the partition's thread, before each beat.
        on_reply: told in the partition's thread, after each answered beat. `reply.enrolled` False: the lease is gone;
            this heart goes on beating until it is stopped.
        on_failure: told in the partition's thread when a beat could not be delivered.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        instance: Instance,
        *,
        enrolled_ns: int,
        state: Callable[[int], Beat] = say_nothing,
        on_reply: Callable[[int, Beat, HeartbeatReply], None] = hear_nothing,
        on_failure: Callable[[int, Exception], None] | None = None,
        every_us: int | None = None,
    ) -> None:
        self.instance = instance
        self._store = store
        self._clock = clock
        self._state = state
        self._on_reply = on_reply
        self._on_failure = on_failure
        every_us = min(every_us or instance.lease_us, instance.lease_us // BEATS_PER_LEASE)
        self._chambers = [
            _Chamber(self, partition, Trust.of(instance.lease_us), every_us)
            for partition in range(len(store.partitions))
        ]
        for chamber in self._chambers:
            chamber.trust.renewed(enrolled_ns)

    def start(self) -> None:
        """Begin to beat; the first beat comes after a third of the lease, or when `beat_now` is called."""
        for chamber in self._chambers:
            chamber.thread.start()

    def stop(self, timeout: float | None = 5.0) -> None:
        """End; beats under way are waited for, at most `timeout` seconds. Nothing is released by this."""
        for chamber in self._chambers:
            chamber.end()
        if timeout == 0:
            return
        begun_ns = self._clock.instant_ns()
        for chamber in self._chambers:
            if chamber.thread.is_alive():
                waited = (self._clock.instant_ns() - begun_ns) / 1e9
                chamber.thread.join(None if timeout is None else max(0.0, timeout - waited))

    def beat_now(self, partition: int | None = None) -> None:
        """Beat at once, in one partition or in all; from any thread."""
        for chamber in self._chambers if partition is None else (self._chambers[partition],):
            chamber.kick()

    def fresh_until_ns(self, partition: int) -> int:
        """Return the instant up to which the lease in this partition is surely held (P18); from any thread."""
        return self._chambers[partition].trust.until_ns

    # -- what the chambers do, each in its own thread

    def pulse(self) -> Pulse:
        """Make the way to the store."""
        return self._store.pulse()

    def failed(self, partition: int, error: Exception) -> None:
        """Pass a failure on."""
        if self._on_failure:
            self._on_failure(partition, error)

    def beat(self, pulse: Pulse, partition: int, trust: Trust) -> None:
        """Beat once."""
        beat = self._state(partition)
        request = HeartbeatRequest(
            instance=self.instance.id,
            last_turn=beat.last_turn,
            held=beat.held,
            abandoned=beat.abandoned,
            settlements=beat.settlements,
            scopes=beat.scopes or (),
            names_scopes=beat.scopes is not None,
        )
        sent_ns = self._clock.instant_ns()
        reply = pulse.beat(partition, request)
        if reply.enrolled:
            trust.renewed(sent_ns)
        else:
            trust.void()
        self._on_reply(partition, beat, reply)

    def times(self) -> tuple[int, int]:
        """Return both clocks, in microseconds."""
        return self._clock.instant_ns() // 1_000, self._clock.wall_us()


class _Chamber:
    """One partition's part of a heart: its thread, its rhythm, its trust."""

    def __init__(self, heart: Heart, partition: int, trust: Trust, every_us: int) -> None:
        self.trust = trust
        self.thread = Thread(target=self._run, name=f"selaras-heart-{partition}", daemon=True)
        self._heart = heart
        self._partition = partition
        self._every_us = every_us
        self._kicked = Event()
        self._ending = False

    def kick(self) -> None:
        """Beat at once."""
        self._kicked.set()

    def end(self) -> None:
        """Do not beat again."""
        self._ending = True
        self._kicked.set()

    def _run(self) -> None:
        heart, pulse = self._heart, None
        wait_us = self._every_us
        try:
            while True:
                self._rest(wait_us)
                if self._ending:
                    return
                wait_us = self._every_us
                try:
                    pulse = pulse or heart.pulse()
                    heart.beat(pulse, self._partition, self.trust)
                except Exception as error:  # noqa: BLE001 - whatever a beat meets, the next one must follow
                    wait_us = min(self._every_us, AGAIN_MOST_US)
                    heart.failed(self._partition, error)
        finally:
            if pulse:
                pulse.close()

    def _rest(self, wait_us: int) -> None:
        """Wait so long by any clock, or until kicked."""
        times = self._heart.times()
        while wait_us > 0:
            slept_us = min(wait_us, LOOK_US)
            if self._kicked.wait(slept_us / 1_000_000):
                break
            before, times = times, self._heart.times()
            passed_us = max(now - then for now, then in zip(times, before, strict=True))
            if passed_us > slept_us + JUMP_US:
                return
            wait_us -= max(slept_us, passed_us)
        self._kicked.clear()
