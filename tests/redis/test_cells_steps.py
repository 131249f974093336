"""The cells' Lua against the reference's, step by step: random histories of what other scripts do with them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

import msgspec
import pytest
from tests.clock import SECOND, START_US
from tests.redis.resp import Connection
from tests.redis.servers import RedisServer

from selaras._contracts.limits import INTENT_GRACE_US
from selaras._contracts.partition import Invalidation, Owner
from selaras._core.cache.entry import Entry
from selaras._core.jobs.job import Put
from selaras._core.positions import START
from selaras._stores.memory.cells import Cells, _as_read
from selaras._stores.memory.log import Log
from selaras._stores.redis import scripts
from selaras._stores.redis.cells import decode_news, entry_of, intents_of, names_of, owner_of, packed

STEM: Final = "steps:{steps.0}:"
INDEX: Final = 1
KEYS: Final = ("a", "b", "b\0c", "ключ")
OWNERS: Final = ((0, "job"), (1, "job"), (1, "job\0b"), (10, "other"))
FENCES: Final = (5, 6, 1 << 60)
TAGS: Final = ("t", "u")
FAMILIES: Final = ("", "f")

STEP: Final = """-- step: one of the cells' functions, by name
-- uses: log, cells
-- keys: none
-- cost: O(1)
-- flags: none

local name = REQ[1]
local steps = {
    plant = function(owner, key) return cells_plant(owner, key) end,
    void = function(key) cells_void(key) end,
    invalidate = function(...) cells_invalidate(...) end,
    resolve = function(owner, key, put) return {cells_resolve(owner, key, put)} end,
    restore = function(owner, key) cells_restore(owner, key) end,
    pass_on = function(owner) cells_pass_on(owner) end,
    leave = function(owner, key) cells_leave(owner, key) end,
    let_stand = function(owner, until_us) cells_let_stand(owner, until_us) end,
    drop_fallen = function(limit) return cells_drop_fallen(limit) end,
    drop_dead = function() cells_drop_dead() end,
    outlived = function(owner, key) return cells_outlived(owner, key) and 1 or 0 end,
    keys_of = function(owner) return cells_keys_of(owner) end,
    orphans = function(before_us) return cells_orphans(before_us) end,
    intents = function(key) return cells_shown(key) end,
    entry = function(key) return entries:get(key) and valid(key) or false end,
    forget = function() M.epoch = M.epoch + 1; cells_forget() end,
    trim = function() return log_trim() end,
}
if name == 'create' then
    log_create()
    let_set_be(K.marks, 0)
    cells_create()
    return finish()
end
return finish(steps[name](unpack(REQ, 2)) or false)
"""


class Both:
    """The reference, and a server's scripts, at the same instants."""

    def __init__(self, connection: Connection) -> None:
        self._script = scripts.script("step")
        self._connection = connection
        self.now = START_US
        self._counter = 0
        self._base = 0
        self.log = Log(Random(1))
        self.cells = Cells(INDEX, self.log, self._next)
        self._tail = self._seen = START
        ledger = [float(INDEX if name == "index" else 0) for name in scripts.LEDGER]
        self._connection.call("HSET", STEM + "meta", "ledger", struct.pack(f">{len(ledger)}d", *ledger))
        self.lua("create")
        self.both(lambda: self.cells.void("the beginning"), "void", "the beginning")

    def both(self, mine: Callable[[], Any], *request: Any, entries: bool = False) -> None:
        """Do a step in both, and compare what they say."""
        found, told = mine(), self.lua(*request)
        if entries:
            self.same(told, found)
        else:
            assert told == found

    def _next(self) -> int:
        self._counter = max(self._counter + 1, (self.log.epoch << 52) + self.now)
        return self._counter

    def lua(self, *request: Any) -> Any:
        """Do a step in Lua and return what it says; the log must have grown as the reference's."""
        self._base += 1_000
        since, keys = self._tail, [STEM + key for key in self._script.keys]
        args = (self.now, self._base, since.position, since.event_id, msgspec.msgpack.encode(request))
        reply = self._connection.call("EVAL", self._script.text, len(keys), *keys, *args)
        told, *said = _as_bytes(reply)
        news = decode_news(told, since)
        self._tail = news.tail
        mine = self.log.news(self._seen)
        self._seen = mine.tail
        assert (news.events, news.tail.position, news.epoch, news.reset) == (
            mine.events,
            mine.tail.position,
            mine.epoch,
            mine.reset,
        )
        return said[0] if said else None

    def look(self) -> None:
        """Compare all that stands."""
        for key in KEYS:
            assert intents_of(self.lua("intents", key)) == self.cells.intents(key)
            stored = self.cells._valid(key, self.now)
            self.same(self.lua("entry", key), _as_read(stored, self.now) if stored else None)

    def same(self, told: Any, entry: Entry | None) -> None:
        assert (told is None) == (entry is None)
        if entry is not None:
            expires_in_us, row = told
            assert entry_of(expires_in_us, row, entry.value) == entry


