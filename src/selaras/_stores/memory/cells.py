"""The shared tier of one partition: in each key's place an entry, or intents, or a token, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from selaras._contracts.limits import FLOOR_US, SHUT_FILL_US
from selaras._contracts.partition import Fill, Invalidation, Owner, ReadRequest
from selaras._core.cache.entry import Busy, Entry, Hit, Intent, Look, Miss, Standing
from selaras._core.cache.floors import is_below
from selaras._core.cache.opening import names_borne, opened_by
from selaras._core.jobs.job import Put
from selaras._core.positions import Scope
from selaras._stores.memory.log import Log


@dataclass(slots=True)
class _Stored:
    entry: Entry
    family: str
    until_us: int  # 0: no end


@dataclass(slots=True)
class _Intent:
    fence: int
    planted_us: int
    planted_at: int  # the position of the log
    clean: bool = True
    preimage: _Stored | None = None
    until_us: int = 0


@dataclass(slots=True)
class _Token:
    token: int  # 0: nobody has it, and a tag or family of the key was open when last somebody would have filled it
    until_us: int
    granted_at: int  # the position of the log


@dataclass(slots=True)
class _Floor:
    version: int | None = None
    closed_until_us: int = 0

    @property
    def ends_us(self) -> int:
        return self.closed_until_us + (0 if self.version is None else FLOOR_US)


@dataclass(slots=True)
class Cells:
    """What stands in each key's place. `next_stamp` is the partition's counter (P15)."""

    index: int
    log: Log
    next_stamp: Callable[[], int]
    entries: dict[str, _Stored] = field(default_factory=dict[str, _Stored])
    standing: dict[str, dict[tuple[int, str], _Intent]] = field(
        default_factory=dict[str, dict[tuple[int, str], _Intent]]
    )
    tokens: dict[str, _Token] = field(default_factory=dict[str, _Token])
    floors: dict[str, _Floor] = field(default_factory=dict[str, _Floor])

    # -- readers

    def look(self, request: ReadRequest, now: int) -> Look:
        """Find what stands at a key, and grant a token if nothing does and the reader wants one."""
        key = request.key
        floor = self.floors.get(key)
        version = floor.version if floor else None
        if self.standing.get(key) or (floor and floor.closed_until_us > now):
            return Standing(version)
        stored = self._valid(key, now)
        if stored and stored.entry.stamp == request.distrust:
            del self.entries[key]
            stored = None
        if stored and (not request.lease_us or stored.entry.stamp != request.renews):
            return Hit(_as_read(stored, now))
        token = self.tokens.get(key)
        if token and not token.token:
            if token.until_us > now and self.log.is_any_open and not stored:
                return Standing(version)
        elif token and token.until_us > now:
            wait_us = token.until_us - now
            if stored:
                return Hit(_as_read(stored, now), wait_us=wait_us, holder=token.token)
            return Busy(wait_us, version, token.token)
        if not request.lease_us:
            return Busy(0, version)
        granted = _Token(self.next_stamp(), now + request.lease_us, self.log.tail.position)
        self.tokens[key] = granted
        return Hit(_as_read(stored, now), granted.token) if stored else Miss(granted.token, version)

    def fill(self, fill: Fill, now: int) -> tuple[int, int] | None:
        """Store a loaded value if its token still allows it (L7). Returns (position, stamp) or None."""
        put = fill.put
        token = self.tokens.get(put.key)
        if token is None or token.token != fill.token or token.until_us <= now or self.standing.get(put.key):
            return None
        del self.tokens[put.key]
        floor = self.floors.get(put.key)
        if floor and (floor.closed_until_us > now or is_below(put.version, floor.version)):
            return None
        if any(self._is_closed(name, now) for name in names_borne(put.family, put.tags, self.index)):
            return None
        if self.log.voided_after(token.granted_at, put.family, put.tags):
            if self.log.is_open(put.family, put.tags):
                self.tokens[put.key] = _Token(0, now + SHUT_FILL_US, self.log.tail.position)
            return None
        return self._store(put, now)

    # -- writers

    def plant(self, owner: Owner, key: str, now: int) -> Entry | None:
        """Put the owner's intent in the key's place (L3). Returns the pre-image, if it has one."""
        own = self._intent(owner, key)
        if own:  # invalidated by its own attempt: what it puts later is still the latest
            clean = own.clean
            self.void(key)
            own.clean = clean
            return None
        stored = self._valid(key, now)
        alone = key not in self.standing
        self.void(key)
        self.standing.get(key, {}).pop((owner.home, owner.job), None)  # of an earlier attempt (P18)
        intent = _Intent(owner.fence, now, self.log.tail.position, clean=alone, preimage=stored if alone else None)
        self.standing.setdefault(key, {})[owner.home, owner.job] = intent
        self.log.open(key)
        return _as_read(stored, now) if stored and alone else None

    def void(self, key: str) -> None:
        """Whatever was known of the key is not to be trusted (L6)."""
        self.log.void(key)
        self.entries.pop(key, None)
        self.tokens.pop(key, None)
        for intent in self.standing.get(key, {}).values():
            intent.clean, intent.preimage = False, None

    def invalidate(self, names: Invalidation, now: int) -> None:
        """Void names, set floors, close fills."""
        for key in names.keys:
            self.void(key)
        for tag in names.tags:
            self.log.append(Scope.TAG, tag)
        for family in names.families:
            self.log.append(Scope.FAMILY, family)
        self.set_floors(names.versions, names.closes, now)

    def set_floors(self, versions: tuple[tuple[str, int], ...], closes: tuple[tuple[str, int], ...], now: int) -> None:
        """Raise version floors, and close keys to fills for a while (P13)."""
        for key, version in versions:
            floor = self.floors.setdefault(key, _Floor())
            floor.version = version if floor.version is None else max(floor.version, version)
            floor.closed_until_us = max(floor.closed_until_us, now)  # from here on it counts how long it stands
        for key, close_us in closes:
            floor = self.floors.setdefault(key, _Floor())
            floor.closed_until_us = max(floor.closed_until_us, now + close_us)

    def outlived(self, owner: Owner, key: str) -> bool:
        """Say whether a later attempt of the same job has its intent there: the owner's lease is lost."""
        own = self.standing.get(key, {}).get((owner.home, owner.job))
        return own is not None and own.fence > owner.fence

    def resolve(self, owner: Owner, key: str, put: Put | None, now: int) -> tuple[int, int] | None:
        """Remove the owner's intent; store `put` where it may be (L5). Returns (position, stamp) of a stored value."""
        own = self._intent(owner, key)
        if own is None:
            self.void(key)  # P9
            return None
        sole = len(self.standing[key]) == 1
        self._remove(key, (owner.home, owner.job))
        if opened_by(key):
            self.void(key)  # what was loaded while it stood may be what the writer has replaced
            return None
        if put is None:
            return None
        floor = self.floors.get(key)
        late = floor and is_below(put.version, floor.version)
        if sole and own.clean and not late and not self.log.voided_after(own.planted_at, put.family, put.tags):
            return self._store(put, now)
        self.void(key)
        return None

    def restore(self, owner: Owner, key: str, now: int) -> None:
        """Undo a plant whose attempt never started: the pre-image returns, if nothing touched the key (P10)."""
        own = self._intent(owner, key)
        preimage = own.preimage if own else None
        self.resolve(owner, key, None, now)
        if own and preimage and not self.log.voided_after(own.planted_at, preimage.family, preimage.entry.tags):
            entry = replace(preimage.entry, position=self.log.tail.position, stamp=self.next_stamp())
            self.entries[key] = _Stored(entry, preimage.family, preimage.until_us)

    def pass_on(self, owner: Owner) -> None:
        """The attempt was lost: its intents wait for the next one, unclean (P18)."""
        for intent in self._of(owner):
            intent.clean, intent.preimage = False, None

    def leave(self, owner: Owner, key: str) -> None:
        """A write of the owner may still land: its intent stays, unclean; without one the key is voided (P9)."""
        own = self._intent(owner, key)
        if own is None:
            self.void(key)
        else:
            own.clean, own.preimage = False, None

    def let_stand(self, owner: Owner, until_us: int) -> None:
        """No attempt follows the owner's: intents it left behind fall, and void, at `until_us` (P18)."""
        self.pass_on(owner)
        for intent in self._of(owner):
            intent.until_us = intent.until_us or until_us

    def drop_fallen(self, now: int, limit: int) -> int:
        """Void the keys of intents whose grace is over. Returns how many."""
        fallen = [
            (key, owner)
            for key, here in self.standing.items()
            for owner, intent in here.items()
            if 0 < intent.until_us <= now
        ]
        for key, owner in sorted(fallen)[:limit]:
            self._remove(key, owner)
            self.void(key)
        return len(fallen[:limit])

    def drop_dead(self, now: int) -> None:
        """Free what no reader can meet any more: values past their end, tokens that ran out, fills open again."""
        for key in [key for key, stored in self.entries.items() if 0 < stored.until_us <= now]:
            del self.entries[key]
        for key in [key for key, token in self.tokens.items() if token.until_us <= now]:
            del self.tokens[key]
        for key in [key for key, floor in self.floors.items() if floor.ends_us <= now]:
            if self.floors.pop(key).version is not None:
                self.entries.pop(key, None)  # perhaps it kept it from being served

    def forget(self) -> None:
        """A new epoch: no entry and no token of the old one is trusted (P20)."""
        self.entries.clear()
        self.tokens.clear()
        for here in self.standing.values():
            for intent in here.values():
                intent.clean, intent.preimage = False, None

    # -- questions

    def keys_of(self, owner: Owner) -> tuple[str, ...]:
        """Return the keys on which this attempt's intents stand, in order of key."""
        return tuple(sorted(key for key in self.standing if self._intent(owner, key)))

    def intents(self, key: str) -> tuple[Intent, ...]:
        """Return the intents on a key, in order of planting."""
        return tuple(
            Intent(key, home, job, intent.fence, intent.clean, intent.until_us)
            for (home, job), intent in self.standing.get(key, {}).items()
        )

    def orphans(self, planted_before_us: int) -> tuple[Intent, ...]:
        """Return intents of other homes that have stood long, in order of key."""
        return tuple(
            intent
            for key in sorted(self.standing)
            for intent in self.intents(key)
            if intent.home != self.index and self.standing[key][intent.home, intent.job].planted_us <= planted_before_us
        )

    # -- inside

    def _valid(self, key: str, now: int) -> _Stored | None:
        """Return the entry, unless its time is over, a tag or its family was voided since, or it is below the floor."""
        stored = self.entries.get(key)
        if stored is None or 0 < stored.until_us <= now:
            return None
        entry, floor = stored.entry, self.floors.get(key)
        if self.log.voided_after(entry.position, stored.family, entry.tags):
            return None
        return None if floor and is_below(entry.version, floor.version) else stored

    def _is_closed(self, key: str, now: int) -> bool:
        floor = self.floors.get(key)
        return floor is not None and floor.closed_until_us > now

    def _intent(self, owner: Owner, key: str) -> _Intent | None:
        own = self.standing.get(key, {}).get((owner.home, owner.job))
        return own if own and own.fence == owner.fence else None

    def _store(self, put: Put, now: int) -> tuple[int, int]:
        position, stamp = self.log.tail.position, self.next_stamp()
        entry = Entry(put.value, position, stamp, put.checksum, put.expires_in_us, put.tags, put.version, put.note)
        until_us = now + put.expires_in_us if put.expires_in_us else 0
        self.entries[put.key] = _Stored(entry, put.family, until_us)
        return position, stamp

    def _remove(self, key: str, owner: tuple[int, str]) -> None:
        here = self.standing[key]
        del here[owner]
        if not here:
            del self.standing[key]
            self.log.close(key)

    def _of(self, owner: Owner) -> list[_Intent]:
        """Every intent of the owner's attempt and of those of its job before it."""
        job = (owner.home, owner.job)
        return [here[job] for here in self.standing.values() if job in here and here[job].fence <= owner.fence]


def _as_read(stored: _Stored, now: int) -> Entry:
    return replace(stored.entry, expires_in_us=stored.until_us - now if stored.until_us else 0)
