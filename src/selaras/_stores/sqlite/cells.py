"""The shared tier of one partition: in each key's place an entry, or intents, or a token, or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from selaras._contracts.limits import FLOOR_US, OPEN_POSITION, SHUT_FILL_US
from selaras._contracts.partition import Fill, Invalidation, Owner, ReadRequest
from selaras._core.cache.entry import Busy, Entry, Hit, Intent, Look, Miss, Standing
from selaras._core.cache.floors import PerKey, is_below
from selaras._core.cache.opening import OPENING, names_borne
from selaras._core.jobs.job import Put
from selaras._core.positions import Scope
from selaras._stores.sqlite.connection import HELD_ON_MOST, UNREADABLE, Connection, as_list, is_listed
from selaras._stores.sqlite.log import Log

_CELL: Final = """
    EXISTS (SELECT 1 FROM intents WHERE key = ?), f.version, f.closed_until_us, t.until_us,
    e.position, e.stamp, e.checksum, e.until_us, e.family, e.version, e.tags, e.value, e.note, t.token
"""
_STANDS: Final = """
    LEFT JOIN entries AS e ON e.key = ? LEFT JOIN floors AS f ON f.key = ? LEFT JOIN tokens AS t ON t.key = ?
"""
CELL: Final = f"SELECT {_CELL} FROM (SELECT 1) {_STANDS}"
"""All that stands in the place of a key, in one row: it is given four times."""

HIT: Final = """
    SELECT l.position, l.event_id, l.epoch, l.counter, l.last_mark, l.tag_floor, l.time_us, l.offset_us,
        e.position, e.stamp, e.checksum, e.until_us, e.family, e.version, e.tags, e.value, e.note
    FROM ledger AS l LEFT JOIN entries AS e ON e.key = ?
    WHERE l.one = 1 AND NOT EXISTS (SELECT 1 FROM intents WHERE key = ?) AND NOT EXISTS (SELECT 1 FROM floors WHERE key = ?)
        AND (e.key IS NOT NULL OR NOT EXISTS (SELECT 1 FROM tokens WHERE key = ?))
"""
"""An entry that nothing stands beside, or none and nothing else either, with the log's ends: one statement, and so of one
snapshot. The key is given four times."""

CELLS_AHEAD: Final = """
    SELECT k.value, f.version, f.closed_until_us, t.until_us,
        e.position, e.stamp, e.checksum, e.until_us, e.family, e.version, e.tags, e.value, e.note
    FROM json_each(?) AS k LEFT JOIN entries AS e ON e.key = k.value LEFT JOIN floors AS f ON f.key = k.value
    LEFT JOIN tokens AS t ON t.key = k.value
"""
_INTENT: Final = "SELECT key, number, home, job, fence, clean, planted_at, preimage FROM intents"
_HERE: Final = f"{_INTENT} WHERE key = ? ORDER BY number"
INTENTS_AHEAD: Final = f"{_INTENT} WHERE key IN (SELECT value FROM json_each(?))"
OWNED: Final = "SELECT job, fence, key FROM intents WHERE home = ? AND job IN (SELECT value FROM json_each(?))"
_OWNED_BY: Final = "SELECT fence, key FROM intents WHERE home = ? AND job = ?"
_STORE: Final = (
    "INSERT OR REPLACE INTO entries (key, position, stamp, checksum, until_us, family, version, tags, value, note)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_DROP_ENTRY: Final = "DELETE FROM entries WHERE key = ?"
_DROP_TOKEN: Final = "DELETE FROM tokens WHERE key = ?"
_GRANT: Final = "INSERT OR REPLACE INTO tokens (key, token, until_us, granted_at) VALUES (?, ?, ?, ?)"
_TOKEN: Final = """
    SELECT t.token, t.until_us, t.granted_at, EXISTS (SELECT 1 FROM intents WHERE key = t.key),
        f.version, coalesce(f.closed_until_us, 0),
        coalesce((SELECT closed_until_us FROM floors WHERE key = char(31)), 0)
    FROM tokens AS t LEFT JOIN floors AS f ON f.key = t.key WHERE t.key = ?
