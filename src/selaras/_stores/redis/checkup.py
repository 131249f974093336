"""Looks at a store's servers as a physician would: changes nothing, and says what to do.

What the user may not ask is left out, and said so: a store needs fewer rights than a physician.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

from msgspec import Struct, structs

from selaras._contracts.clock import Clock
from selaras._contracts.finding import Finding, doubtful, fine, wrong
from selaras._core.errors import SelarasError, StoreRefused, StoreUnavailable
from selaras._stores.redis.address import Account, Endpoint, Names, RedisAddress
from selaras._stores.redis.dialling import ask_once, dial
from selaras._stores.redis.errors import RIGHTS_PAGE, Crowded, Meaning, Silent, meaning_of, told
from selaras._stores.redis.rights import QUESTION, calls, commands, is_sentinel, lacking, rule, too_old
from selaras._stores.redis.scripts import LEDGER
from selaras._stores.redis.topology import Topology, topology_of
from selaras._stores.redis.wire import ReplyError, Wire, WireLost, Word, pack

_PINGS: Final = 50
_SLOW_S: Final = 0.005
_CLOCK_OFF_S: Final = 1.0
_LAG_S: Final = 5
_LAG_BYTES: Final = 1024 * 1024
_FULL_SHARE: Final = 0.8
_SCANNED_MOST: Final = 200_000
"""So many of a server's keys are looked at."""
_WEIGHED_MOST: Final = 1_000
_NAMED_MOST: Final = 5
_MIB: Final = 1024 * 1024


class _Facts(Struct, frozen=True):
    """What a server says of itself."""

    server: dict[str, str]

    def number(self, name: str, default: int = 0) -> int:
        text = self.server.get(name, "")
        return int(text) if re.fullmatch(r"-?\d+", text) else default

    def text(self, name: str) -> str:
        return self.server.get(name, "")


class _Patient:
    """One server, over a connection of its own."""

    def __init__(self, endpoint: Endpoint, account: Account, wire: Wire) -> None:
        self.where = str(endpoint)
        self.endpoint = endpoint
        self._account = account
        self._wire = wire

    async def ask(self, *words: Word) -> Any:
        """Ask one command; a refusal is returned, not raised. Raises StoreUnavailable."""
        try:
            return await self._wire.send(pack(*words), 1, self._account.silence_s)
        except WireLost as error:
            raise StoreUnavailable(f"{self.where}: {error}") from error

    async def facts(self) -> _Facts | None:
        """Return INFO's fields; None: it may not be asked."""
        reply = await self.ask("INFO")
        return None if isinstance(reply, ReplyError) else _Facts(_fields(reply))

    def close(self) -> None:
        self._wire.abort("done")


async def check_up(address: RedisAddress, clock: Clock) -> AsyncIterator[Finding]:
    """Look at the servers of a store, and at what is stored there."""
    address = structs.replace(address, account=structs.replace(address.account, protocol=2))
    names = Names(address.prefix)
    try:
        topology = await _found(address, names, 1)
    except SelarasError as error:
        yield wrong("connection", address.shown, str(error), _way_in(error))
        return
    patients: dict[Endpoint, _Patient] = {}
    try:
        first = topology.place(0)
        if first is None:
            yield wrong("cluster", address.shown, "nobody has the slot of partition 0", "give every slot to a master")
            return
        try:
            patients[first] = await _patient(first, address.account)
            other = _of_another_kind(await patients[first].facts(), str(first), address)
            if other is not None:
                yield other
                return
            partitions, findings = await _store(patients[first], address, names)
            topology = await _found(address, names, partitions)
        except SelarasError as error:
            yield wrong("connection", str(first), str(error), _way_in(error))
            return
        places = [topology.place(index) for index in range(partitions)]
        for finding in (*findings, *await _spread(address, places)):
            yield finding
        for endpoint in dict.fromkeys(place for place in places if place is not None):
            try:
                if endpoint not in patients:
                    patients[endpoint] = await _patient(endpoint, address.account)
                held = [index for index, place in enumerate(places) if place == endpoint]
                async for finding in _examined(patients[endpoint], address, names, held, partitions, clock):
                    yield finding
            except SelarasError as error:
                yield wrong("connection", str(endpoint), str(error), _way_in(error))
    finally:
        for patient in patients.values():
            patient.close()


