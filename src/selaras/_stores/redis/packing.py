"""Jobs as scripts take and give them.

What was enqueued is kept as the client packed it, and never looked into for a plain job:

    mark · created · due · number | size · profile · size · extra · size · meta · payload | ending
    1      8         8     8        2                4              4                      2
    (the script's)                  (the client's)                                         (the script's)

A plain job's `extra` is empty, so that all of one task differ only behind it, and those of lined ones from there on: they
are sent with what they have in common once. Of a profile both sides remember what it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from struct import Struct as Layout
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from selaras._contracts.partition import (
    Admit,
    AnyEffect,
    FreeUnique,
    HoldUnique,
    Invalidation,
    MeetTwin,
    Owner,
    Parted,
    Register,
    Resolve,
    Supersede,
    Void,
    Waiting,
)
from selaras._core.cache.floors import PerKey
from selaras._core.jobs.job import (
    MOVING,
    Admission,
    Attempt,
    Claim,
    Edge,
    Ended,
    JobKind,
    JobRecord,
    NewJob,
    OnConflict,
    Parent,
    Put,
    Refusal,
    Settled,
    Settlement,
    Standing,
    UniqueUntil,
)
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.routing import home_of, id_entry, partition_of
from selaras._stores.redis.caller import raw
from selaras._stores.redis.cells import Values, hex_of, version_of, versions_of
from selaras._stores.redis.records import (
    DAMAGED,
    LINED,
    OTHER,
    PLAIN,
    STATE_OF,
    STATES,
    Adopted,
    Extra,
    Profile,
    Row,
    Settle,
)

DELAY_MOST: Final = 1 << 52
"""Longer delays are not told as a plain job's: scripts count exactly up to 2**53."""

PROFILES_MOST: Final = 10_000
"""Profiles remembered."""

_HEAD: Final = Layout(">QQQH")
_EXTRA_AT: Final = 1 + _HEAD.size
_SIZE2: Final = Layout(">H").pack
_SIZE4: Final = Layout(">I").pack
_EXTRA_SIZE: Final = Layout(">I").unpack_from
_NO_EXTRA: Final = bytes(4)
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_profile: Final = msgspec.msgpack.Decoder(Profile).decode
_decode_extra: Final = msgspec.msgpack.Decoder(Extra).decode
_decode_row: Final = msgspec.msgpack.Decoder(Row).decode
_decode_effect: Final = msgspec.msgpack.Decoder(list[Raw]).decode
_decode_any: Final = msgspec.msgpack.decode
_encode_put: Final = msgspec.msgpack.Encoder().encode
_decode_put: Final = msgspec.msgpack.Decoder(Put).decode
_ENDING: Final = bytes(2)
_ROW_ENDING: Final = 3
_WORDS_OF_PLAIN: Final = 3
_WORDS_OF_LINED: Final = 5
_EMPTY: Final = Extra()
_REFUSALS: Final = {refusal.value.encode(): refusal for refusal in Refusal}
_new_settled: Final = Settled