def _as_bytes(reply: Any) -> Any:
    if isinstance(reply, list):
        return [_as_bytes(one) for one in reply]
    return reply.encode(errors="surrogateescape") if isinstance(reply, str) else reply


@pytest.fixture
def both(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Both]:
    source = scripts.source
    monkeypatch.setattr(scripts, "source", lambda name: STEP if name == "step" else source(name))
    with redis_server.connect() as connection:
        yield Both(connection)


def _step(both: Both, chance: Random) -> None:
    key, cells = chance.choice(KEYS), both.cells
    owner = Owner(*chance.choice(OWNERS), chance.choice(FENCES))
    given = owner_of(owner)
    match chance.randrange(17):
        case 0 | 1 | 2:
            both.both(lambda: cells.plant(owner, key, both.now), "plant", given, key, entries=True)
        case 3 | 4 | 5:
            put = _put(chance, key)
            at = cells.resolve(owner, key, put, both.now)
            said = both.lua("resolve", given, key, packed(put, b"blob id!") if put else None)
            assert (at or ()) == tuple(said[:1] + [int(stamp, 16) for stamp in said[1:]])
        case 6 | 16:
            both.both(lambda: cells.restore(owner, key, both.now), "restore", given, key)
        case 7:
            both.both(lambda: cells.pass_on(owner), "pass_on", given)
        case 8:
            both.both(lambda: cells.leave(owner, key), "leave", given, key)
        case 9:
            until_us = both.now + INTENT_GRACE_US
            both.both(lambda: cells.let_stand(owner, until_us), "let_stand", given, until_us)
        case 10:
            limit = chance.choice((1, 2, 1_000))
            both.both(lambda: cells.drop_fallen(both.now, limit), "drop_fallen", limit)
        case 11:
            both.both(lambda: cells.drop_dead(both.now), "drop_dead")
        case 12:
            names = Invalidation(
                tuple(chance.sample(KEYS, chance.randrange(3))),
                tuple(chance.sample(TAGS, chance.randrange(2))),
                tuple(chance.sample(FAMILIES, chance.randrange(2))),
                ((key, chance.randrange(-1, 3)),) * chance.randrange(2),
                ((key, chance.choice((1, SECOND))),) * chance.randrange(2),
            )
            both.both(lambda: cells.invalidate(names, both.now), "invalidate", *names_of(names))
        case 13:
            before_us = both.now - chance.choice((0, 1, SECOND))
            assert intents_of(both.lua("orphans", before_us)) == cells.orphans(before_us)
        case 14:
            assert [one.decode() for one in both.lua("keys_of", given)] == list(cells.keys_of(owner))
            assert both.lua("outlived", given, key) == cells.outlived(owner, key)
        case _:
            both.now += chance.choice((1, SECOND, INTENT_GRACE_US))
            if not chance.randrange(3):
                both.log.epoch += 1
                both.both(cells.forget, "forget")


def _put(chance: Random, key: str) -> Put | None:
    if not chance.randrange(3):
        return None
    return Put(
        key,
        chance.choice((b"", b"v1", b"v2")),
        (1 << 63) - chance.randrange(1, 5),
        chance.choice((0, 0, SECOND)),
        tuple(chance.sample(TAGS, chance.randrange(3))),
        chance.choice(FAMILIES),
        chance.choice((None, -1, 1, 2)),
    )


@pytest.mark.parametrize("seed", range(12))
def test_cells_of_both_kinds_go_the_same_way(both: Both, seed: int) -> None:
    chance = Random(seed)
    for _ in range(120):
        _step(both, chance)
        both.look()


def test_p20_a_preimage_of_another_epoch_does_not_return(both: Both) -> None:
    owner, put, cells = Owner(INDEX, "job", 5), Put("a", b"v0", 7), both.cells
    given = owner_of(owner)
    both.both(lambda: cells.plant(owner, "a", both.now), "plant", given, "a", entries=True)
    cells.resolve(owner, "a", put, both.now)
    both.lua("resolve", given, "a", packed(put, b"blob id!"))
    both.both(lambda: cells.plant(owner, "a", both.now), "plant", given, "a", entries=True)
    assert cells.standing["a"][INDEX, "job"].preimage
    both.log.epoch += 1
    both.both(cells.forget, "forget")

    both.both(lambda: cells.restore(owner, "a", both.now), "restore", given, "a")

    both.look()
    assert cells._valid("a", both.now) is None
