"""Ends scopes and locks outside of jobs, and tells other partitions what must be known before an end (P12, P17)."""

from __future__ import annotations

import logging
from typing import Final

from selaras._app.process.holding import Holder
from selaras._app.process.process import Process
from selaras._app.process.relaying import relay
from selaras._contracts.limits import EPOCH_SHIFT
from selaras._contracts.partition import Invalidation
from selaras._core.errors import NotReplicated, StoreUnavailable
from selaras._core.jobs.job import Refusal, Settled, Settlement
from selaras._core.positions import News
from selaras._core.routing import partition_of

_log = logging.getLogger("selaras")

_TRIES: Final = 4
_AGAIN_S: Final = 0.1


def has_effects_elsewhere(process: Process, settlement: Settlement, home: int) -> bool:
    """Say whether other partitions must hear of something before the settle."""
    if settlement.tags or settlement.families:
        return True
    return any(partition_of(key, process.partitions) != home for key in _voided(settlement))


def _voided(settlement: Settlement) -> tuple[str, ...]:
    """Return the keys that this settle voids while no intent of it stands there: nothing else keeps readers off them."""
    return (*settlement.serves, *settlement.keys) if settlement.started else settlement.keys


async def tell_elsewhere(process: Process, settlement: Settlement, home: int) -> None:
    """Void in every other partition what no intent guards there: tags, families, keys that were served on.

    Twice is once, and the settle voids the keys once more through the outbox. Raises StoreUnavailable: call again.
    """
    for partition in process.store.partitions:
        index = partition.index
        if index == home:
            continue
        keys = {key for key in _voided(settlement) if partition_of(key, process.partitions) == index}
        if not (keys or settlement.tags or settlement.families):
            continue
        names = Invalidation(
            keys=tuple(sorted(keys)),
            tags=settlement.tags,
            families=settlement.families,
            versions=tuple(one for one in settlement.versions if one[0] in keys),
            closes=tuple(one for one in settlement.closes if one[0] in keys),
        )
        sent_ns = process.clock.instant_ns()
        news = await partition.invalidate(names, process.since(index))
        process.heard(index, news, sent_ns)


async def settle(process: Process, holder: Holder, home: int, settlement: Settlement) -> Settled | None:
    """End a scope or lock. Returns None if the store does not answer: then it is no longer named, and so ended (P18).

    Raises NotReplicated: it was ended, and is not asked for once more, which would be refused.

    In a forked child nothing is done: it is its parent's to end.
    """
    if not holder.is_here:
        return Settled(settlement.job, settlement.fence)
    try:
        settled = await _settle(process, holder, home, settlement)
    except BaseException:
        holder.abandon(home, settlement.job)
        raise
    if settled is None:
        holder.abandon(home, settlement.job)
    else:
        holder.ended(home, settlement.job)
    return settled


async def _settle(process: Process, holder: Holder, home: int, settlement: Settlement) -> Settled | None:
    may_be_done = False
    for number in range(_TRIES):
        try:
            if process.partitions > 1 and has_effects_elsewhere(process, settlement, home):
                await tell_elsewhere(process, settlement, home)
            sent_ns = process.clock.instant_ns()
            reply = await process.store.partitions[home].settle(holder.instance.id, [settlement], process.since(home))
        except NotReplicated:
            raise
        except StoreUnavailable as error:
            may_be_done = True
            if number + 1 == _TRIES:
                _log.warning("the end of a scope or lock could not be stored, its lease will end it: %s", error)
                return None
            await process.clock.sleep(_AGAIN_S * 2**number)
            continue
        process.heard(home, reply.news, sent_ns)
        if reply.outbox:
            await _relay_soon(process)
        settled = reply.settled[0]
        if (
            may_be_done
            and settled.refusal is Refusal.LEASE_LOST
            and _was_held(process, holder, home, settlement, reply.news)
        ):
            return Settled(settlement.job, settlement.fence)  # refused was the repetition of what had been done
        return settled
    return None


def _was_held(process: Process, holder: Holder, home: int, settlement: Settlement, news: News) -> bool:
    """Say whether the lease cannot have run out by now: in this epoch nothing but its end can have ended a scope then."""
    is_fresh = process.clock.instant_ns() < holder.heart.fresh_until_ns(home)
    return is_fresh and settlement.fence >> EPOCH_SHIFT == news.epoch


async def _relay_soon(process: Process) -> None:
    """Deliver what the end caused elsewhere; the end itself is stored, and a worker delivers what this cannot."""
    try:
        await relay(process.store)
    except StoreUnavailable as error:
        _log.warning("what a scope changed elsewhere is not delivered yet: %s", error)