def _of_another_kind(facts: _Facts | None, where: str, address: RedisAddress) -> Finding | None:
    """Return that the URL takes a server for what it is not: nothing else that is found there would mean what it says."""
    if facts is None:
        return None
    if is_sentinel(facts.server):
        return wrong(
            "server", where, "a sentinel", f"say redis+sentinel://{where}/SERVICE, with the name of what it watches"
        )
    if facts.text("cluster_enabled") == "1" and address.shape != "cluster":
        return wrong("server", where, "a node of a cluster", f"say redis+cluster://{where}")
    return None


async def _found(address: RedisAddress, names: Names, partitions: int) -> Topology:
    topology = topology_of(address, names, partitions)
    await topology.discover(ask_once)
    return topology


async def _patient(endpoint: Endpoint, account: Account) -> _Patient:
    patient = _Patient(endpoint, account, await dial(endpoint, account))
    if not account.password:  # then nothing had to be let in yet
        reply = await patient.ask("PING")
        if isinstance(reply, ReplyError) and str(reply).startswith("NOAUTH"):
            patient.close()
            raise told(reply, meaning_of(reply), where=str(endpoint), doing="PING")
    return patient


def _way_in(error: Exception) -> str:
    if isinstance(error, StoreRefused):
        return (
            f"correct the URL (kind of server, user name, password, database), or what its user may do ({RIGHTS_PAGE})"
        )
    if isinstance(error, Crowded):
        return "raise its maxclients, or end some"
    if isinstance(error, Silent):
        return (
            "see what keeps it: a process that was stopped, a long command or script, a full disk; or correct the URL"
        )
    return "start the server, or correct the URL"


async def _examined(
    patient: _Patient, address: RedisAddress, names: Names, held: Sequence[int], partitions: int, clock: Clock
) -> AsyncIterator[Finding]:
    where = patient.where
    facts = await patient.facts()
    if facts is None:
        yield _left_out("server", where, "info")
    else:
        for finding in (*_server(facts, where), *_role(facts, where), *_memory(facts, where), *_clients(facts, where)):
            yield finding
        async for finding in _persistence(patient, facts):
            yield finding
        for finding in _replication(facts, where, address):
            yield finding
    yield await _clock(patient, clock)
    yield await _latency(patient, clock)
    async for finding in _rights(patient, address, names, held):
        yield finding
    if facts is not None and facts.text("cluster_enabled") == "1":
        async for finding in _cluster(patient):
            yield finding
    for index in held:
        damaged = await _damaged(patient, names, index)
        if damaged is not None:
            yield damaged
    async for finding in _keys(patient, address, names, held, partitions):
        yield finding


# ---------------------------------------------------------------- the store


async def _store(patient: _Patient, address: RedisAddress, names: Names) -> tuple[int, list[Finding]]:
    """Return how many partitions there are, and what that is known from."""
    said = address.partitions
    ledger = await patient.ask("HGET", names.key(0, "meta"), "ledger")
    if isinstance(ledger, ReplyError) or ledger is None:
        finding = (
            _left_out("store", "", "hget")
            if ledger is not None
            else doubtful(
                "store",
                "",
                f"nothing is stored under {address.prefix!r}",
                "a worker or the program makes it when it starts",
            )
        )
        return said or 1, [finding]
    if len(ledger) != 8 * len(LEDGER):
        remedy = "use the version of selaras that made it, or another prefix or namespace"
        return said or 1, [wrong("store", "", f"what is under {address.prefix!r} has another layout", remedy)]
    numbers = dict(zip(LEDGER, struct.unpack(f">{len(LEDGER)}d", ledger), strict=True))
    count, epoch = int(numbers["partitions"]), int(numbers["epoch"])
    found = f"{count} partition{'s' * (count != 1)} under {address.prefix!r}, epoch {epoch}"
    if said is not None and said != count:
        remedy = f"say ?partitions={count}, or name another prefix or namespace"
        return count, [wrong("store", "", f"{found}; the URL or partitions= says {said}", remedy, partitions=count)]
    return count, [fine("store", "", found, partitions=count, epoch=epoch)]


