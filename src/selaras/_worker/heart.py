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
from selaras._core.jobs.job import Attempt, Settlement
from selaras._core.jobs.lease import Trust

BEATS_PER_LEASE: Final = 3
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
    """Beats for one instance over all partitions, every third of its lease or more often.

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
        on_failure: Callable[[int, Exception], None] | None = None,
        every_us: int | None = None,
    ) -> None:
        self.instance = instance
        self._store = store
        self._clock = clock
        self._state = state
        self._on_reply = on_reply
        self._on_failure = on_failure
        self._every_us = min(every_us or instance.lease_us, instance.lease_us // BEATS_PER_LEASE)
        self._trust = [Trust.of(instance.lease_us) for _ in store.partitions]
        for trust in self._trust:
            trust.renewed(enrolled_ns)
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
        if timeout != 0 and self._thread.is_alive():
            self._thread.join(timeout)

    def beat_now(self) -> None:
        """Beat at once; from any thread."""
        self._kicked.set()

    def fresh_until_ns(self, partition: int) -> int:
        """Return the instant up to which the lease in this partition is surely held (P18); from any thread."""
        return self._trust[partition].until_ns

    def _run(self) -> None:
        pulse: Pulse | None = None
        wait_us = self._every_us
        try:
            while True:
                self._kicked.wait(wait_us / 1_000_000)
                self._kicked.clear()
                if self._ending:
                    return
                wait_us = self._every_us
                for partition in range(len(self._trust)):
                    try:
                        pulse = pulse or self._store.pulse()
                        self._beat(pulse, partition)
                    except Exception as error:  # noqa: BLE001 - whatever a beat meets, the next one must follow
                        wait_us = min(self._every_us, AGAIN_MOST_US)
                        if self._on_failure:
                            self._on_failure(partition, error)
        finally:
            if pulse:
                pulse.close()

    def _beat(self, pulse: Pulse, partition: int) -> None:
        beat = self._state(partition)
        request = HeartbeatRequest(
            instance=self.instance.id,
            last_turn=beat.last_turn,
            held=beat.held,
            abandoned=beat.abandoned,
            settlements=beat.settlements,
        )
        sent_ns = self._clock.instant_ns()
        reply = pulse.beat(partition, request)
        trust = self._trust[partition]
        if reply.enrolled:
            trust.renewed(sent_ns)
        else:
            trust.void()
        self._on_reply(partition, beat, reply)
