"""What a program says about values it has changed: now, and again by the settle of its session.

Inside a session a key is voided by an intent of the session's own: now nobody can store what is not committed yet, and
the settle resolves it (P14). Tags and families are told to every partition, now and at the settle (P12).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from selaras._cache.family import Slot
from selaras._cache.follower import Follower
from selaras._cache.lineage import Lineage
from selaras._cache.session import Pending, Session
from selaras._cache.storable import Storable
from selaras._contracts.partition import Invalidation, Partition
from selaras._core.cache.entry import Entry
from selaras._core.cache.lifetimes import Past, note_of
from selaras._core.cache.lineage import What
from selaras._core.cache.opening import Opening, open_names
from selaras._core.errors import LeaseLost
from selaras._core.jobs.job import Refusal
from selaras._core.positions import News, Scope
from selaras._core.routing import partition_of


class Voiding:
    """Puts and invalidations. `drop`: these keys are gone from the local tier, and nothing older is joined (P5)."""

    def __init__(
        self,
        partitions: Sequence[Partition],
        followers: Sequence[Follower],
        instant: Callable[[], int],
        storable: Storable,
        *,
        heard: Callable[[Follower, News, int], bool],
        drop: Callable[[Iterable[str]], None],
        drop_joins: Callable[[], None],
        lag_us: Callable[[Opening], int],
        lineage: Lineage | None = None,
    ) -> None:
        self._partitions = partitions
        self._followers = followers
        self._instant = instant
        self._storable = storable
        self._heard = heard
        self._drop = drop
        self._drop_joins = drop_joins
        self._lag_us = lag_us
        self._lineage = lineage

    async def put(self, slot: Slot, value: Any, session: Session | None) -> None:
        """Keep a value for the settle of the session whose intent stands there; else void the key (P8).

        Raises:
            NotEncodable: it cannot be stored. The key is voided all the same: the datastore has changed.
        """
        data, refused = self._storable.encoded(slot, value)
        owner = session.owner_of(slot.key) if session else None
        if session is None or owner is None:
            version = None if refused else self._version(slot, value)
            await self.void([slot], versions=() if version is None else ((slot, version),), session=session)
            if refused:
                raise refused
            return
        preimage = owner.preimages.pop(slot.key, None)
        if preimage is not None and slot.family.adaptive is not None:
            owner.pasts[slot.key] = self._past(owner, preimage)
        if refused:
            owner.puts.pop(slot.key, None)
            raise refused
        put = self._storable.put_of(slot, value, data, owner.pasts.get(slot.key) or self._remembered(slot))
        kept = None if put is None else await self._storable.to_keep(slot, put)
        if kept is None or owner is not session.scope():
            # Not to be stored; or put in a scope within the owner's, which may yet be rolled back while the owner
            # succeeds. Its intent falls without a value: nothing stands there then.
            owner.puts.pop(slot.key, None)
            return
        if not owner.keep(Pending(slot, kept, value if slot.family.codec.shared else None)):
            await self.put(slot, value, None)

    def _past(self, owner: Session, preimage: Entry) -> Past:
        """Return a key's past now that it is written: what its pre-image carries, and this change."""
        note = note_of(preimage.note)
        since_us = (self._instant() - owner.since_ns) // 1_000
        return note.past.changed(note.stored_ago_us(preimage.expires_in_us) + max(0, since_us))

    def _remembered(self, slot: Slot) -> Past | None:
        seen = self._storable.histories.of(slot.key) if slot.family.adaptive is not None else None
        return None if seen is None else seen.past.changed((self._instant() - seen.at_ns) // 1_000)

    async def void(
        self,
        slots: Sequence[Slot] = (),
        *,
        tags: Sequence[str] = (),
        families: Sequence[str] = (),
        versions: Sequence[tuple[Slot, int]] = (),
        session: Session | None,
    ) -> None:
        """Void names; see `Cache.invalidate`."""
        if versions:
            slots = (*slots, *(slot for slot, _ in versions))
        scope = session.scope() if session else None
        if session is None or scope is None:
            if len(slots) == 1 and not (tags or families or versions):
                await self._void_one(slots[0])
            else:
                await self._void_now(slots, tags, families, versions)
            return
        scope.versions.update((slot.key, version) for slot, version in versions)
        scope.tags.update(dict.fromkeys(tags))
        scope.families.update(dict.fromkeys(families))
        scope.late.update(self.closing(_openings(tags, families)))
        self._drop(slot.key for slot in slots)
        await asyncio.gather(self._plant(slots, session, scope), self._void_now((), tags, families, ()))

    async def _plant(self, slots: Iterable[Slot], session: Session, scope: Session) -> None:
        """Let an intent of the session's own stand on each key that has none of it yet."""
        there: dict[int, list[str]] = {}
        late: list[Slot] = []  # its end is being told already
        for slot in slots:
            owner = session.owner_of(slot.key)
            if owner is not None:
                owner.puts.pop(slot.key, None)
                owner.preimages.pop(slot.key, None)
                continue
            # Noted first: if the call is cut off, the settle voids what it does not find (P9).
            if not scope.plants(slot):
                late.append(slot)
                continue
            there.setdefault(slot.partition, []).append(slot.key)
        await asyncio.gather(*(self._plant_at(index, keys, scope) for index, keys in there.items()))
        if late:
            await self._void_now(late, (), (), ())

    async def _plant_at(self, index: int, keys: Sequence[str], scope: Session) -> None:
        follower = self._followers[index]
        if scope.owner is None:  # a transaction plants all of them together, before its commit
            self._drop(keys)
            return
        sent = self._instant()
        planted = await self._partitions[index].plant(scope.instance, scope.owner, keys, follower.applied)
        self._heard(follower, planted.news, sent)
        self._drop(keys)
        if planted.refusal is Refusal.LEASE_LOST:
            scope.refused = True
            raise LeaseLost(
                f"the attempt of {scope.owner.job} with fence {scope.owner.fence} is over: its job was given to another"
                " worker. Nothing it does is stored any more."
            )

    async def _void_now(
        self,
        slots: Sequence[Slot],
        tags: Sequence[str],
        families: Sequence[str],
        versions: Sequence[tuple[Slot, int]],
    ) -> None:
        everywhere = Invalidation(tags=tuple(tags), families=tuple(families))
        names: dict[int, Invalidation] = {}
        closed: dict[int, list[tuple[str, int]]] = {}
        if tags or families:
            names = dict.fromkeys(range(len(self._partitions)), everywhere)
            for name, lag_us in self.closing(_openings(tags, families)).items():
                closed.setdefault(partition_of(name, len(self._partitions)), []).append((name, lag_us))
            for index, those in closed.items():
                names[index] = replace(everywhere, closes=tuple(those))
        named = {slot.key for slot, _ in versions}
        there: dict[int, list[Slot]] = {}
        for slot in {slot.key: slot for slot in slots}.values():
            there.setdefault(slot.partition, []).append(slot)
        for index, here in there.items():
            names[index] = Invalidation(
                keys=tuple(slot.key for slot in here),
                tags=everywhere.tags,
                families=everywhere.families,
                versions=tuple((slot.key, version) for slot, version in versions if slot.partition == index),
                closes=(*_late(slot for slot in here if slot.key not in named), *closed.get(index, ())),
            )
        done: Sequence[BaseException | None] = ()
        try:
            if len(names) == 1:
                await self._void_at(*names.popitem())
            else:
                # All are tried even if one fails: the more is voided the better.
                done = await asyncio.gather(*(self._void_at(i, n) for i, n in names.items()), return_exceptions=True)
        finally:
            self._drop(slot.key for slot in slots)
            if tags or families:
                self._drop_joins()
        for error in done:
            if isinstance(error, BaseException):
                raise error

    async def _void_one(self, slot: Slot) -> None:
        """Do the same for one key and nothing else, which is what most calls are."""
        try:
            await self._void_at(slot.partition, Invalidation((slot.key,), closes=_late((slot,))))
        finally:
            self._drop((slot.key,))

    def closing(self, openings: Iterable[Opening]) -> dict[str, int]:
        """Return the names under which these tags and families stand whose values may come late, and how late."""
        return {
            name: lag_us
            for what in sorted(openings)
            if (lag_us := self._lag_us(what))
            for name in open_names(*what, len(self._partitions))
        }

    async def _void_at(self, index: int, names: Invalidation) -> None:
        follower = self._followers[index]
        sent = self._instant()
        news = await self._partitions[index].invalidate(names, follower.applied)
        self._heard(follower, news, sent)
        if self._lineage is not None:
            self._note(self._lineage, names, index, news.tail.position)

    def _note(self, lineage: Lineage, names: Invalidation, index: int, position: int) -> None:
        for key in names.keys:
            lineage.note_here(What.VOIDED, key, position=position)
        for name in names.tags:
            lineage.note_wide(f"tag {name}", index, position)
        for name in names.families:
            lineage.note_wide(f"family {name}", index, position)

    def _version(self, slot: Slot, value: Any) -> int | None:
        if slot.family.version is None or value is None:
            return None
        try:
            return slot.family.version(value)
        except Exception as error:  # noqa: BLE001 - the program's function: the datastore has changed whatever it says
            self._storable.refuse(slot, error)
            return None


def _late(slots: Iterable[Slot]) -> tuple[tuple[str, int], ...]:
    """Return the keys whose values may come late, and how late."""
    return tuple((slot.key, slot.family.replica_lag_us) for slot in slots if slot.family.replica_lag_us)


def _openings(tags: Iterable[str], families: Iterable[str]) -> list[Opening]:
    return [*((Scope.TAG, tag) for tag in tags), *((Scope.FAMILY, family) for family in families)]