async def _spread(address: RedisAddress, places: Sequence[Endpoint | None]) -> list[Finding]:
    if address.shape == "sentinel":
        return [await _sentinels(address)]
    if address.shape != "cluster":
        return []
    counts = Counter(str(place) for place in places if place is not None)
    lost = [str(index) for index, place in enumerate(places) if place is None]
    found = [fine("partitions", "", ", ".join(f"{where}: {count}" for where, count in sorted(counts.items())))]
    if lost:
        found.append(
            wrong(
                "partitions",
                "",
                f"nobody has partition {', '.join(lost)}",
                "bring its master back, or give its slot away",
            )
        )
    return found


async def _sentinels(address: RedisAddress) -> Finding:
    good, bad, closed = 0, list[str](), 0
    for sentinel in address.endpoints:
        try:
            patient = await _patient(sentinel, address.sentinel_account)
            try:
                reply = await patient.ask("SENTINEL", "CKQUORUM", address.service)
            finally:
                patient.close()
        except SelarasError as error:
            bad.append(str(error))
            continue
        if not isinstance(reply, ReplyError):
            good += 1
        elif meaning_of(reply) is Meaning.REFUSED:
            closed += 1
        else:
            bad.append(str(told(reply, meaning_of(reply), where=str(sentinel), doing="SENTINEL CKQUORUM")))
    if closed and not bad:
        return _left_out("sentinels", "", "sentinel|ckquorum", f"{good + closed} of {len(address.endpoints)} answer; ")
    said = f"{good} of {len(address.endpoints)} can name a new master"
    if bad:
        level = doubtful if good else wrong
        return level("sentinels", "", f"{said}: {'; '.join(bad)}", "start the missing ones: a failover needs a quorum")
    if len(address.endpoints) < 3:
        return doubtful("sentinels", "", said, "name all of them in the URL; it takes three to outlive one")
    return fine("sentinels", "", said)


# ---------------------------------------------------------------- a server


def _server(facts: _Facts, where: str) -> Iterable[Finding]:
    name = "Valkey" if facts.text("server_name") == "valkey" else "Redis"
    version = facts.text("valkey_version") or facts.text("redis_version")
    said = f"{name} {version}"
    if too_old(facts.text("redis_version")):
        yield wrong("server", where, said, "Selaras needs Redis 7.0 or any Valkey", version=version)
    else:
        yield fine("server", where, said, version=version)


def _role(facts: _Facts, where: str) -> Iterable[Finding]:
    if facts.text("role") == "slave":
        master = f"{facts.text('master_host')}:{facts.text('master_port')}"
        yield wrong("role", where, f"a replica of {master}: it takes no writes", "name the master, or its sentinels")


