"""Ends scopes and locks outside of jobs, and tells other partitions what must be known before an end (P12, P17)."""

from __future__ import annotations

import logging
from typing import Final

from selaras._app.process import Holder, Process
from selaras._app.relaying import relay
from selaras._contracts.partition import Invalidation
from selaras._core.errors import StoreUnavailable
from selaras._core.jobs.job import Attempt, Settled, Settlement

_log = logging.getLogger("selaras")

_TRIES: Final = 4
_AGAIN_S: Final = 0.1


def has_effects_elsewhere(settlement: Settlement) -> bool:
    """Say whether other partitions must hear of something before the settle."""
    return bool(settlement.tags or settlement.families)


async def tell_elsewhere(process: Process, settlement: Settlement, home: int) -> None:
    """Void tags and families in every other partition. Twice is once. Raises StoreUnavailable: call again."""
    names = Invalidation(tags=settlement.tags, families=settlement.families)
    for partition in process.store.partitions:
        if partition.index != home:
            sent_ns = process.clock.instant_ns()
            news = await partition.invalidate(names, process.since(partition.index))
            process.heard(partition.index, news, sent_ns)


async def settle(process: Process, holder: Holder, home: int, settlement: Settlement) -> Settled | None:
    """End a scope or lock. Returns None if the store does not answer: then its lease ends it (P18)."""
    for number in range(_TRIES):
        try:
            if process.partitions > 1 and has_effects_elsewhere(settlement):
                await tell_elsewhere(process, settlement, home)
            sent_ns = process.clock.instant_ns()
            reply = await process.store.partitions[home].settle(holder.instance.id, [settlement], process.since(home))
        except StoreUnavailable as error:
            if number + 1 == _TRIES:
                # The heart goes on beating for the others of this instance, so it is told to give this one up.
                holder.abandon(home, Attempt(settlement.job, settlement.fence))
                _log.warning("the end of a scope or lock could not be stored, its lease will end it: %s", error)
                return None
            await process.clock.sleep(_AGAIN_S * 2**number)
            continue
        process.heard(home, reply.news, sent_ns)
        if reply.outbox:
            await relay(process.store)
        return reply.settled[0]
    return None