"""
_CLOSED: Final = "SELECT 1 FROM floors WHERE key IN (SELECT value FROM json_each(?)) AND closed_until_us > ? LIMIT 1"
_FLOOR: Final = "SELECT version, closed_until_us FROM floors WHERE key = ?"
_FLOORS_AFTER: Final = "SELECT key, version, closed_until_us FROM floors WHERE key > ? ORDER BY key LIMIT ?"
_DROP_FLOOR: Final = "DELETE FROM floors WHERE key = ?"
_SET_FLOOR: Final = "INSERT OR REPLACE INTO floors (key, version, closed_until_us) VALUES (?, ?, ?)"
_PLANT: Final = (
    "INSERT INTO intents (number, key, home, job, fence, planted_us, planted_at, clean, preimage)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_LAST_NUMBER: Final = "SELECT coalesce(max(number), 0) FROM intents"
_TOUCH: Final = "UPDATE intents SET clean = 0, preimage = NULL WHERE key = ?"
_CLEAN: Final = "UPDATE intents SET clean = ? WHERE number = ?"
_REMOVE: Final = "DELETE FROM intents WHERE number = ?"
_LATER: Final = "SELECT 1 FROM intents WHERE key = ? AND home = ? AND job = ? AND fence > ?"
_IS_STANDING: Final = "SELECT 1 FROM intents WHERE key = ? LIMIT 1"
_PASS_ON: Final = "UPDATE intents SET clean = 0, preimage = NULL WHERE home = ? AND job = ? AND fence <= ?"
_LEAVE: Final = "UPDATE intents SET clean = 0, preimage = NULL WHERE key = ? AND home = ? AND job = ? AND fence = ?"
_LET_STAND: Final = (
    "UPDATE intents SET clean = 0, preimage = NULL, until_us = iif(until_us > 0, until_us, ?)"
    " WHERE home = ? AND job = ? AND fence <= ?"
)
_FALLEN: Final = "SELECT number, key FROM intents WHERE until_us > 0 AND until_us <= ? ORDER BY key, home, job LIMIT ?"
_INTENTS: Final = "SELECT key, home, job, fence, clean, until_us FROM intents"

_encode: Final = msgspec.msgpack.encode
_decode_tags: Final = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_decode_preimage: Final = msgspec.msgpack.Decoder(
    tuple[int, int, int, int, str, int | None, bytes | None, bytes, bytes]
).decode

_SIGN: Final = 1 << 63
_WRAP: Final = 1 << 64

StoredEntry = tuple[int, int, int, int, str, int | None, bytes | None, bytes, bytes]
"""position, stamp, checksum, until_us, family, version, tags, value, note: as the row has them."""


class _Cell(Struct, eq=False):
    """What stands in the place of one key: as the tables will have it once what was decided is written."""

    floor: int | None
    closed_until_us: int | None
    token_until_us: int | None
    entry: StoredEntry | None
    here: list[_Standing] = []


class _Standing(Struct, order=True):
    """An intent as its row has it; in order of planting."""

    number: int
    home: int
    job: str
    fence: int
    clean: int
    planted_at: int
    preimage: bytes | None


class Cells:
    """What stands in each key's place, as the running transaction sees it.

    Claims and settles read the places of their keys ahead, a statement for all, and what they decide is written
    together (`flush`). Places without a value are remembered beyond the verb, for the settle that removes an intent and the
    claim that plants the next: true as long as no other connection writes. Every method that goes to the tables itself begins with `_at_rest`: then they are
    right, and of the key that it changes nothing is known.
    """

    def __init__(self, con: Connection, log: Log, index: int) -> None:
        self._con = con
        self._execute = con.execute
        self._log = log
        self._index = index
        self._ahead: dict[str, _Cell] = {}
        self._owned: dict[str, list[tuple[int, str]]] = {}  # job at home here -> (fence, key) of its intents
        # The same beyond the verb: places without a value, and jobs that have intents.
        self._held_on: dict[str, _Cell] = {}
        self._owned_on: dict[str, list[tuple[int, str]]] = {}
        self._floors_seen = ""  # how far the last look at them came
        self._last_number: int | None = None  # of an intent, if that is known
        # Written in this order. A key is dropped before it is stored, and touched before another intent comes.
        self._removed: list[tuple[int]] = []
        self._touched: list[tuple[str]] = []
        self._planted: list[tuple[Any, ...]] = []
        self._entries_dropped: list[tuple[str]] = []
        self._tokens_dropped: list[tuple[str]] = []
        self._stored: dict[str, tuple[Any, ...]] = {}

    # -- together

    def read_ahead(self, keys: Iterable[str]) -> None:
        """Read what stands in the places of keys: their intents are going to be planted or resolved."""
        missing = [key for key in keys if not self._knows(key)]
        if len(missing) < 2:
            return
        listed = as_list(missing)
        for key, floor, closed_until_us, token_until_us, *entry in self._execute(CELLS_AHEAD, (listed,)):
            stored = cast("StoredEntry", tuple(entry)) if entry[0] is not None else None
            self._ahead[key] = _Cell(floor, closed_until_us, token_until_us, stored)
        for key, *standing in self._execute(INTENTS_AHEAD, (listed,)):
            here = self._ahead[key].here
            here.append(_Standing(*standing))
            if len(here) > 1:
                here.sort()

    def read_ahead_of(self, jobs: Sequence[str]) -> list[str]:
        """Find the intents of jobs at home here that are going to be settled. Returns their keys."""
        unknown: list[str] = []
        keys: list[str] = []
        for job in jobs:
            owned = self._intents_of(job)
            if owned is None:
                unknown.append(job)
            else:
                keys += [key for _, key in owned]
        if len(unknown) < 2:
            return keys
        self._owned.update({job: [] for job in unknown if is_listed(job)})
        for job, fence, key in self._execute(OWNED, (self._index, as_list(unknown))).fetchall():
            self._owned[job].append((fence, key))
            keys.append(key)
        return keys

    def has_none(self, job: str) -> None:
        """A job at home here has no intents: it was never claimed before."""
        self._owned[job] = []

    def keys_of(self, owner: Owner) -> list[str]:
        """Return the keys on which this attempt's intents stand, in order of key."""
        owned = self._intents_of(owner.job) if owner.home == self._index else None
        if owned is None:
            self.flush()
            owned = self._execute(_OWNED_BY, (owner.home, owner.job)).fetchall()
        return sorted([key for fence, key in owned if fence == owner.fence])

    def flush(self) -> None:
        """Write what was decided: the statements that follow read it."""
        for statement, values in (
            (_REMOVE, self._removed),
            (_TOUCH, self._touched),
            (_PLANT, self._planted),
            (_DROP_ENTRY, self._entries_dropped),
            (_DROP_TOKEN, self._tokens_dropped),
        ):
            if values:
                self._con.executemany(statement, values)
                values.clear()
        if self._stored:
            self._con.executemany(_STORE, list(self._stored.values()))
            self._stored.clear()

    def clear(self) -> None:
        """A verb has ended: of what was read no more is known than places without a value, and whose intents stand."""
        if not (self._ahead or self._owned or self._stored):
            return
        self.flush()
        held_on, owned_on = self._held_on, self._owned_on
        if len(held_on) > HELD_ON_MOST or len(owned_on) > HELD_ON_MOST:
            held_on.clear()
            owned_on.clear()
        # A value is not remembered: it may be large.
        held_on.update({key: cell for key, cell in self._ahead.items() if cell.entry is None})
        self._ahead.clear()
        owned_on.update({job: owned for job, owned in self._owned.items() if owned})
        self._owned.clear()

    def forget_held_on(self) -> None:
        """Another connection has written."""
        self._held_on.clear()
        self._owned_on.clear()
        self._last_number = None

    def forget_all(self) -> None:
        """The transaction was rolled back: nothing that was read or decided is true."""
        self._forget()
        for decided in (
            self._removed, self._touched, self._planted, self._entries_dropped, self._tokens_dropped, self._stored,
        ):  # fmt: skip
            decided.clear()

    def _at_rest(self, key: str) -> None:
        self.flush()
        self._ahead.pop(key, None)
        self._held_on.pop(key, None)

    def _all_at_rest(self) -> None:
        self.flush()
        self._forget()

    def _forget(self) -> None:
        self._ahead.clear()
        self._owned.clear()
        self.forget_held_on()

    def _knows(self, key: str) -> bool:
        """Say whether what stands in a key's place is known; what is taken up here is dropped or kept by `clear`."""
        if key in self._ahead:
            return True
        cell = self._held_on.pop(key, None)
        if cell is None:
            return False
        self._ahead[key] = cell
        return True

    def _intents_of(self, job: str) -> list[tuple[int, str]] | None:
        """Return (fence, key) of the intents of a job at home here, if they are known."""
        owned = self._owned.get(job)
        if owned is None and (owned := self._owned_on.pop(job, None)) is not None:
            self._owned[job] = owned
        return owned

    def _note_gone(self, owner: Owner, fence: int, key: str) -> None:
        owned = self._intents_of(owner.job) if owner.home == self._index else None
        if owned is not None and (fence, key) in owned:
            owned.remove((fence, key))

    def _number(self) -> int:
        """Return the number of the next intent: higher than that of any that stands."""
        last = self._last_number
        if last is None:
            self.flush()
            last = int(self._execute(_LAST_NUMBER).fetchone()[0])
        self._last_number = last + 1
        return last + 1

    def _cell(self, key: str) -> _Cell:
        """Return what stands in a key's place."""
        cell = self._ahead[key] if self._knows(key) else None
        if cell is None:
            self.flush()
            row = self._execute(CELL, (key, key, key, key)).fetchone()
            cell = self._ahead[key] = _Cell(row[1], row[2], row[3], row[4:-1] if row[4] is not None else None)
            if row[0]:
                cell.here = [_Standing(*standing[1:]) for standing in self._execute(_HERE, (key,))]
        return cell

    # -- readers

    def look(self, request: ReadRequest, now: int) -> Look:
        """Find what stands at a key, and grant a token if nothing does and the reader wants one."""
        self._at_rest(request.key)
        key, log = request.key, self._log
        cell = self._execute(CELL, (key, key, key, key)).fetchone()
        is_any_open = log.last_mark == OPEN_POSITION
        look = look_at(cell, now, lambda: is_void(log, cell[4], cell[8], cell[10]), is_any_open)
        if isinstance(look, Hit) and look.entry.stamp == request.distrust:
            self._execute(_DROP_ENTRY, (key,))
            look = look_at((*cell[:4], None, *cell[5:]), now, lambda: True, is_any_open)
        if not request.lease_us:
            return look
        match look:
            case Busy(0, floor):
                return Miss(self._grant(request, now), floor)
            case Hit(entry) if entry.stamp == request.renews:
                until_us = cell[3]
                if until_us is not None and until_us > now:
                    return Hit(entry, wait_us=until_us - now, holder=cell[-1])
                return Hit(entry, self._grant(request, now))
            case _:
                return look

    def _grant(self, request: ReadRequest, now: int) -> int:
        token = self._log.next_stamp(now)
        self._execute(_GRANT, (request.key, token, now + request.lease_us, self._log.position))
        return token

    def fill(self, fill: Fill, now: int) -> tuple[int, int] | None:
        """Store a loaded value if its token still allows it (L7). Returns (position, stamp) or None."""
        self._at_rest(fill.put.key)
        put = fill.put
        found = self._execute(_TOKEN, (put.key,)).fetchone()
        if found is None:
            return None
        token, until_us, granted_at, stands, version, closed_until_us, any_until_us = found
        if token != fill.token or until_us <= now or stands:
            return None
        self._execute(_DROP_TOKEN, (put.key,))
        if closed_until_us > now or is_below(put.version, version):
            return None
        if any_until_us > now:
            names = as_list(names_borne(put.family, put.tags, self._index))
            if self._execute(_CLOSED, (names, now)).fetchone():
                return None
        if self._log.voided_after(granted_at, put.family, put.tags):
            if self._log.is_open(put.family, put.tags):
                self._execute(_GRANT, (put.key, 0, -now - SHUT_FILL_US, self._log.position))
            return None
        return self._store(put, now)

    def extend(self, key: str, token: int, until_us: int, now: int) -> None:
        """Renew a token that still lives."""
        self._at_rest(key)
        self._execute(
            "UPDATE tokens SET until_us = ? WHERE key = ? AND token = ? AND until_us > ?", (until_us, key, token, now)
        )

    def abandon(self, key: str, token: int) -> None:
        """Take a token back."""
        self._at_rest(key)
        self._execute("DELETE FROM tokens WHERE key = ? AND token = ?", (key, token))

    # -- writers

    def plant(self, owner: Owner, key: str, now: int) -> Entry | None:
        """Put the owner's intent in the key's place (L3). Returns the pre-image, if it has one."""
        cell = self._cell(key)
        here = cell.here
        if here and self._planted:  # one of them may not be written yet
            self.flush()
        former = next((one for one in here if one.home == owner.home and one.job == owner.job), None) if here else None
        if former and former.fence == owner.fence:
            # Invalidated by its own attempt: what it puts later is still the latest.
            self.void(key)
            self._execute(_CLEAN, (former.clean, former.number))
            return None
        stands_alone = not here
        stored = self._valid(cell, now) if stands_alone else None
        self._log.void(key)
        self._clear_place(key, cell)
        if here:
            self._touched.append((key,))
        if former:  # of an earlier attempt (P18)
            self._removed.append((former.number,))
            here.remove(former)
        for other in here:
            other.clean, other.preimage = 0, None
        preimage = _encode(stored) if stored else None
        number, at, clean = self._number(), self._log.position, int(stands_alone)
        self._planted.append((number, key, owner.home, owner.job, owner.fence, now, at, clean, preimage))
        here.append(_Standing(number, owner.home, owner.job, owner.fence, clean, at, preimage))
        if former:
            self._note_gone(owner, former.fence, key)
        if owner.home == self._index and (owned := self._intents_of(owner.job)) is not None:
            owned.append((owner.fence, key))
        if key[:1] == OPENING:
            self._log.open(key)
        return entry_of(stored, now) if stored else None

    def _clear_place(self, key: str, cell: _Cell) -> None:
        if cell.entry is not None:
            self._entries_dropped.append((key,))
            self._stored.pop(key, None)
            cell.entry = None
        if cell.token_until_us is not None:
            self._tokens_dropped.append((key,))
            cell.token_until_us = None

    def void(self, key: str) -> None:
        """Whatever was known of the key is not to be trusted (L6)."""
        self._at_rest(key)
        self._log.void(key)
        self._execute(_DROP_ENTRY, (key,))
        self._execute(_DROP_TOKEN, (key,))
        self._execute(_TOUCH, (key,))

    def invalidate(self, names: Invalidation, now: int) -> None:
        """Void names, set floors, close fills."""
        for key in names.keys:
            self.void(key)
        for tag in names.tags:
            self._log.append(Scope.TAG, tag)
        for family in names.families:
            self._log.append(Scope.FAMILY, family)
        self.set_floors(names.versions, names.closes, now)

    def set_floors(self, versions: PerKey, closes: PerKey, now: int) -> None:
        """Raise version floors, and close keys to fills for a while (P13)."""
        if versions or closes:
            self._all_at_rest()
        for key, version in versions:
            floor, closed_until_us = self._floor(key)
            self._execute(
                _SET_FLOOR, (key, version if floor is None else max(floor, version), max(closed_until_us, now))
            )
        for key, close_us in closes:
            # Under no name at all stands until when any is closed: most fills ask no further.
            for closed in (key, OPENING) if key[:1] == OPENING else (key,):
                floor, closed_until_us = self._floor(closed)
                self._execute(_SET_FLOOR, (closed, floor, max(closed_until_us, now + close_us)))

    def outlived(self, owner: Owner, key: str) -> bool:
        """Say whether a later attempt of the same job has its intent there: the owner's lease is lost."""
        self.flush()
        return self._execute(_LATER, (key, owner.home, owner.job, owner.fence)).fetchone() is not None

    def resolve(self, owner: Owner, key: str, put: Put | None, now: int) -> tuple[int, int] | None:
        """Remove the owner's intent; store `put` where it may be (L5). Returns (position, stamp) of a stored value."""
        cell = self._cell(key)
        own = _of(owner, cell.here)
        if own is None:
            self.void(key)  # P9
            return None
        if self._planted:  # it may be among them
            self.flush()
        cell.here.remove(own)
        self._removed.append((own.number,))
        self._note_gone(owner, own.fence, key)
        if key[:1] == OPENING:
            self._close(key)  # what was loaded while it stood may be what the writer has replaced
            return None
        if put is None:
            return None
        late = is_below(put.version, cell.floor)
        if (
            not cell.here
            and own.clean
            and not late
            and not self._log.voided_after(own.planted_at, put.family, put.tags)
        ):
            return self._store(put, now, cell)
        self.void(key)
        return None

    def _close(self, key: str) -> None:
        self._at_rest(key)
        if not self._execute(_IS_STANDING, (key,)).fetchone():
            self._log.close(key)
        self.void(key)

    def restore(self, owner: Owner, key: str, now: int) -> None:
        """Undo a plant whose attempt never started: the pre-image returns, if nothing touched the key (P10)."""
        own = _of(owner, self._cell(key).here)
        self.resolve(owner, key, None, now)
        if own is None or own.preimage is None:
            return
        try:
            _, _, checksum, until_us, family, version, tags, value, note = _decode_preimage(own.preimage)
        except UNREADABLE:
            return
        if not is_void(self._log, own.planted_at, family, tags):
            position, stamp = self._log.position, self._log.next_stamp(now)
            self._keep(key, (position, stamp, checksum, until_us, family, version, tags, value, note), self._cell(key))

    def pass_on(self, owner: Owner) -> None:
        """The attempt was lost: its intents wait for the next one, unclean (P18)."""
        self._all_at_rest()
        self._execute(_PASS_ON, (owner.home, owner.job, owner.fence))

    def leave(self, owner: Owner, key: str) -> None:
        """A write of the owner may still land: its intent stays, unclean; without one the key is voided (P9)."""
        self._at_rest(key)
        if not self._execute(_LEAVE, (key, owner.home, owner.job, owner.fence)).rowcount:
            self.void(key)

    def let_stand(self, owner: Owner, until_us: int) -> None:
        """No attempt follows the owner's: intents it left behind fall, and void, at `until_us` (P18)."""
        self._all_at_rest()
        self._execute(_LET_STAND, (until_us, owner.home, owner.job, owner.fence))

    def drop_fallen(self, now: int, limit: int) -> int:
        """Void the keys of intents whose grace is over. Returns how many."""
        self._all_at_rest()
        fallen = self._execute(_FALLEN, (now, limit)).fetchall()
        for number, key in fallen:
            self._execute(_REMOVE, (number,))
            self._close(key)
        return len(fallen)

    def drop_dead(self, now: int, limit: int) -> bool:
        """Free what no reader can meet any more: values past their end, tokens that ran out, fills open again. Returns
        whether there may be more of it.
        """
        self._all_at_rest()
        entries = self._execute(
            "DELETE FROM entries WHERE rowid IN"
            " (SELECT rowid FROM entries WHERE until_us > 0 AND until_us <= ? ORDER BY until_us LIMIT ?)",
            (now, limit),
        ).rowcount
        tokens = self._execute(
            "DELETE FROM tokens WHERE key IN"
            " (SELECT key FROM tokens WHERE until_us BETWEEN ? AND ? ORDER BY until_us LIMIT ?)",
            (-now, now, limit),
        ).rowcount
        self._drop_floors(now, limit)
        return limit in (entries, tokens)

    def _drop_floors(self, now: int, limit: int) -> None:
        """Go round the floors a piece at a call: there may be one a key."""
        piece = self._execute(_FLOORS_AFTER, (self._floors_seen, limit)).fetchall()
        self._floors_seen = piece[-1][0] if len(piece) == limit else ""
        dead = [
            (key, version) for key, version, until_us in piece if until_us + (0 if version is None else FLOOR_US) <= now
        ]
        self._con.executemany(_DROP_FLOOR, [(key,) for key, _ in dead])
        # Perhaps a version's kept them from being served.
        self._con.executemany(_DROP_ENTRY, [(key,) for key, version in dead if version is not None])

    def forget(self) -> None:
        """A new epoch: no entry and no token of the old one is trusted (P20)."""
        self._all_at_rest()
        self._execute("DELETE FROM entries")
        self._execute("DELETE FROM tokens")
        self._execute("UPDATE intents SET clean = 0, preimage = NULL")

    def orphans(self, planted_before_us: int) -> tuple[Intent, ...]:
        """Return intents of other homes that have stood long, in order of key."""
        self._all_at_rest()
        rows = self._execute(
            f"{_INTENTS} WHERE (home < ? OR home > ?) AND planted_us <= ? ORDER BY key, number",
            (self._index, self._index, planted_before_us),
        )
        return tuple(intent_of(row) for row in rows)

    # -- inside

    def _floor(self, key: str) -> tuple[int | None, int]:
        row: tuple[int | None, int] | None = self._execute(_FLOOR, (key,)).fetchone()
        return row or (None, 0)

    def _valid(self, cell: _Cell, now: int) -> StoredEntry | None:
        """Return the entry of a cell, unless its time is over, a tag or its family was voided, or it is below the floor."""
        entry = cell.entry
        if entry is None:
            return None
        if 0 < entry[3] <= now or is_void(self._log, entry[0], entry[4], entry[6]):
            return None
        return None if is_below(entry[5], cell.floor) else entry

    def _store(self, put: Put, now: int, cell: _Cell | None = None) -> tuple[int, int]:
        position, stamp = self._log.position, self._log.next_stamp(now)
        until_us = now + put.expires_in_us if put.expires_in_us else 0
        checksum = put.checksum - _WRAP if put.checksum >= _SIGN else put.checksum
        tags = _encode(put.tags) if put.tags else None
        entry = (position, stamp, checksum, until_us, put.family, put.version, tags, put.value, put.note)
        self._keep(put.key, entry, cell)
        return position, stamp

    def _keep(self, key: str, entry: StoredEntry, cell: _Cell | None) -> None:
        self._stored[key] = (key, *entry)
        if cell is not None:
            cell.entry = entry


