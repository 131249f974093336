"""Values are brought near before somebody needs them: for claimed jobs, for those that wait, and by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from selaras._cache.family import Family, Slot
from selaras._cache.flight import Flights
from selaras._cache.follower import Follower
from selaras._cache.local import LocalEntry, LocalTier
from selaras._cache.session import SESSION, Session, SessionKind, session_here
from selaras._contracts.clock import Clock
from selaras._core.cache.freshness import Level, Need
from selaras._core.cache.opening import open_name
from selaras._core.positions import Scope


class Brought(Struct, frozen=True, kw_only=True):
    """What bringing values into the tiers came to.

    Attributes:
        held: the local tier had it. shared: the shared tier had it. loaded: the datastore was asked, and it is kept.
        unkept: the datastore was asked, and it is not kept: somebody writes it, or the store did not answer.
        failed: its loader failed. error: what the first of them raised.
    """

    held: int = 0
    shared: int = 0
    loaded: int = 0
    unkept: int = 0
    failed: int = 0
    error: BaseException | None = None


WRITTEN_MOST: Final = 10_000
"""Keys remembered that attempts of this process write; those whose end is never heard of are among them."""


class Warming:
    """Brings values. What it needs of the read path is handed in: see `Cache`. `families`: those that were read."""

    def __init__(
        self,
        local: LocalTier,
        followers: Sequence[Follower],
        clock: Clock,
        families: dict[str, Family],
        *,
        need: Callable[[Family, Level | None, Session | None], Need],
        prove: Callable[[Slot, Need], Awaitable[LocalEntry | None]],
        flights: Callable[[], Flights],
        join_floor: Callable[[str], int],
        get_many: Callable[[Sequence[Slot]], Awaitable[list[Any]]],
    ) -> None:
        self._local = local
        self._followers = followers
        self._clock = clock
        self._families = families
        self._need = need
        self._prove = prove
        self._flights = flights
        self._join_floor = join_floor
        self._get_many = get_many
        self._written: dict[str, Session] = {}  # keys that attempts of this process write, so far as is known

    def holds(self, slots: Sequence[Slot]) -> bool:
        """Say whether to warm these would gain nothing: the local tier has an entry, fresh enough or not, or nothing can be
        stored, since an attempt of this process writes the key.
        """
        entries, written = self._local.entries, self._written
        for slot in slots:
            if slot.key not in entries and slot.key not in written and self._local.find(slot.key) is None:
                return False
        return True

    def writes(self, session: Session) -> None:
        """An attempt was claimed: what it writes can't be stored until it has `ended`."""
        if len(self._written) > WRITTEN_MOST:
            self._written.clear()  # a hint: at worst they are warmed in vain
        for key in session.own:
            self._written[key] = session

    def ended(self, session: Session) -> None:
        """An attempt has ended."""
        for key in session.own:
            if self._written.get(key) is session:
                del self._written[key]

    async def warm(self, slots: Sequence[Slot], sessions: Sequence[Session] = ()) -> None:
        """Bring values into the local tier, fresh enough for these sessions. Keys that they write are left out; what
        fails is left to the read that follows.
        """
        written = {key for session in sessions for one in session.chain() for key in (*one.own, *one.serves)}
        wanted = [slot for slot in slots if slot.key not in written and not self.holds((slot,))]
        if not wanted:
            return
        reader = _latest(sessions)
        before = SESSION.set(reader) if reader else None
        try:
            await self._get_many(wanted)
        except Exception:  # noqa: BLE001, S110 - the read that needs the value meets the same error, and tells its caller
            pass
        finally:
            if before is not None:
                SESSION.reset(before)

    def ahead(self, slots: Sequence[Slot], most: int) -> set[str]:
        """Begin to bring values for jobs that wait to be claimed, `most` at a time, and wait for nothing. What is at hand,
        or is written or loaded by others, is left alone. Returns the keys that were begun.
        """
        wanted = [slot for slot in slots if slot.family.ttl_us != 0 and not self._gains_nothing(slot)]
        if not wanted:
            return set()
        for slot in wanted:
            self._families[slot.family.name] = slot.family
        return self._flights().ahead(wanted, most)

    def _gains_nothing(self, slot: Slot) -> bool:
        follower = self._followers[slot.partition]
        opened = open_name(Scope.FAMILY, slot.family.name, slot.partition)
        return opened in self._written or self.holds((slot,)) or follower.breaker.is_open(self._clock.instant_ns())

    async def bring(self, slots: Sequence[Slot]) -> Brought:
        """Bring values into the tiers, as a read would that does not need them: in one trip a partition, with one call of
        each batch loader. Whatever the number of processes that do it, each key is loaded once.
        """
        session = session_here()
        rest: list[Slot] = []
        held = 0
        need = max(
            (self._need(slot.family, None, session) for slot in slots), key=lambda need: need.since_ns, default=None
        )
        for slot in {slot.key: slot for slot in slots}.values():
            self._families[slot.family.name] = slot.family
            if need is not None and await self._prove(slot, need) is not None:
                held += 1
            elif session is None or not (session.writes(slot.key) or session.opener_of(slot.family)):
                rest.append(slot)
        if need is None or not rest:
            return Brought(held=held)
        outcomes = await self._flights().ride_each(rest, need, self._join_floor)
        failed = [one for _, one in outcomes if isinstance(one, BaseException)]
        came = [one for _, one in outcomes if not isinstance(one, BaseException)]
        loaded = [one for one in came if one.tier == "loader"]
        return Brought(
            held=held,
            shared=len(came) - len(loaded),
            loaded=sum(1 for one in loaded if one.position is not None),
            unkept=sum(1 for one in loaded if one.position is None),
            failed=len(failed),
            error=failed[0] if failed else None,
        )


def _latest(sessions: Sequence[Session]) -> Session | None:
    """Return a session that must see all that these must see."""
    if not sessions:
        return None
    since = max(session.since_ns for session in sessions)
    homes = {session.home for session in sessions}
    home = homes.pop() if len(homes) == 1 else -1
    return Session(SessionKind.LOADING, since, home, max(session.position for session in sessions))
