"""One instance's time: from its enrolment in every partition until the last of its attempts is settled.

A worker has one tenure at a time. When the store says that the instance's lease is gone, everything of it is lost:
its bodies are told to stop, and the worker goes on under a new one. The old tenure stays until its last body has
really ended, for only then may that body's settlement go out, to be refused and to void what it wrote (P18).
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import partial

from selaras._contracts.partition import HeartbeatReply, Instance
from selaras._contracts.store import Store
from selaras._core.errors import StoreUnavailable
from selaras._core.events import LeaseLapsed
from selaras._worker.heart import Beat, Heart
from selaras._worker.telling import tell
from selaras._worker.turning import Crew, Turner
from selaras._worker.wary import LAPSED


class Tenure:
    """An enrolled instance with its heart and its turners.

    Args:
        enrolled_ns: when the first of its enrolments was sent.
        on_lost: called on the loop, once, when the store no longer knows the instance.
        on_full: called when work may wait in a partition that there is no room for.
    """

    def __init__(
        self,
        store: Store,
        crew: Crew,
        loop: AbstractEventLoop,
        instance: Instance,
        *,
        enrolled_ns: int,
        beat_every_us: int,
        on_lost: Callable[[Tenure], None],
        on_outbox: Callable[[], None],
        on_full: Callable[[int], None],
    ) -> None:
        self.instance = instance
        self.lost = False
        self._store = store
        self._crew = crew
        self._loop = loop
        self._on_lost = on_lost
        self.heart = Heart(
            store,
            crew.clock,
            instance,
            enrolled_ns=enrolled_ns,
            state=self._beat,
            on_reply=self._heard,
            every_us=beat_every_us,
        )
        self.turners = [
            Turner(
                crew,
                partition,
                instance.id,
                fresh_until_ns=self.heart.fresh_until_ns(partition.index),
                share=self._share,
                on_lost=self.lose,
                on_outbox=on_outbox,
                on_abandoned=partial(self.heart.beat_now, partition.index),
                on_full=partial(on_full, partition.index),
                on_room=self._nudge_hungry,
            )
            for partition in store.partitions
        ]

    def begin(self) -> None:
        """Beat and turn."""
        self.heart.start()
        for turner in self.turners:
            self._crew.company.spawn(turner.run())

    def close(self) -> None:
        """Claim nothing more; what waits here unstarted is given back at once."""
        for turner in self.turners:
            turner.close()
            self._crew.roster.give_back_waiting(turner)

    def lose(self) -> None:
        """The store no longer knows the instance."""
        if self.lost:
            return
        self.lost = True
        self._on_lost(self)

    async def dismiss(self) -> bool:
        """Give the instance up in every partition. Returns whether every partition heard it."""
        dismissals = [partition.dismiss(self.instance.id) for partition in self._store.partitions]
        outcomes = await asyncio.gather(*dismissals, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, StoreUnavailable):
                raise outcome
        return not any(outcomes)

    # -- looking

    @property
    def quiet(self) -> bool:
        """Whether every end has been settled."""
        return all(turner.quiet for turner in self.turners)

    @property
    def over(self) -> bool:
        """Whether nothing is held any more and everything is settled."""
        return all(turner.quiet and not turner.holding for turner in self.turners)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do in any partition, as far as is known."""
        return all(turner.idle for turner in self.turners)

    def look_at_leases(self, now_ns: int) -> None:
        """Start nothing while a lease was not renewed in time (P18), and go on when it is.

        What runs goes on meanwhile: only the store knows whether it is lost. A file that somebody kept locked, or a
        server that was away, has not reaped anything; and if it has, the next beat says so.
        """
        for turner in self.turners:
            fresh = now_ns < turner.fresh_until_ns
            if fresh and turner.lapsed:
                turner.lapsed = False
                turner.nudge()
            elif not fresh and not turner.lapsed:
                turner.lapsed = True
                self._crew.roster.give_back_waiting(turner, LAPSED)
                running = sum(1 for held in self._crew.roster if held.home is turner)
                tell(self._crew.observer, LeaseLapsed(partition=turner.index, running=running))
                self.heart.beat_now(turner.index)

    def _nudge_hungry(self) -> None:
        """There is room again that another partition's turn had asked for in vain: who had none looks once more."""
        if len(self.turners) > 1:
            for turner in self.turners:
                if turner.hungry:
                    turner.nudge()

    def _share(self, turner: Turner, room: int) -> int:
        """Divide room among the partitions that want claims, equally; what there is for each starving one is left to it.

        Otherwise whoever has the slots would fill them anew as its bodies end, for as long as its backlog lasts. Of those
        that starve, first comes who has not asked for longest.
        """
        starving = [each for each in self.turners if each.starving and each is not turner]
        if starving and turner.starving:
            starving = [each for each in starving if (each.asked_ns, each.index) < (turner.asked_ns, turner.index)]
        if starving:
            room -= len(starving)
            for each in starving:
                each.nudge()
        hungry = sum(1 for each in self.turners if each.hungry)
        return -(-room // max(1, hungry - len(starving)))

    # -- the heart's thread

    def _beat(self, partition: int) -> Beat:
        return self.turners[partition].beat()

    def _heard(self, partition: int, beat: Beat, reply: HeartbeatReply) -> None:
        turner = self.turners[partition]
        turner.fresh_until_ns = self.heart.fresh_until_ns(partition)
        if reply.enrolled and not (beat.abandoned or reply.settled or reply.lost or reply.cancels):
            return
        try:
            self._loop.call_soon_threadsafe(turner.heard_beat, beat, reply)
        except RuntimeError:  # the loop is closed: the worker has ended
            pass