async def _persistence(patient: _Patient, facts: _Facts) -> AsyncIterator[Finding]:
    about, where = "persistence", patient.where
    if facts.number("loading"):
        yield wrong(about, where, "it loads its data", "wait until it has")
        return
    for field, what in (("rdb_last_bgsave_status", "snapshot"), ("aof_last_write_status", "write to its log")):
        if facts.text(field) not in ("", "ok"):
            yield wrong(about, where, f"its last {what} failed", "see its log; often its disk is full")
    settings = await _settings(patient, "appendfsync", "save")
    if facts.number("aof_enabled"):
        fsync = settings.get("appendfsync", "unknown")
        losses = {"always": "nothing", "everysec": "a second at most", "no": "what the system had not written yet"}
        kept = f"append-only file, appendfsync {fsync}: a crash loses {losses.get(fsync, 'little')}"
        yield doubtful(about, where, kept, "set appendfsync everysec") if fsync == "no" else fine(about, where, kept)
        return
    changes = facts.number("rdb_changes_since_last_save")
    if settings.get("save") == "":
        said = "nothing is kept: a restart loses every job"
    else:
        said = f"snapshots at most: a crash loses what came since the last one ({changes:,} changes by now)"
    yield doubtful(about, where, said, "set appendonly yes", changes=changes)


async def _settings(patient: _Patient, *names: str) -> dict[str, str]:
    """Return settings; empty where they may not be asked for."""
    reply = await patient.ask("CONFIG", "GET", *names)
    if isinstance(reply, ReplyError):
        return {}
    return {name.decode(): value.decode() for name, value in zip(reply[::2], reply[1::2], strict=True)}


def _memory(facts: _Facts, where: str) -> Iterable[Finding]:
    policy, most, used = facts.text("maxmemory_policy"), facts.number("maxmemory"), facts.number("used_memory")
    said = f"maxmemory-policy {policy}"
    if policy.startswith("allkeys"):
        yield wrong(
            "eviction",
            where,
            f"{said}: a full server throws jobs away",
            "set noeviction, or volatile-lru: then only cached values go",
        )
    else:
        yield fine("eviction", where, said)
    amount = f"{used / _MIB:,.1f} MiB used" + (f" of {most / _MIB:,.1f}" if most else ", no maxmemory")
    if most and used > most * _FULL_SHARE:
        remedy = "raise maxmemory: when it is full, nothing is enqueued"
        yield doubtful("memory", where, amount, remedy, used_bytes=used, most_bytes=most)
    else:
        yield fine("memory", where, amount, used_bytes=used, most_bytes=most)


def _clients(facts: _Facts, where: str) -> Iterable[Finding]:
    count, most = facts.number("connected_clients"), facts.number("maxclients")
    said = f"{count:,} connected" + (f" of {most:,}" if most else "")
    if most and count > most * _FULL_SHARE:
        yield doubtful("clients", where, said, "raise maxclients: new processes will be turned away", clients=count)
    else:
        yield fine("clients", where, said, clients=count)


def _replication(facts: _Facts, where: str, address: RedisAddress) -> Iterable[Finding]:
    if facts.text("role") != "master":
        return
    replicas = [_replica(text) for name, text in facts.server.items() if re.fullmatch(r"slave\d+", name)]
    if not replicas:
        if address.replicas_ms:
            yield wrong(
                "replicas", where, "none, and durability=replicated waits for one", "add one, or leave the option out"
            )
        elif address.shape != "single":
            yield doubtful("replicas", where, "none: when it fails, nobody takes over", "add one")
        return
    end = facts.number("master_repl_offset")
    for replica in replicas:
        name = f"{replica['ip']}:{replica['port']}"
        behind, lag = end - int(replica["offset"]), int(replica.get("lag", 0))
        said = f"{name} {replica['state']}, {behind:,} bytes behind, heard {lag} s ago"
        if replica["state"] != "online" or behind > _LAG_BYTES or lag > _LAG_S:
            remedy = "see its log and the network between: a failover now loses what it has not got"
            yield doubtful("replicas", where, said, remedy, behind_bytes=behind, lag_s=lag)
        else:
            yield fine("replicas", where, said, behind_bytes=behind, lag_s=lag)


def _replica(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(","))