class Packing:
    """Packs for one partition, and unpacks what it says."""

    def __init__(self, index: int, partitions: int) -> None:
        self.index = index
        self._partitions = partitions
        self._heads: dict[tuple[Any, ...], Raw] = {}
        self._profiles: dict[bytes, Profile] = {}

    # -- out: jobs

    def groups_of(self, jobs: Sequence[NewJob]) -> list[Any]:
        """Return jobs as `enqueue` takes them: plain or lined ones of one profile together, in the order given."""
        groups: list[Any] = []
        common: tuple[int, Raw, int] | None = None
        some: list[Any] = []
        known = set[str]()
        for job in jobs:
            way = self._way_of(job)
            if way == OTHER:
                common = None
                groups.append((way, job.id, raw(self.blob_of(job))))
                continue
            head = self._head_of(job)
            if common != (way, head, job.delay_us) or job.id in known:
                common, some, known = (way, head, job.delay_us), [], set[str]()
                groups.append((way, head, some, job.delay_us))
            known.add(job.id)
            some.append(job.id)
            meta = job.meta
            if way == PLAIN:
                some.append(raw(_SIZE4(len(meta)) + meta + job.payload))
            else:
                extra = _encode((job.line, job.writes) if job.writes else (job.line,))
                some += (job.line, raw(b"".join((_SIZE4(len(extra)), extra, _SIZE4(len(meta)), meta, job.payload))))
        return groups

    def _way_of(self, job: NewJob) -> int:
        if is_plain(job):
            return PLAIN
        return LINED if is_lined(job) and not self._homes_of_job(job) else OTHER

    def _head_of(self, job: NewJob) -> Raw:
        key = (
            job.task,
            job.queue,
            job.priority,
            job.result_ttl_us,
            job.failed_ttl_us,
            job.max_lost,
            job.ordered,
            job.wants_preimage,
            job.unique_until,
            job.on_conflict,
        )
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= PROFILES_MOST:
                self._heads.clear()
            head = self._heads[key] = raw(_sized_profile(job) + _NO_EXTRA)
        return head

    def blob_of(self, job: NewJob) -> bytes:
        """Return all of a job that is kept as it is."""
        extra = _NO_EXTRA
        if not is_plain(job):
            fields = [
                job.line,
                job.writes,
                job.serves,
                job.unique,
                [(parent.job, parent.edge.value, parent.home) for parent in job.parents],
                [number for pair in job.positions for number in pair],
                job.due_us,
                job.delay_us,
                job.expires_in_us,
                self._homes_of_job(job),
            ]
            while fields and not fields[-1]:
                fields.pop()
            packed = _encode(fields)
            extra = _SIZE4(len(packed)) + packed
        elif job.delay_us:
            packed = _encode(Extra("", (), (), "", (), (), 0, job.delay_us, 0, []))
            extra = _SIZE4(len(packed)) + packed
        return b"".join((_sized_profile(job), extra, _SIZE4(len(job.meta)), job.meta, job.payload))

    def _homes_of_job(self, job: NewJob) -> list[str | int]:
        homes = self.homes_of((*job.writes, *job.serves, *((job.unique,) if job.unique else ())))
        if job.line and self._partitions > 1:
            home = partition_of(job.id, self._partitions)
            if home != home_of(job, self._partitions):
                homes += (id_entry(job.id), home)
        return homes

    def homes_of(self, names: Iterable[str]) -> list[str | int]:
        """Return where those names belong that do not belong here, as scripts take it."""
        if self._partitions == 1:
            return []
        homes: list[str | int] = []
        for name in dict.fromkeys(names):
            home = partition_of(name, self._partitions)
            if home != self.index:
                homes += (name, home)
        return homes

    # -- out: settlements

    def settlements_of(self, settlements: Sequence[Settlement], puts: Values) -> list[Any]:
        """Return settlements as scripts take them: successes with no effect but on the one key that a lined job writes
        together, in the order given.
        """
        groups: list[Any] = []
        some: list[Any] = [0]
        for one in settlements:
            step = self._words_of(one)
            if not step:
                some = [0]
                groups.append(self._settle_of(one, puts))
                continue
            if some[0] != step:
                some = [step]
                groups.append(some)
            result = one.result
            some += (one.job, format(one.fence, "016x"), False if result is None else raw(result))
            if step == _WORDS_OF_LINED:
                some += (one.writes[0], puts.pack(one.puts[0]) if one.puts else False)
        return groups

    def _words_of(self, one: Settlement) -> int:
        """Return with how many words a settlement is told; 0: it says too much for that."""
        if one.event is not JobEvent.SUCCEED or _says_more(one):
            return 0
        if not one.writes:
            return 0 if one.puts else _WORDS_OF_PLAIN
        key, *others = one.writes
        if others or len(one.puts) > 1 or any(put.key != key for put in one.puts):
            return 0
        return 0 if self.homes_of(one.writes) else _WORDS_OF_LINED

    def _settle_of(self, one: Settlement, puts: Values) -> Settle:
        names = (*one.may_have_written, *(key for key, _ in one.versions), *(key for key, _ in one.closes))
        homes = self.homes_of(names)
        elsewhere = set(homes[::2])
        success = one.event is JobEvent.SUCCEED
        return Settle(
            one.job,
            hex_of(one.fence),
            one.event.value,
            False if one.result is None else raw(one.result),
            False if one.error is None else raw(one.error),
            one.reason,
            one.delay_us,
            [
                (put.key, 0, "")
                if not success
                else (put.key, raw(_encode_put(put)))
                if put.key in elsewhere
                else puts.pack(put)
                for put in one.puts
            ],
            one.keys,
            one.tags,
            one.families,
            versions_of(one.versions),
            list(one.closes),
            [(job.id, raw(self.blob_of(job)), home_of(job, self._partitions)) for job in one.children],
            one.planted,
            one.writes,
            one.serves,
            one.started,
            one.unsure,
            homes,
        )

    # -- in: outcomes

    @staticmethod
    def admissions_of(told: Iterable[Any], jobs: Sequence[NewJob]) -> list[Admission]:
        """Read admissions; a number stands for so many plain jobs that were created."""
        admissions: list[Admission] = []
        for one in told:
            if one.__class__ is int:
                first = len(admissions)
                admissions += [
                    Admission(job.id, JobState.SCHEDULED if job.delay_us > 0 else JobState.READY)
                    for job in jobs[first : first + one]
                ]
            else:
                admissions.append(admission_of(one))
        return admissions

    @staticmethod
    def settled_of(told: Iterable[Any], settlements: Sequence[Settlement]) -> list[Settled]:
        """Read outcomes; a number stands for so many successes of which there is nothing more to say."""
        settled: list[Settled] = []
        succeeded = JobState.SUCCEEDED
        for one in told:
            first = len(settled)
            if one.__class__ is int:
                settled += [_new_settled(it.job, it.fence, succeeded) for it in settlements[first : first + one]]
                continue
            if first == len(settlements):  # a repeat that names fewer than were settled
                break
            state, refusal, stored, children = one
            it = settlements[first]
            settled.append(
                Settled(
                    it.job,
                    it.fence,
                    STATE_OF.get(state),
                    _REFUSALS.get(refusal),
                    tuple([(key.decode(), position, int(stamp, 16)) for key, position, stamp in stored]),
                    tuple(map(admission_of, children)),
                )
            )
        return settled

    # -- in: jobs

    def profile_of(self, packed: bytes) -> Profile:
        """Return what a profile says."""
        profile = self._profiles.get(packed)
        if profile is None:
            if len(self._profiles) >= PROFILES_MOST:
                self._profiles.clear()
            profile = self._profiles[packed] = _decode_profile(packed)
        return profile

    def claims_of(self, told: list[Any], position: int) -> tuple[list[Claim], list[tuple[int, list[Any]]], list[bytes]]:
        """Read claims.

        Returns them; of those that have pre-images the place and (key, expires_in_us, row) of each; and the ids of jobs
        that cannot be read.
        """
        claims: list[Claim] = []
        preimages: list[tuple[int, list[Any]]] = []
        unreadable: list[bytes] = []
        profiles = self._profiles
        items = iter(told)
        for item in items:
            if item.__class__ is not bytes:
                claim = self._claim_of(item, position)
                if claim is None:
                    unreadable.append(item[0])
                    continue
                if item[6]:
                    preimages.append((len(claims), item[6]))
                claims.append(claim)
                continue
            fence, ticket = next(items), next(items)
            created, _, _, size = _HEAD.unpack_from(ticket, 1)
            end = _EXTRA_AT + size
            packed = ticket[_EXTRA_AT:end]
            profile = profiles.get(packed)
            middle = end + 8 + int.from_bytes(ticket[end + 4 : end + 8])
            if profile is None or ticket[end : end + 4] != _NO_EXTRA or middle > len(ticket) - 2:
                claim = self._claim_of((item, fence, ticket, 1, 0, 0, (), (), ()), position)
                if claim is None:
                    unreadable.append(item)
                else:
                    claims.append(claim)
                continue
            claims.append(
                Claim(
                    item.decode(),
                    int(fence, 16),
                    1,
                    profile.task,
                    ticket[middle:-2],
                    ticket[end + 8 : middle],
                    profile.queue,
                    profile.priority,
                    0,
                    created,
                    position,
                    "",
                    profile.ordered,
                )
            )
        return claims, preimages, unreadable

    def _claim_of(self, told: Sequence[Any], position: int) -> Claim | None:
        job, fence, ticket, attempt, lost, strayed_us, _, value, positions = told
        try:
            created, _, profile, extra, meta, payload = self._ticket_of(ticket)
        except DAMAGED:
            return None
        elsewhere = set(extra.homes[::2])
        return Claim(
            job.decode(),
            int(fence, 16),
            attempt,
            profile.task,
            payload,
            meta,
            profile.queue,
            profile.priority,
            lost,
            created,
            position,
            extra.line,
            profile.ordered,
            extra.writes,
            extra.serves,
            tuple([key for key in extra.writes if key in elsewhere]),
            (),
            value[0] if value else None,
            pairs_of(positions),
            strayed_us,
        )

    def _ticket_of(self, ticket: bytes) -> tuple[int, int, Profile, Extra, bytes, bytes]:
        created, due_us, _, size = _HEAD.unpack_from(ticket, 1)
        end = _EXTRA_AT + size
        profile = self.profile_of(ticket[_EXTRA_AT:end])
        (size,) = _EXTRA_SIZE(ticket, end)
        end += 4
        extra = _decode_extra(ticket[end : end + size]) if size else _EMPTY
        end += size
        (size,) = _EXTRA_SIZE(ticket, end)
        end += 4
        if end + size > len(ticket) - 2:
            raise ValueError(f"{len(ticket)} bytes of a job of more")
        return created, due_us, profile, extra, ticket[end : end + size], ticket[end + size : -2]

    def record_of(self, id: str, ticket: bytes, dyn: bytes | None) -> JobRecord:
        """Read a job as it stands. Raises one of `DAMAGED`: it was written over."""
        created, due_us, profile, extra, meta, payload = self._ticket_of(ticket)
        if dyn is None:
            row = Row(STATES[JobState.SCHEDULED if due_us > created else JobState.READY], due_us=due_us)
        else:
            row = _decode_row(memoryview(dyn)[:-_ROW_ENDING])
            if row.way != OTHER:
                row = replace(row, due_us=due_us)
        return JobRecord(
            id=id,
            task=profile.task,
            queue=profile.queue,
            kind=JobKind(profile.kind),
            state=STATE_OF[row.state],
            priority=profile.priority,
            payload=payload,
            meta=meta,
            attempt=row.attempt,
            lost=row.lost,
            fence=int(row.fence or "0", 16),
            instance=row.instance,
            created_us=created,
            due_us=row.due_us,
            started_us=row.started_us,
            ended_us=row.ended_us,
            keep_until_us=row.keep_until_us,
            line=extra.line,
            unique=extra.unique,
            writes=extra.writes,
            parents=tuple([Parent(job, Edge(edge), home) for job, edge, home in row.waits]),
            result=bytes_of(row.result),
            error=bytes_of(row.error),
            reason=row.reason,
            progress=bytes_of(row.progress),
            cancel_requested=row.cancel_requested,
            stuck_on=row.stuck[0] if row.stuck else "",
            strayed_us=row.strayed_us,
            history=tuple(
                [
                    Ended(number, int(fence, 16), JobEvent(event), at_us, reason, unsure)
                    for number, fence, event, at_us, reason, unsure in row.history
                ]
            ),
        )

    def waiting_of(self, id: str, ticket: bytes, dyn: bytes | None) -> Waiting:
        """Read a job that waits to be claimed. Raises one of `DAMAGED`: it was written over."""
        _, _, profile, extra, meta, payload = self._ticket_of(ticket)
        value = None if dyn is None else bytes_of(_decode_row(memoryview(dyn)[:-_ROW_ENDING]).input)
        return Waiting(id, profile.task, payload, meta, extra.writes, extra.serves, value)

    def numbered(self, id: str, ticket: bytes, dyn: bytes | None) -> tuple[int, JobRecord]:
        """Read a job, with its place in the order of enqueueing. Raises one of `DAMAGED`: it was written over."""
        return self.number_of(ticket), self.record_of(id, ticket, dyn)

    def standing_of(self, id: str, ticket: bytes | None, dyn: bytes | None) -> Standing | None:
        """Return a job whole, if it is there and can be taken over. Raises one of `DAMAGED`: it was written over."""
        record = self.record_of(id, ticket, dyn) if ticket is not None else None
        if record is None or ticket is None or record.state not in MOVING or record.kind is not JobKind.TASK:
            return None
        row = Row(0) if dyn is None else _decode_row(memoryview(dyn)[:-_ROW_ENDING])
        asked = NewJob(id=id, task="")
        number = self.number_of(ticket)
        return Standing(
            job=replace(
                self.job_of(id, ticket[25:-2]),
                parents=record.parents,
                **{name: getattr(asked, name) for name in ("due_us", "delay_us", "on_conflict", "positions")},
            ),
            state=record.state,
            created_us=record.created_us,
            due_us=record.due_us,
            expires_us=row.expires_us,
            place=row.place or (number if record.state is JobState.READY else 0),
            joined=number if dyn is None and record.line else row.joined,
            attempt=record.attempt,
            lost=record.lost,
            unsure=row.unsure,
            input=bytes_of(row.input),
            error=record.error,
            progress=record.progress,
            reason=record.reason,
            strayed_us=record.strayed_us,
            ended_us=record.ended_us,
            keep_until_us=record.keep_until_us,
            history=record.history,
        )

    def adopted(self, one: Standing) -> Adopted:
        """Return a job as it stood elsewhere as `adopt` takes it."""
        return Adopted(
            one.job.id,
            raw(self.blob_of(one.job)),
            STATES[one.state],
            one.created_us,
            one.due_us,
            one.expires_us,
            one.place,
            one.joined,
            one.attempt,
            one.lost,
            one.unsure,
            False if one.input is None else raw(one.input),
            False if one.error is None else raw(one.error),
            False if one.progress is None else raw(one.progress),
            one.reason,
            one.strayed_us,
            one.ended_us,
            one.keep_until_us,
            [(it.number, hex_of(it.fence), it.event.value, it.at_us, it.reason, it.unsure) for it in one.history],
            one.keeps_line,
        )

    @staticmethod
    def number_of(ticket: bytes) -> int:
        """Return a job's number in the order of enqueueing."""
        return int.from_bytes(ticket[17:25])

    def job_of(self, id: str, blob: bytes) -> NewJob:
        """Read a job that was packed by `blob_of`."""
        _, _, profile, extra, meta, payload = self._ticket_of(bytes(25) + blob + _ENDING)
        return NewJob(
            id=id,
            task=profile.task,
            payload=payload,
            meta=meta,
            kind=JobKind(profile.kind),
            queue=profile.queue,
            priority=profile.priority,
            due_us=extra.due_us,
            delay_us=extra.delay_us,
            expires_in_us=extra.expires_in_us,
            line=extra.line,
            ordered=profile.ordered,
            writes=extra.writes,
            serves=extra.serves,
            wants_preimage=profile.wants_preimage,
            unique=extra.unique,
            unique_until=UniqueUntil(profile.unique_until),
            on_conflict=OnConflict(profile.on_conflict),
            parents=tuple([Parent(job, Edge(edge), home) for job, edge, home in extra.parents]),
            positions=tuple(zip(extra.positions[::2], extra.positions[1::2], strict=True)),
            max_lost=profile.max_lost,
            result_ttl_us=profile.result_ttl_us,
            failed_ttl_us=profile.failed_ttl_us,
        )

    # -- effects

    def effect_of(self, member: bytes) -> AnyEffect:
        """Read an effect as the outbox keeps it: its id, and what it is. Raises one of `DAMAGED`: it was written over."""
        to, kind, *rest = _decode_effect(member[16:])
        common: dict[str, Any] = {"id": int(member[:16], 16), "to": _decode_any(to), "sender": self.index}
        match _decode_any(kind):
            case "register":
                parent, child, edge, home = map(_decode_any, rest)
                return Register(parent=parent, child=child, edge=Edge(edge), home=home, **common)
            case "parted":
                parent, child, edge, state = map(_decode_any, rest[:4])
                return Parted(
                    parent=parent,
                    child=child,
                    edge=Edge(edge),
                    state=STATE_OF.get(state),
                    value=bytes_of(rest[4]),
                    positions=pairs_of(_decode_any(rest[5])),
                    **common,
                )
            case "resolve":
                home, job, fence, keys = map(_decode_any, rest[:4])
                puts = msgspec.msgpack.decode(rest[4], type=list[Raw])
                stand_us, versions, closes = map(_decode_any, rest[5:])
                return Resolve(
                    owner=Owner(home, job, int(fence, 16)),
                    keys=tuple(keys),
                    puts=tuple([_decode_put(bytes_of(put) or b"") for put in puts]),
                    stand_us=stand_us,
                    versions=_versions(versions),
                    closes=_closes(closes),
                    **common,
                )
            case "void":
                keys, tags, families, versions, closes = map(_decode_any, rest)
                names = Invalidation(tuple(keys), tuple(tags), tuple(families), _versions(versions), _closes(closes))
                return Void(names=names, **common)
            case "admit":
                job = self.job_of(_decode_any(rest[0]), bytes_of(rest[1]) or b"")
                return Admit(job=replace(job, positions=pairs_of(_decode_any(rest[2]))), **common)
            case "free_unique":
                unique, job = map(_decode_any, rest)
                return FreeUnique(unique=unique, job=job, **common)
            case "hold_unique":
                unique, job, home, replacing = map(_decode_any, rest)
                return HoldUnique(unique=unique, job=job, home=home, replacing=replacing, **common)
            case "meet_twin":
                unique, job, home, twin = map(_decode_any, rest)
                return MeetTwin(unique=unique, job=job, home=home, twin=twin, **common)
            case "supersede":
                job, by = map(_decode_any, rest)
                return Supersede(job=job, by=by, **common)
            case other:
                raise ValueError(f"no effect is called {other!r}")

    def effect_for(self, effect: AnyEffect, puts: Values) -> list[Any]:
        """Return an effect as `accept` takes it."""
        packed: list[Any]
        match effect:
            case Register():
                packed = ["register", effect.parent, effect.child, effect.edge.value, effect.home, effect.to]
            case Parted():
                state = STATES[effect.state] if effect.state else 0
                value = False if effect.value is None else raw(effect.value)
                positions = [number for pair in effect.positions for number in pair]
                packed = ["parted", effect.parent, effect.child, effect.edge.value, state, value, positions]
            case Resolve(owner=owner):
                versions = versions_of(effect.versions)
                its_puts = [puts.pack(put) for put in effect.puts]
                packed = ["resolve", owner.home, owner.job, hex_of(owner.fence), effect.keys, its_puts]
                packed += (effect.stand_us, versions, effect.closes)
            case Void(names=names):
                versions = versions_of(names.versions)
                packed = ["void", names.keys, names.tags, names.families, versions, names.closes]
            case Admit(job=job):
                packed = ["admit", job.id, raw(self.blob_of(job))]
            case FreeUnique():
                packed = ["free_unique", effect.unique, effect.job]
            case HoldUnique():
                packed = ["hold_unique", effect.unique, effect.job, effect.home, effect.replacing]
            case MeetTwin():
                packed = ["meet_twin", effect.unique, effect.job, effect.home, effect.twin]
            case Supersede():
                packed = ["supersede", effect.job, effect.by]
        homes = self.homes_of((effect.unique,)) if isinstance(effect, MeetTwin) else ()
        return [packed[0], effect.sender, hex_of(effect.id), homes, *packed[1:]]


