"""Delivers what one partition decided and another must do: at least once, in order (L11)."""

from __future__ import annotations

from selaras._contracts.partition import AnyEffect
from selaras._contracts.store import Store

_BATCH = 500
_ROUNDS_MOST = 20
"""Deliveries may cause new ones (a dependent's dependent); what is left after so many is for the next call."""


async def relay(store: Store) -> bool:
    """Deliver the effects that wait in outboxes. Returns whether any were. Raises StoreUnavailable: call again."""
    if len(store.partitions) == 1:
        return False
    delivered = False
    for _ in range(_ROUNDS_MOST):
        several = [await _relay_one(store, index) for index in range(len(store.partitions))]
        if not any(several):
            break
        delivered = True
    return delivered


async def _relay_one(store: Store, index: int) -> bool:
    outbox = await store.partitions[index].outbox(_BATCH)
    if not outbox.effects:
        return False
    by_target: dict[int, list[AnyEffect]] = {}
    for effect in outbox.effects:
        by_target.setdefault(effect.to, []).append(effect)
    for to, effects in by_target.items():
        await store.partitions[to].accept(effects)
        # Only what was accepted is dropped: a crash in between delivers it twice, which is once.
        await store.partitions[index].delivered([effect.id for effect in effects])
    return True