async def _clock(patient: _Patient, clock: Clock) -> Finding:
    began_us = clock.wall_us()
    reply = await patient.ask("TIME")
    if isinstance(reply, ReplyError):
        return _left_out("clock", patient.where, "time")
    ended_us = clock.wall_us()
    off_s = (int(reply[0]) * 1_000_000 + int(reply[1]) - (began_us + ended_us) / 2) / 1e6
    spread_s = (ended_us - began_us) / 2e6
    if abs(off_s) - spread_s > _CLOCK_OFF_S:
        remedy = "let both follow a time server; the server's clock counts: delays and schedules go by it"
        return doubtful("clock", patient.where, f"{off_s:+.1f} s from this machine's", remedy, off_s=off_s)
    return fine("clock", patient.where, f"{off_s:+.3f} s from this machine's", off_s=off_s)


async def _latency(patient: _Patient, clock: Clock) -> Finding:
    took: list[int] = []
    for _ in range(_PINGS):
        began_ns = clock.instant_ns()
        await patient.ask("PING")
        took.append(clock.instant_ns() - began_ns)
    took.sort()
    p50_s, p99_s = (took[math.ceil(_PINGS * share) - 1] / 1e9 for share in (0.5, 0.99))
    said = f"{p50_s * 1e3:.2f} ms, 99 of 100 within {p99_s * 1e3:.2f} ms"
    if p50_s > _SLOW_S:
        remedy = "bring them nearer: each turn of a worker and each read past the local tier is a round trip"
        return doubtful("latency", patient.where, said, remedy, p50_s=p50_s, p99_s=p99_s)
    return fine("latency", patient.where, said, p50_s=p50_s, p99_s=p99_s)


# ---------------------------------------------------------------- rights


async def _rights(
    patient: _Patient, address: RedisAddress, names: Names, held: Sequence[int]
) -> AsyncIterator[Finding]:
    """Ask the server itself what its user may do, by the script commands that the store cannot do without."""
    replicated = address.replicas_ms > 0
    needed = commands(address.shape, replicated=replicated)
    whole = rule(address.prefix, address.shape, replicated=replicated)
    remedy = f"allow it: ACL SETUSER … {whole} ({RIGHTS_PAGE})"
    loaded = await patient.ask("SCRIPT", "LOAD", QUESTION)
    if isinstance(loaded, ReplyError):
        yield wrong("rights", patient.where, f"this user may not +script|load: {loaded}", remedy)
        return

    stem = names.stem(held[0] if held else 0)
    reply = await patient.ask("EVALSHA", loaded, 0, *calls(needed, stem))
    if isinstance(reply, ReplyError):
        yield wrong("rights", patient.where, f"this user may not +evalsha: {reply}", remedy)
        return
    lacks = lacking(cast("list[int]", reply), needed, stem)
    if lacks:
        yield wrong("rights", patient.where, lacks, remedy)
    else:
        yield fine("rights", patient.where, f"all {len(needed)} commands, on {address.prefix}:*")


# ---------------------------------------------------------------- a cluster


async def _cluster(patient: _Patient) -> AsyncIterator[Finding]:
    info = await patient.ask("CLUSTER", "INFO")
    nodes = await patient.ask("CLUSTER", "NODES")
    if isinstance(info, ReplyError) or isinstance(nodes, ReplyError):
        yield _left_out("cluster", patient.where, "cluster|info and cluster|nodes")
        return
    state = _fields(info)
    lines = [line.split(" ") for line in nodes.decode().splitlines()]
    ill = [line[1].partition("@")[0] for line in lines if {"fail", "fail?"} & set(line[2].split(","))]
    moving = sum(part.startswith("[") for line in lines if "myself" in line[2] for part in line[8:])
    said = f"{state['cluster_state']}, {state['cluster_slots_ok']} slots, {state['cluster_known_nodes']} nodes"
    if state["cluster_state"] != "ok" or int(state["cluster_slots_ok"]) < 16_384:
        yield wrong("cluster", patient.where, said, "bring the missing masters back, or give their slots away")
    else:
        yield fine("cluster", patient.where, said)
    if ill:
        yield doubtful("cluster", patient.where, f"it misses {', '.join(ill)}", "start them, or forget them")
    if moving:
        yield doubtful("cluster", patient.where, f"{moving} slots are on their way", "wait; calls wait too, a moment")