def is_plain(job: NewJob) -> bool:
    """Say whether nothing but its time stands between a job and a worker, and nothing hangs on its end."""
    return not (job.line or job.writes or _hangs_on_more(job) or job.delay_us > DELAY_MOST)


def is_lined(job: NewJob) -> bool:
    """Say whether nothing but its line stands between a job and a worker, and nothing hangs on its end but one key."""
    return bool(job.line) and len(job.writes) < 2 and not (_hangs_on_more(job) or job.delay_us)


def _hangs_on_more(job: NewJob) -> bool:
    return bool(
        job.serves
        or job.unique
        or job.parents
        or job.positions
        or job.due_us
        or job.expires_in_us
        or job.kind is not JobKind.TASK
    )


def _says_more(one: Settlement) -> bool:
    """Say whether a settlement has other effects than on what its job writes."""
    return bool(
        one.keys
        or one.tags
        or one.families
        or one.children
        or one.planted
        or one.serves
        or one.versions
        or one.closes
        or one.reason
        or one.error is not None
    )


def admission_of(told: Sequence[Any]) -> Admission:
    """Read an admission."""
    job, state, created, replaced, refusal = told
    return Admission(job.decode(), STATE_OF[state], bool(created), bool(replaced), _REFUSALS.get(refusal))


