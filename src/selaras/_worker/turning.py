"""The turn loop of one partition: settle, claim and hear the news, in one call.

Laws:
    - Turns are numbered. One that is not answered is repeated, same number, same settlements, until it is (P16).
    - Of a reply, first the news are applied, then what was claimed starts (G1).
    - At most two turns are in flight (P2).
    - A settlement leaves `pending` only into a turn, and a turn only by its answer: nothing is ever dropped (G6).

When a turn is sent:

    something ended ────────────┐
    room, and work may be there ├─> is it worth a turn? ─no─> wait for the next of them
    the bell, a due time ───────┘        │ yes
                                         └─> send; the answer comes back here

It is worth one when nothing else is in flight and nothing waits to run here; under load, as soon as a few
milliseconds' worth of bodies have ended. So a lone job is settled at once, and a flood makes its own batches.
"""

from __future__ import annotations

import asyncio
from asyncio import Event
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from selaras._contracts.clock import Clock, Entropy
from selaras._contracts.host import Host, Mode, Stop
from selaras._contracts.observer import Observer
from selaras._contracts.partition import HeartbeatReply, Partition, TurnReply, TurnRequest
from selaras._core.errors import StoreUnavailable
from selaras._core.events import SettleRefused, StoreBack, StoreLost, Turned
from selaras._core.jobs.job import Abandoned, Attempt, Claim, Settled, Settlement
from selaras._core.jobs.reasons import Reason
from selaras._core.jobs.retry import Backoff
from selaras._core.jobs.states import JobEvent
from selaras._worker.attempts import Held, Roster
from selaras._worker.company import Company
from selaras._worker.heart import Beat
from selaras._worker.shutdown import Leaving
from selaras._worker.telling import tell
from selaras._worker.waiting import Alarm
from selaras._worker.wary import LAPSED, Progress, Wary

IN_FLIGHT_MOST: Final = 2
GATHER_NS: Final = 20_000_000
"""Under load, ends are gathered for about so long before a turn carries them."""

GATHER_MOST: Final = 500
SECOND_AFTER_NS: Final = 3_000_000
"""A turn that is unanswered for so long is far away, and a second one may follow it."""

CLAIM_MOST: Final = 600
SETTLE_MOST: Final = 1_000
SETTLE_BYTES: Final = 8 << 20
"""Ends that come to more, with what they carry, go in several turns: a store takes no message of any size."""

BEAT_SETTLES_MOST: Final = 500
LAST_WORDS_MOST: Final = 2_000
READY_TRIES: Final = 3
TELL_TRIES: Final = 8
"""The host fails so often at telling other partitions, by a mistake and not for a store that is away, before the
attempt is given up as lost: settled without, readers elsewhere would be stale."""

IDLE_TURN_NS: Final = 5_000_000_000
"""An idle worker turns so often though nothing rang: a bell is a hint."""

TOGETHER_NS: Final = 1_000_000_000
"""When the time of one partition has come, others whose idle turns are due so soon are turned with it: in one write."""

AGAIN: Final = Backoff(first_us=50_000, most_us=2_000_000)
"""Between repeats of what the store did not answer."""


class Crew(Struct, frozen=True, kw_only=True):
    """What all turners of a worker share. `wary`: the host, for calls that must come to something."""

    clock: Clock
    entropy: Entropy
    host: Host
    wary: Wary
    roster: Roster
    observer: Observer
    company: Company
    answered: Event  # set at each answer of a turn, for whoever waits for quiet
    alarm: Alarm  # for when something is due
    queues: tuple[str, ...]
    partitions: int
    lease_ns: int


class _Sent(Struct, frozen=True):
    """A turn in flight. `ended`: side by side with the request's settlements. `rung`: the bell's count then."""

    request: TurnRequest
    ended: tuple[Held | None, ...]
    rung: int
    at_ns: int