# ---------------------------------------------------------------- keys


async def _keys(
    patient: _Patient, address: RedisAddress, names: Names, held: Sequence[int], partitions: int
) -> AsyncIterator[Finding]:
    """Count and weigh what is stored; name what nobody will ever look at again, and other stores beside this one."""
    stems = {names.stem(index): index for index in range(partitions)}
    ours: dict[int, list[bytes]] = {index: [] for index in held}
    left, others, scanned, cursor = list[str](), set[str](), 0, b"0"
    while True:
        reply = await patient.ask("SCAN", cursor, "COUNT", 1000)
        if isinstance(reply, ReplyError):
            yield _left_out("keys", patient.where, "scan")
            return
        cursor, page = reply
        scanned += len(page)
        for key in page:
            text = key.decode(errors="backslashreplace")
            index = stems.get(text[: text.find("}:") + 2])
            if index in ours:
                ours[index].append(key)
            elif text.startswith(f"{address.prefix}:{{{address.prefix}."):
                left.append(text)
            elif (match := _META.fullmatch(text)) and match["prefix"] != address.prefix:
                others.add(match["prefix"])
        if cursor == b"0" or scanned >= _SCANNED_MOST:
            break
    for index, keys in ours.items():
        if keys:
            yield await _weighed(patient, index, keys)
    if left:
        named = ", ".join(left[:_NAMED_MOST]) + (
            f" and {len(left) - _NAMED_MOST} more" if len(left) > _NAMED_MOST else ""
        )
        yield doubtful(
            "leftovers",
            patient.where,
            f"of no partition of this store: {named}",
            "if no program uses them: UNLINK them",
        )
    if others:
        yield fine("neighbours", patient.where, f"other stores here: {', '.join(sorted(others))}")
    if cursor != b"0":
        yield fine("keys", patient.where, f"the first {scanned:,} keys were looked at")


async def _damaged(patient: _Patient, names: Names, index: int) -> Finding | None:
    """Tell of bytes that scripts have met and did not write: what it cost is put right, and who did it may do it again."""
    said = await patient.ask("HGET", names.key(index, "meta"), "damaged")
    at, _, what = said.decode(errors="replace").partition(" ") if isinstance(said, bytes) else ("", "", "")
    if not at.isdigit():
        return None
    when = datetime.fromtimestamp(int(at) / 1e6, UTC)
    return doubtful(
        "damage",
        patient.where,
        f"bytes in {what} of partition {index} were not written there by selaras: met last on {when:%Y-%m-%d at %H:%M} UTC",
        "what was lost is told by the server's log and by failed jobs (CorruptBytes). Find out what else writes under this "
        f"prefix; then: HDEL {names.key(index, 'meta')} damaged",
    )


_META: Final = re.compile(r"(?P<prefix>.*):\{(?P=prefix)\.0\}:meta", re.DOTALL)


async def _weighed(patient: _Patient, index: int, keys: Sequence[bytes]) -> Finding:
    size, about = 0, f"partition {index}"
    for key in keys[:_WEIGHED_MOST]:
        reply = await patient.ask("MEMORY", "USAGE", key)
        if isinstance(reply, ReplyError):
            return _left_out(about, patient.where, "memory|usage", f"{len(keys):,} keys; ")
        size += reply or 0
    size = size * len(keys) // len(keys[:_WEIGHED_MOST])
    return fine(about, patient.where, f"{len(keys):,} keys, {size / _MIB:,.1f} MiB", keys=len(keys), bytes=size)


def _left_out(about: str, where: str, command: str, found: str = "") -> Finding:
    return fine(about, where, f"{found}not looked at: this user may not {command}")


def _fields(reply: bytes) -> dict[str, str]:
    lines = reply.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