def attempts_of(told: Sequence[bytes]) -> tuple[Attempt, ...]:
    """Read attempts: job, fence, ... Those that were written over are nobody's."""
    attempts: list[Attempt] = []
    for i in range(0, len(told), 2):
        with suppress(ValueError):
            attempts.append(Attempt(told[i].decode(), int(told[i + 1], 16)))
    return tuple(attempts)


def flat_attempts(attempts: Iterable[Attempt]) -> list[str]:
    """Return attempts as scripts take them; a fence of 0 as no text."""
    return [word for one in attempts for word in (one.job, hex_of(one.fence) if one.fence else "")]


def pairs_of(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Read positions: partition, position, ..."""
    return tuple(sorted(zip(numbers[::2], numbers[1::2], strict=True)))


def bytes_of(packed: Raw) -> bytes | None:
    """Return bytes that scripts keep as MessagePack text, which they need not be; None: false or nil."""
    data = bytes(packed)
    head = data[0]
    if head in (0xC0, 0xC2):
        return None
    return data[1 if head < 0xC0 else {0xD9: 2, 0xDA: 3, 0xDB: 5}[head] :]


def _versions(pairs: Iterable[Sequence[Any]]) -> PerKey:
    return tuple([(key, int(version_of(text) or 0)) for key, text in pairs])


def _closes(pairs: Iterable[Sequence[Any]]) -> PerKey:
    return tuple([(key, close_us) for key, close_us in pairs])


def _sized_profile(job: NewJob) -> bytes:
    packed = _encode(
        Profile(
            job.task,
            job.queue,
            job.priority,
            job.kind.value,
            job.result_ttl_us,
            job.failed_ttl_us,
            job.max_lost,
            job.ordered,
            job.wants_preimage,
            job.unique_until.value,
            job.on_conflict.value,
        )
    )
    return _SIZE2(len(packed)) + packed