class Turner:
    """One partition's turns under one instance.

    Args:
        share: says how much of the room that there is may be claimed here; the others that want claims have theirs.
        on_lost: called when the store no longer knows the instance.
        on_full: called when work may wait that there is no room for.
        on_room: called when room that a turn had asked for was not taken.
        on_outbox: called when effects wait for other partitions.
        on_abandoned: called when an attempt was given up: a beat should tell it now.

    Attributes:
        fresh_until_ns: until when the lease is surely held; moved by the heart's thread (P18).
        lapsed: it was not renewed in time; nothing is claimed or started until it is, and what runs goes on.
        hungry: there may be work that was not claimed yet.
        asked_ns: when claims were last asked for.
        closing: nothing more is claimed.
    """

    def __init__(
        self,
        crew: Crew,
        partition: Partition,
        instance: str,
        *,
        fresh_until_ns: int,
        share: Callable[[Turner, int], int],
        on_lost: Callable[[], None],
        on_outbox: Callable[[], None],
        on_abandoned: Callable[[], None],
        on_full: Callable[[], None],
        on_room: Callable[[], None],
    ) -> None:
        self.index = partition.index
        self.fresh_until_ns = fresh_until_ns
        self.lapsed = False
        self.hungry = True
        self.asked_ns = 0
        self.closing = False
        self._crew = crew
        self._host = crew.wary
        self._roster = crew.roster
        self._now = crew.clock.instant_ns
        self._partition = partition
        self._instance = instance
        self._tasks = frozenset(crew.host.tasks)
        self._of_modes: dict[frozenset[Mode], frozenset[str]] = {frozenset(): frozenset()}
        self._share = share
        self._on_lost = on_lost
        self._on_outbox = on_outbox
        self._on_abandoned = on_abandoned
        self._on_full = on_full
        self._on_room = on_room
        self._nudged = Event()

        self._held: dict[int, Held | Settlement] = {}  # by fence: received and not yet settled
        self._given_up: dict[int, Abandoned] = {}  # lost, and no beat has told it yet
        self._zombies: set[int] = set()  # fences of bodies that go on though they were given up
        self._ended: list[Held | None] = []  # side by side with the pending settlements
        self._pending: list[Settlement] = []
        self._pending_since_ns = 0
        self._by_beat: set[int] = set()  # fences of settlements that a beat delivered, whose turn is unanswered
        self._on_the_way = 0  # being prepared, or telling other partitions: neither running nor pending
        self._progress: Progress = ()

        self._number = 0
        self._acked = 0  # this turn and all before were received
        self._received: set[int] = set()  # those beyond
        self._in_flight: dict[int, _Sent] = {}
        self._failing: set[int] = set()
        self._away_ns = 0  # since when the store does not answer
        self._unheard = 0  # replies in a row whose news the host could not apply

        self._rung = 0  # counts rings: one during a turn must not be taken for one before it
        self._rung_sent = 0
        self._sent_ns = 0
        self._due_ns = 0
        self._turned_ns = self._now()

    # -- what others say

    def ring(self) -> None:
        """There may be work, or a cancel."""
        self._rung += 1
        self.hungry = True
        self._nudged.set()

    def nudge(self) -> None:
        """Look again whether a turn is worth it."""
        self._nudged.set()

    def tick(self) -> None:
        """Look again, for time has passed, if anything waits here that a turn may be worth by now."""
        if self.hungry or self._pending or self.closing:
            self._nudged.set()

    def look(self, now_ns: int) -> None:
        """Turn if one is due: a job's time has come, or it was long ago."""
        if now_ns >= min(self.next_due_ns(), self._turned_ns + IDLE_TURN_NS - TOGETHER_NS):
            self._due_ns, self._turned_ns = 0, now_ns
            self.hungry = True
            self._nudged.set()

    def close(self) -> None:
        """Claim nothing more; settle what is held, then end."""
        self.closing = True
        self._nudged.set()

    def report(self, progress: Progress) -> None:
        """Send what bodies reported with the next turn, soon."""
        if progress:
            self._progress += progress
            self._nudged.set()

    def cancel(self, attempts: Sequence[Attempt], why: Stop = Stop.CANCEL) -> None:
        """Tell these bodies to end: somebody asked for it, or the store says that they are no longer ours."""
        for attempt in attempts:
            held = self._held.get(attempt.fence)
            if isinstance(held, Held):
                self._roster.stop(held, why)

    # -- what attempts say

    def ended(self, held: Held | None, settlement: Settlement) -> None:
        """Take an end, to be settled with the next turn; that an attempt is lost is told by the next beat."""
        self._zombies.discard(settlement.fence)
        if settlement.event is JobEvent.LOSE:
            self._give_up(Abandoned(settlement.job, settlement.fence, settlement.reason or Reason.LOST))
        elif self._crew.partitions > 1 and self._host.has_effects_elsewhere(settlement, self.index):
            self._on_the_way += 1
            self._crew.company.spawn(self._tell_elsewhere(held, settlement))
        else:
            self._queue(held, settlement)

    def abandon(self, held: Held) -> None:
        """Give an attempt up as lost while its body goes on (P19); the next beat tells it. From any thread."""
        self._zombies.add(held.run.claim.fence)
        self._give_up(_unstoppable(held))

    def _give_up(self, attempt: Abandoned) -> None:
        if attempt.fence in self._held:
            self._given_up[attempt.fence] = (
                attempt  # before it is no longer held: a beat must find it in one of the two
            )
            del self._held[attempt.fence]
            self._on_abandoned()

    def _queue(self, held: Held | None, settlement: Settlement) -> None:
        if not self._pending:
            self._pending_since_ns = self._now()
        self._ended.append(held)
        self._pending.append(settlement)
        if not self._nudged.is_set():
            self._nudged.set()

    async def _tell_elsewhere(self, held: Held | None, settlement: Settlement) -> None:
        """Other partitions hear first what must be known before the settle (P17)."""
        tries = mistakes = 0
        while True:
            try:
                settlement = await self._crew.host.before_settle(settlement, self.index)
                break
            except StoreUnavailable:
                pass
            except Exception as error:  # noqa: BLE001 - the host's mistake
                self._host.report(f"telling other partitions of {settlement.job}", error)
                mistakes += 1
            if mistakes == TELL_TRIES:
                self._on_the_way -= 1
                self._give_up(
                    Abandoned(settlement.job, settlement.fence, "other partitions could not be told of its end")
                )
                return
            tries += 1
            await self._rest(tries)
        self._on_the_way -= 1
        self._queue(held, settlement)

    # -- questions

    def next_due_ns(self) -> int:
        """Return when a turn is due though nothing happens: a scheduled job, or the idle look."""
        idle = self._turned_ns + IDLE_TURN_NS
        return min(self._due_ns, idle) if self._due_ns else idle

    @property
    def quiet(self) -> bool:
        """Whether every end has been settled and every turn answered."""
        return not (self._pending or self._in_flight or self._on_the_way or self._given_up)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do, as far as is known; bodies that were given up do not count."""
        return self.quiet and not self._held and not self.hungry

    @property
    def starving(self) -> bool:
        """Whether it waits for room with nothing in hand: no end of its own will make any."""
        return self.hungry and not (self._held or self._in_flight or self.closing or self.lapsed)

    @property
    def holding(self) -> bool:
        """Whether attempts were claimed that are not settled, or bodies go on that were given up."""
        return bool(self._held or self._zombies)

    # -- the loop

    async def run(self) -> None:
        """Turn until closed and everything is settled."""
        while not (self.closing and self.quiet and not self.holding):
            claims = self._claims_wanted()
            if self._is_worth_a_turn(claims):
                self._send(claims)
            else:
                self._nudged.clear()
                await self._nudged.wait()

    def _claims_wanted(self) -> int:
        # What is settled may set others free: they are claimed in the same step.
        if not (self.hungry or self._pending) or self.closing or self.lapsed:
            return 0
        room = min(self._roster.room(), CLAIM_MOST)
        if room > 0 and self._crew.partitions > 1:
            room = self._share(self, room)
        if room > 0:
            return room
        if self.hungry:
            self._on_full()
        return 0

    def _tasks_of(self, modes: frozenset[Mode]) -> frozenset[str]:
        tasks = self._of_modes.get(modes)
        if tasks is None:
            tasks = frozenset(task for task, mode in self._crew.host.tasks.items() if mode in modes)
            self._of_modes[modes] = tasks
        return tasks

    def _is_worth_a_turn(self, claims: int) -> bool:
        if self._failing or len(self._in_flight) >= IN_FLIGHT_MOST:
            return False
        gather = min(max(1, int(self._roster.per_second * GATHER_NS / 1e9)), GATHER_MOST)
        gathered = len(self._pending) >= gather or claims >= gather
        if self._in_flight:
            # A second one hides the latency of a store that is far away; of one at hand it would only halve the batch.
            return gathered and self._now() - self._sent_ns >= SECOND_AFTER_NS
        if gathered or self._rung != self._rung_sent or self._progress:
            return True
        if self._pending or claims:
            # Under load the ends of what still waits here will come with these.
            return not self._roster.waiting or self._now() >= self._pending_since_ns + 2 * GATHER_NS
        return False

    def _send(self, claims: int) -> None:
        self._roster.measure()
        self._roster.requested += claims
        self._number += 1
        full = self._tasks_of(self._roster.full()) if claims else frozenset[str]()
        count = _together(self._pending, SETTLE_MOST)
        settlements, ended = tuple(self._pending[:count]), tuple(self._ended[:count])
        del self._pending[:count], self._ended[:count]
        request = TurnRequest(
            instance=self._instance,
            number=self._number,
            since=self._host.since(self.index),
            acked=self._acked,
            settlements=settlements,
            queues=self._crew.queues if claims else (),
            tasks=self._tasks - full if full else self._tasks,
            full=full,
            limit=claims,
            idle=claims > 0,
            progress=self._progress,
        )
        self._progress = ()
        self._rung_sent = self._rung
        self._sent_ns = self._now()
        if claims:
            self.asked_ns = self._sent_ns
        sent = _Sent(request, ended, self._rung, self._sent_ns)
        self._in_flight[self._number] = sent
        self._crew.company.spawn(self._turn(sent))

    async def _turn(self, sent: _Sent) -> None:
        """Send until answered (P16)."""
        tries, request = 0, sent.request
        while True:
            sent_ns = self._now()
            try:
                async with asyncio.timeout(self._crew.lease_ns / 1e9):
                    reply = await self._partition.turn(request)
            except TimeoutError:  # a connection that is dead and does not say so; or a body blocked this loop
                if tries:
                    self._is_away(request.number, StoreUnavailable("no turn was answered for as long as the lease"))
            except StoreUnavailable as error:
                self._is_away(request.number, error)
            except Exception as error:  # noqa: BLE001 - a store's mistake must not end the worker
                self._host.report(f"turn {request.number}", error)
                self._is_away(request.number, error)
            else:
                self._is_back(request.number)
                self._answered(sent, reply, sent_ns)
                return
            tries += 1
            await self._rest(tries)
            request = replace(request, since=self._host.since(self.index), acked=self._acked)

    # -- the answer

    def _answered(self, sent: _Sent, reply: TurnReply, sent_ns: int) -> None:
        request = sent.request
        del self._in_flight[request.number]
        self._roster.requested -= request.limit
        heard = self._host.heard(self.index, reply.news, sent_ns)
        self._unheard = 0 if heard else self._unheard + 1
        refused = self._take_answers(request.settlements, sent.ended, reply.settled)
        if reply.claims:
            self._receive(reply.claims, heard=heard)
        self._has_received(request.number)  # after the claims are held: see heart.py
        self._turned_ns = now = self._now()
        self._due_ns = now + reply.next_due_us * 1_000 if reply.next_due_us >= 0 else 0
        self._crew.alarm.by(self._due_ns or now + IDLE_TURN_NS)
        if request.limit and not reply.claims and not reply.more and sent.rung == self._rung:
            self.hungry = False  # and the store rings us when there is work
        elif reply.more:
            self.hungry = True
        if request.settlements and not request.limit:
            # What it set free was not claimed with it, and a turn that asked before it cannot have seen it.
            self.ring()
        if reply.cancels:
            self.cancel(reply.cancels)
        if reply.outbox:
            self._on_outbox()
        if not reply.enrolled:
            self._on_lost()
        if len(reply.claims) < request.limit:
            self._on_room()
        tell(self._crew.observer, self._told(request, reply, refused, now - sent.at_ns))
        self._nudged.set()
        self._crew.answered.set()

    def _told(self, request: TurnRequest, reply: TurnReply, refused: int, took_ns: int) -> Turned:
        return Turned(
            partition=self.index,
            claimed=len(reply.claims),
            ended=tuple(Counter([each.event for each in request.settlements]).items()) if request.settlements else (),
            refused=refused,
            took_us=took_ns // 1_000,
            events=len(reply.news.events),
        )

    def _has_received(self, number: int) -> None:
        self._received.add(number)
        while self._acked + 1 in self._received:
            self._acked += 1
            self._received.discard(self._acked)

    def _take_answers(
        self, settlements: Sequence[Settlement], ended: Sequence[Held | None], answers: Sequence[Settled]
    ) -> int:
        """Let go of what is settled. Returns how many were refused."""
        refused = 0
        for held, settlement, settled in zip(ended, settlements, answers, strict=False):
            if self._by_beat and settlement.fence in self._by_beat:
                self._by_beat.discard(settlement.fence)
                continue
            self._held.pop(settlement.fence, None)
            self._host.settled(held.run if held else None, settlement, settled, self.index)
            if settled.refusal is not None:
                refused += 1
                self._tell_refused(held, settlement)
        # The store answers a turn that it has not done, when a later one came first, with nothing: do it now.
        for held, settlement in list(zip(ended, settlements, strict=True))[len(answers) :]:
            if settlement.fence in self._by_beat:
                self._by_beat.discard(settlement.fence)
            else:
                self._queue(held, settlement)
        return refused

    def _tell_refused(self, held: Held | None, settlement: Settlement) -> None:
        task = held.run.claim.task if held else ""
        event = SettleRefused(
            job=settlement.job,
            task=task,
            fence=settlement.fence,
            event=settlement.event,
            wrote=settlement.may_write,
        )
        tell(self._crew.observer, event)

    def _receive(self, claims: Sequence[Claim], *, heard: bool) -> None:
        now = self._now()
        batch: list[Held] = []
        for claim in claims:
            run = self._host.prepare(claim, self.index, now)
            if isinstance(run, Settlement):
                self._held[claim.fence] = run
                self.ended(None, run)
            else:
                self._held[claim.fence] = held = Held(run, self, run.mode)
                batch.append(held)
        if self.closing or self.lapsed:
            self._give_back(batch)
        elif batch and (not heard or self._host.must_wait([held.run for held in batch])):
            self._on_the_way += 1
            self._roster.requested += len(batch)
            self._crew.company.spawn(self._make_ready(batch, heard=heard))
        elif batch:
            self._roster.place(batch)

    async def _make_ready(self, batch: list[Held], *, heard: bool) -> None:
        if heard:
            ready = await self._is_ready(batch)
        else:
            await self._rest(self._unheard)  # given back at once they would be claimed again at once
            ready = False
        self._on_the_way -= 1
        self._roster.requested -= len(batch)
        if ready and not (self.closing or self.lapsed):
            self._roster.place(batch)
        else:
            self._give_back(batch)
        self._nudged.set()

    def _give_back(self, batch: Sequence[Held]) -> None:
        for held in batch:
            self.ended(held, self._host.unstarted(held.run, LAPSED if self.lapsed else ""))

    async def _is_ready(self, batch: list[Held]) -> bool:
        runs = [held.run for held in batch]
        for tries in range(1, READY_TRIES + 1):
            try:
                await self._crew.host.ready_for(runs)
                return True
            except StoreUnavailable:
                pass
            except Exception as error:  # noqa: BLE001 - given back, another worker may do better
                self._host.report("getting ready for a batch", error)
            # Given back at once it would be claimed again at once.
            await self._rest(tries)
        return False

    # -- beats

    def beat(self) -> Beat:
        """Say what a heartbeat must name; in the heart's thread. The order of reading is a law (see heart.py)."""
        last_turn = self._acked
        held = tuple(self._held.values())
        return Beat(
            last_turn=last_turn,
            held=tuple(each.attempt if isinstance(each, Held) else Attempt(each.job, each.fence) for each in held),
            abandoned=tuple(self._given_up.values()),
            settlements=self._overdue(),
            scopes=(),  # a worker's instance opens none
        )

    def last_words(self, culprit: Held | None = None) -> Leaving:
        """Say what the last beat of this process must tell: the ends of all bodies that began. From any thread.

        Args:
            culprit: its body blocks the loop: it is lost, and not settled.
        """
        ends = [
            each for sent in tuple(self._in_flight.values()) for each in sent.request.settlements
        ] + self._pending.copy()
        abandoned = tuple(self._given_up.values())
        for held in self._roster:
            if held.home is self and held.started_ns and not held.abandoned and held is not culprit:
                held.run.stopping = held.run.stopping or Stop.SHUTDOWN
                end = self._host.cut_off(held.run)
                if end.event is JobEvent.LOSE:
                    abandoned += (Abandoned(end.job, end.fence, end.reason or Reason.LOST),)
                else:
                    ends.append(end)
        if culprit is not None and culprit.home is self:
            abandoned += (_unstoppable(culprit),)
        return Leaving(self.index, self._number, abandoned, tuple(ends[:LAST_WORDS_MOST]))

    def _overdue(self) -> tuple[Settlement, ...]:
        """Return settlements that turns could not deliver for longer than a lease (P19), and no beat has."""
        long_ago = self._now() - self._crew.lease_ns
        if not (self._in_flight or self._pending):
            return ()
        late = [
            each
            for sent in tuple(self._in_flight.values())
            if sent.at_ns <= long_ago
            for each in sent.request.settlements
            if each.fence not in self._by_beat
        ]
        if self._pending and self._pending_since_ns <= long_ago:
            late += self._pending
        return tuple(late[: _together(late, BEAT_SETTLES_MOST)])

    def heard_beat(self, beat: Beat, reply: HeartbeatReply) -> None:
        """Take what a heartbeat came to; on the loop."""
        for attempt in beat.abandoned:
            self._given_up.pop(attempt.fence, None)
        if beat.abandoned:
            self._nudged.set()
            self._crew.answered.set()
        if reply.settled:
            self._take_from_beat(beat.settlements, reply.settled)
        if reply.lost:
            self.cancel(reply.lost, Stop.LOST)
        if reply.cancels:
            self.cancel(reply.cancels)
        if not reply.enrolled:
            self._on_lost()

    def _take_from_beat(self, settlements: Sequence[Settlement], answers: Sequence[Settled]) -> None:
        in_turns = {
            each.fence: held
            for sent in self._in_flight.values()
            for held, each in zip(sent.ended, sent.request.settlements, strict=True)
        }
        waiting = {each.fence: at for at, each in enumerate(self._pending)}
        done: set[int] = set()
        for settlement, settled in zip(settlements, answers, strict=False):
            fence = settlement.fence
            if fence in in_turns and fence not in self._by_beat:
                self._take_answers((settlement,), (in_turns[fence],), (settled,))
                self._by_beat.add(fence)
            elif fence in waiting:
                self._take_answers((settlement,), (self._ended[waiting[fence]],), (settled,))
                done.add(fence)
        if done:
            kept = [at for at, each in enumerate(self._pending) if each.fence not in done]
            self._ended = [self._ended[at] for at in kept]
            self._pending = [self._pending[at] for at in kept]

    # -- the store's absence

    def _is_away(self, number: int, error: Exception) -> None:
        self._failing.add(number)
        if not self._away_ns:
            self._away_ns = self._now()
            tell(self._crew.observer, StoreLost(partition=self.index, error=str(error) or type(error).__name__))

    def _is_back(self, number: int) -> None:
        if self._away_ns:
            self._failing.discard(number)
            if not self._failing:
                away_us = (self._now() - self._away_ns) // 1_000
                self._away_ns = 0
                tell(self._crew.observer, StoreBack(partition=self.index, away_us=away_us))

    async def _rest(self, tries: int) -> None:
        await self._crew.clock.sleep(AGAIN.delay_us(tries, self._crew.entropy) / 1_000_000)


def _unstoppable(held: Held) -> Abandoned:
    claim = held.run.claim
    return Abandoned(claim.job, claim.fence, "its body went on past its deadline, and could not be stopped")


def _together(ends: Sequence[Settlement], most: int) -> int:
    """Return how many of the first go in one message: as many as their bytes allow, and at least one."""
    size, count = 0, 0
    for end in ends[:most]:
        size += len(end.result or b"") + len(end.error or b"")
        if end.puts or end.children:
            size += sum(len(put.value) for put in end.puts) + sum(len(child.payload) for child in end.children)
        if size > SETTLE_BYTES and count:
            break
        count += 1
    return count