def look_at(cell: Any, now: int, is_voided: Any, is_any_open: bool) -> Look:
    """Say what the row of `CELL` means to a reader; `Busy` without a wait: nobody has the token.

    A token below 0 is nobody's: a tag or family of the key was open when last somebody would have filled it.
    """
    stands, floor, closed_until_us, token_until_us, *stored, token = cell
    position, _, _, until_us, _, version, _, _, _ = stored
    if stands or (closed_until_us is not None and closed_until_us > now):
        return Standing(floor)
    if position is not None and not 0 < until_us <= now and not is_below(version, floor) and not is_voided():
        return Hit(entry_of(stored, now))
    if token_until_us is not None and token_until_us > now:
        return Busy(token_until_us - now, floor, token)
    if is_any_open and token_until_us is not None and token_until_us < -now:
        return Standing(floor)
    return Busy(0, floor)


def tags_of(tags: bytes | None) -> tuple[str, ...]:
    """Decode the tags of an entry. Raises one of `UNREADABLE` for bytes that somebody else has written there."""
    return _decode_tags(tags) if tags is not None else ()


def is_void(log: Log, position: int, family: str, tags: bytes | None) -> bool:
    """Say whether what was true at a position was voided since; what bears tags that cannot be read may bear any."""
    try:
        known = tags_of(tags)
    except UNREADABLE:
        return True
    return log.voided_after(position, family, known)


def intents_on(con: Connection, key: str) -> tuple[Intent, ...]:
    """Return the intents on a key, in order of planting."""
    return tuple(intent_of(row) for row in con.execute(f"{_INTENTS} WHERE key = ? ORDER BY number", (key,)))


def intent_of(row: Any) -> Intent:
    """Show a row of `_INTENTS`."""
    key, home, job, fence, clean, until_us = row
    return Intent(key, home, job, fence, bool(clean), until_us)


def entry_of(stored: Any, now: int) -> Entry:
    """Show a stored entry."""
    position, stamp, checksum, until_us, _, version, tags, value, note = stored
    return Entry(
        value,
        position,
        stamp,
        checksum if checksum >= 0 else checksum + _WRAP,
        until_us - now if until_us else 0,
        tags_of(tags),
        version,
        note,
    )


def _of(owner: Owner, here: list[_Standing]) -> _Standing | None:
    home, job, fence = owner.home, owner.job, owner.fence
    return next((one for one in here if one.job == job and one.fence == fence and one.home == home), None)
