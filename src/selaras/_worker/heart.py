"""Keeps the lease: a thread that beats over a connection of its own, whatever the loop does.

The lease belongs to the process instance, so one beat a partition renews everything it holds. A sign of life
must not hang on the thing it vouches for: a body that blocks the loop does not lose its lease (BR-003).

Laws:
    - A beat names the last turn whose reply was received and then, read *after* it, the attempts held: so it never
      names a turn and misses an attempt of it, which the store would release under a running body (P16).
    - What a beat proves, it proves from the instant it was sent: `fresh_until_ns` is send + lease - margin (P18).
    - A beat that fails is repeated soon; it is never a reason to end.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Final

from msgspec import Struct

from selaras._contracts.clock import Clock
from selaras._contracts.partition import HeartbeatReply, HeartbeatRequest, Instance
from selaras._contracts.store import Pulse, Store
from selaras._core.errors import StoreUnavailable
from selaras._core.jobs.job import Attempt, Settlement

BEATS_PER_LEASE: Final = 3
MARGIN_PARTS: Final = 10
"""A tenth of the lease is the margin: time for a started body to be stopped before the store lets another run."""

MARGIN_LEAST_US: Final = 50_000
AGAIN_MOST_US: Final = 500_000
"""A failed beat is tried again after at most this long."""


class Beat(Struct, frozen=True, kw_only=True):
    """What one partition is told, beside being alive. A process that claims no jobs says the default.

    Attributes:
        last_turn: the last turn such that its reply and all before were received; read before `held`.
        held, abandoned, settlements: see `HeartbeatRequest`.
    """

    last_turn: int = 0
    held: tuple[Attempt, ...] = ()
    abandoned: tuple[Attempt, ...] = ()
    settlements: tuple[Settlement, ...] = ()


def say_nothing(partition: int) -> Beat:
    """Return the beat of a process that runs no jobs: it keeps its scopes and locks."""
    del partition
    return Beat()


def hear_nothing(partition: int, beat: Beat, reply: HeartbeatReply) -> None:
    """Ignore a reply."""
    del partition, beat, reply


class Heart:
    """Beats for one instance over all partitions, every third of its lease.

    Args:
        instance: enrolled already, in every partition, by requests sent at or after `enrolled_ns`.
        state: asked in the heart's thread, before each beat.
        on_reply: told in the heart's thread, after each answered beat. `reply.enrolled` False: the lease is gone;
            this heart goes on beating until it is stopped.
        on_failure: told in the heart's thread when a beat could not be delivered.
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
        on_failure: Callable[[int, StoreUnavailable], None] | None = None,
        every_us: int | None = None,
    ) -> None:
        self.instance = instance
        self._store = store
        self._clock = clock
        self._state = state
        self._on_reply = on_reply
        self._on_failure = on_failure
        self._every_us = min(every_us or instance.lease_us, instance.lease_us // BEATS_PER_LEASE)
        margin_us = max(instance.lease_us // MARGIN_PARTS, MARGIN_LEAST_US)
        self._fresh_ns = max(instance.lease_us - margin_us, 0) * 1_000
        self._until_ns = [enrolled_ns + self._fresh_ns for _ in store.partitions]
        self._kicked = Event()
        self._ending = False
        self._thread = Thread(target=self._run, name="selaras-heart", daemon=True)

    def start(self) -> None:
        """Begin to beat; the first beat comes after a third of the lease, or when `beat_now` is called."""
        self._thread.start()

    def stop(self, timeout: float | None = 5.0) -> None:
        """End; a beat under way is waited for, at most `timeout` seconds. Nothing is released by this."""
        self._ending = True
        self._kicked.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def beat_now(self) -> None:
        """Beat at once; from any thread."""
        self._kicked.set()

    def fresh_until_ns(self, partition: int) -> int:
        """Return the instant up to which the lease in this partition is surely held (P18); from any thread."""
        return self._until_ns[partition]

    def _run(self) -> None:
        pulse = self._store.pulse()
        try:
            wait_us = self._every_us
            while True:
                self._kicked.wait(wait_us / 1_000_000)
                self._kicked.clear()
                if self._ending:
                    return
                failed = [not self._beat(pulse, partition) for partition in range(len(self._until_ns))]
                wait_us = min(self._every_us, AGAIN_MOST_US) if any(failed) else self._every_us
        finally:
            pulse.close()

    def _beat(self, pulse: Pulse, partition: int) -> bool:
        beat = self._state(partition)
        request = HeartbeatRequest(
            instance=self.instance.id,
            last_turn=beat.last_turn,
            held=beat.held,
            abandoned=beat.abandoned,
            settlements=beat.settlements,
        )
        sent_ns = self._clock.instant_ns()
        try:
            reply = pulse.beat(partition, request)
        except StoreUnavailable as error:
            if self._on_failure:
                self._on_failure(partition, error)
            return False
        if reply.enrolled:
            self._until_ns[partition] = sent_ns + self._fresh_ns
        self._on_reply(partition, beat, reply)
        return True
