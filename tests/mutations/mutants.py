"""The protocol with one rule taken out at a time, and the test that must notice.

Each mutant changes one method of the memory store: `instead` is called with the original method and its arguments.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace
from tests.conformance import (
    test_cancel,
    test_claims,
    test_dependents,
    test_fan_outs,
    test_fills,
    test_intents,
    test_lines,
    test_log,
    test_lost,
    test_openings,
    test_partitions,
    test_retention,
    test_settle,
    test_turns,
    test_unique,
    test_unsure,
)
from tests.conformance.world import B, K

from selaras._contracts.partition import Owner, Register, Resolve
from selaras._core.cache.entry import Miss, Standing
from selaras._core.cache.opening import opened_by
from selaras._core.jobs.job import JobKind
from selaras._core.jobs.lifecycle import FINAL
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import News
from selaras._stores.memory.cells import Cells
from selaras._stores.memory.jobs import Jobs
from selaras._stores.memory.log import Log
from selaras._stores.memory.partition import MemoryPartition

Original = Callable[..., Any]
_NEVER = 1 << 62


@dataclass(frozen=True)
class Mutant:
    """A rule taken out, and who must notice."""

    rule: str
    taken_out: str
    where: type
    method: str
    instead: Callable[..., Any]
    caught_by: Callable[..., Awaitable[None]]
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    partitions: int = 1

    def __str__(self) -> str:
        return f"{self.rule}: {self.taken_out}"


# -- cells


def _stays_closed(void: Original, self: Log, *_: Any) -> None:
    """Nothing is open, whatever intent stands there."""


def _closed_by_events(append: Original, self: Log, scope: Any, name: str) -> None:
    self._marks.pop((scope, name), None)
    append(self, scope, name)


def _closes_in_silence(resolve: Original, self: Cells, owner: Owner, key: str, put: Any, now: int) -> Any:
    if opened_by(key) and self._intent(owner, key):
        self._remove(key, (owner.home, owner.job))
        return None
    return resolve(self, owner, key, put, now)


def _first_one_closes(remove: Original, self: Cells, key: str, owner: Any) -> None:
    remove(self, key, owner)
    self.log.close(key)


def _forgets_the_refusal(fill: Original, self: Cells, fill_: Any, now: int) -> Any:
    stored = fill(self, fill_, now)
    if stored is None:
        self.tokens.pop(fill_.put.key, None)
    return stored


def _shut_for_good(look: Original, self: Cells, request: Any, now: int) -> Any:
    token = self.tokens.get(request.key)
    return Standing() if token and not token.token else look(self, request, now)


def _single_slot(plant: Original, self: Cells, owner: Owner, key: str, now: int) -> Any:
    self.standing.pop(key, None)
    return plant(self, owner, key, now)


def _remove_all(remove: Original, self: Cells, key: str, owner: object) -> None:
    self.standing.pop(key, None)


def _void_removes_intents(void: Original, self: Cells, key: str) -> None:
    void(self, key)
    self.standing.pop(key, None)


def _nothing_is_closed(set_floors: Original, self: Cells, versions: Any, closes: Any, now: int) -> None:
    set_floors(self, versions, (), now)


def _void_leaves(*kept: str) -> Callable[..., None]:
    """Void, but leave what intents and tokens were before."""

    def instead(void: Original, self: Cells, key: str) -> None:
        token = self.tokens.get(key)
        before = [(intent, intent.clean, intent.preimage) for intent in self.standing.get(key, {}).values()]
        void(self, key)
        for intent, clean, preimage in before:
            intent.clean = clean if "clean" in kept else intent.clean
            intent.preimage = preimage if "preimage" in kept else intent.preimage
        if token and "token" in kept:
            self.tokens[key] = token

    return instead


def _tag_does_not_soil(plant: Original, self: Cells, owner: Owner, key: str, put: Any, now: int) -> Any:
    own = self.standing.get(key, {}).get((owner.home, owner.job))
    if own:
        own.planted_at = _NEVER
    return plant(self, owner, key, put, now)


def _sole_or_not(resolve: Original, self: Cells, owner: Owner, key: str, put: Any, now: int) -> Any:
    own = self.standing.get(key, {}).get((owner.home, owner.job))
    if own and own.fence == owner.fence:
        own.clean = True
        self.standing[key] = {(owner.home, owner.job): own}
    return resolve(self, owner, key, put, now)


def _silent_resolve(resolve: Original, self: Cells, owner: Owner, key: str, put: Any, now: int) -> Any:
    own = self.standing.get(key, {}).get((owner.home, owner.job))
    return resolve(self, owner, key, put, now) if own and own.fence == owner.fence else None


def _token_one(look: Original, self: Cells, request: Any, now: int) -> Any:
    found = look(self, request, now)
    if isinstance(found, Miss):
        self.tokens[request.key].token = 1
        return replace(found, token=1)
    return found


def _any_token(fill: Original, self: Cells, filling: Any, now: int) -> Any:
    token = self.tokens.get(filling.put.key)
    return fill(self, replace(filling, token=token.token) if token else filling, now)


def _no_token(fill: Original, self: Cells, filling: Any, now: int) -> Any:
    return self._store(filling.put, now)


def _renewed_by_all(look: Original, self: Cells, request: Any, now: int) -> Any:
    if request.renews:
        self.tokens.pop(request.key, None)
    return look(self, request, now)


def _no_closing_time(fill: Original, self: Cells, filling: Any, now: int) -> Any:
    token = self.tokens.get(filling.put.key)
    if token:
        token.until_us = _NEVER
    return fill(self, filling, now)


def _fill_over_intents(fill: Original, self: Cells, filling: Any, now: int) -> Any:
    standing = self.standing.pop(filling.put.key, None)
    stored = fill(self, filling, now)
    if standing:
        self.standing[filling.put.key] = standing
    return stored


def _fill_without_tags(fill: Original, self: Cells, filling: Any, now: int) -> Any:
    token = self.tokens.get(filling.put.key)
    if token:
        token.granted_at = _NEVER
    return fill(self, filling, now)


def _fill_without_floor(fill: Original, self: Cells, filling: Any, now: int) -> Any:
    floor = self.floors.pop(filling.put.key, None)
    stored = fill(self, filling, now)
    if floor:
        self.floors[filling.put.key] = floor
    return stored


def _stamp_one(store: Original, self: Cells, put: Any, now: int) -> Any:
    position, _ = store(self, put, now)
    stored = self.entries[put.key]
    stored.entry = replace(stored.entry, stamp=1)
    return position, 1


def _plant_is_a_void(plant: Original, self: Cells, owner: Owner, key: str, now: int) -> Any:
    self.void(key)


def _fall_at_once(let_stand: Original, self: Cells, owner: Owner, until_us: int) -> None:
    let_stand(self, owner, 1)


# -- jobs


def _changed_settlement(**changes: Any) -> Callable[..., Any]:
    def instead(settle_cells: Original, self: Jobs, row: Any, settlement: Any, now: int) -> Any:
        return settle_cells(self, row, replace(settlement, **changes), now)

    return instead


def _undeclared_put_is_stored(settle_cells: Original, self: Jobs, row: Any, settlement: Any, now: int) -> Any:
    keys = tuple(put.key for put in settlement.puts if put.key not in row.new.writes)
    for key in keys:
        self._cells.plant(Owner(self.index, row.id, row.fence), key, now)
    return settle_cells(self, row, replace(settlement, planted=keys), now)


def _serves_only_on_success(settle_cells: Original, self: Jobs, row: Any, settlement: Any, now: int) -> Any:
    if settlement.event is not JobEvent.SUCCEED:
        row.new = replace(row.new, serves=())
    return settle_cells(self, row, settlement, now)


def _holds_by_name_of(*matched: str) -> Callable[..., Any]:
    def instead(holds: Original, self: Jobs, instance: str, job: str, fence: int) -> Any:
        row = self.rows.get(job)
        if row is None:
            return None
        return holds(
            self, instance if "instance" in matched else row.instance, job, fence if "fence" in matched else row.fence
        )

    return instead


def _lose_removes_intents(lose: Original, self: Jobs, row: Any, now: int) -> None:
    for key in [key for key, here in self._cells.standing.items() if (self.index, row.id) in here]:
        self._cells._remove(key, (self.index, row.id))
    lose(self, row, now)


def _lose_resolves_elsewhere(lose: Original, self: Jobs, row: Any, now: int) -> None:
    owner = Owner(self.index, row.id, row.fence)
    for to, keys in self._by_partition(tuple(key for key in row.new.writes if not self._is_here(key))):
        self._post(Resolve(to=to, owner=owner, keys=keys))
    lose(self, row, now)


def _attempt_not_counted_as_lost(lose: Original, self: Jobs, row: Any, now: int) -> None:
    row.lost -= 1
    lose(self, row, now)


def _no_promotion(leave: Original, self: Jobs, row: Any, now: int) -> None:
    arrange = self.arrange
    self.arrange = lambda name, now: None  # type: ignore[method-assign]
    leave(self, row, now)
    self.arrange = arrange  # type: ignore[method-assign]


def _old_place(enter: Original, self: Jobs, row: Any, event: JobEvent, now: int) -> None:
    row.joined = row.joined or row.number
    enter(self, row, event, now)


def _line_not_held(take: Original, self: Jobs, row: Any, *rest: Any) -> None:
    take(self, row, *rest)
    if row.new.line:
        self.line(row.new.line).holder = ""
        self.arrange(row.new.line, rest[-1])


def _ordered_is_nothing(again: Original, self: Jobs, row: Any, *rest: Any) -> None:
    row.new = replace(row.new, ordered=False)
    again(self, row, *rest)


def _settled_parents_are_not_asked(register: Original, self: Jobs, effect: Register, now: int) -> None:
    parent = self.rows.get(effect.parent)
    if parent is None or parent.state not in FINAL:
        register(self, effect, now)


def _scopes_are_forgotten(end: Original, self: Jobs, row: Any, *rest: Any) -> None:
    end(self, row, *rest)
    if row.new.kind is JobKind.WRITING:
        del self.rows[row.id]


def _whoever_comes_last(reserve: Original, self: Jobs, name: str, job: str, home: int, replacing: str) -> Any:
    self.directory[name] = (job, home)
    return self.directory[name]


def _expires_though_started(again: Original, self: Jobs, row: Any, *rest: Any) -> None:
    expires_us = row.expires_us
    again(self, row, *rest)
    row.expires_us = expires_us


def _children_of_any_end(settle: Original, self: Jobs, instance: str, settlement: Any, now: int) -> Any:
    settled = settle(self, instance, settlement, now)
    if settled.refusal is None and settlement.event is not JobEvent.SUCCEED:
        for child in settlement.children:
            self.admit(child, now)
    return settled


# -- partition and log


def _position_of_the_tail(turn: Original, self: MemoryPartition, request: Any) -> Any:
    async def turned() -> Any:
        reply = await turn(self, request)
        tail = reply.news.tail.position
        settled = tuple(
            replace(one, stored=tuple((key, tail, stamp) for key, _, stamp in one.stored)) for one in reply.settled
        )
        return replace(reply, settled=settled)

    return turned()


def _claims_before_settles(turn: Original, self: MemoryPartition, request: Any) -> Any:
    async def turned() -> Any:
        reply = await turn(self, replace(request, settlements=()))
        settled = await self.settle(request.instance, request.settlements, request.since)
        return replace(reply, settled=settled.settled)

    return turned()


def _repeats_are_executed(turn: Original, self: MemoryPartition, request: Any) -> Any:
    self._jobs.holders[request.instance].replies.clear()
    return turn(self, request)


def _turns_in_order_only(turn: Original, self: MemoryPartition, request: Any) -> Any:
    holder = self._jobs.holders[request.instance]
    latest = max(holder.replies, default=0)
    if request.number < latest:
        holder.replies.setdefault(request.number, ((), ()))
    return turn(self, request)


def _claims_from_before(claim: Original, self: MemoryPartition, request: Any, now: int) -> Any:
    position = self._log.tail.position
    return tuple(replace(one, position=position) for one in claim(self, request, now))


def _beat_as_if(**changes: Any) -> Callable[..., Any]:
    def instead(beat: Original, self: MemoryPartition, request: Any) -> Any:
        return beat(self, replace(request, **changes))

    return instead


def _suspicion_stays(beat: Original, self: MemoryPartition, request: Any) -> Any:
    holder = self._jobs.holders.get(request.instance)
    suspected_us = holder.suspected_us if holder else 0
    reply = beat(self, request)
    if holder:
        holder.suspected_us = suspected_us
    return reply


def _reap_at_first_look(reap: Original, self: MemoryPartition, now: int) -> Any:
    for holder in self._jobs.holders.values():
        holder.suspected_us = 1 if holder.until_us <= now else 0
    return reap(self, now)


def _lease_by_name(enroll: Original, self: MemoryPartition, instance: Any) -> Any:
    for holder in self._jobs.holders.values():
        if holder.instance.name == instance.name:
            holder.until_us = _NEVER
    return enroll(self, instance)


def _counter_is_the_clock(next: Original, self: MemoryPartition) -> int:
    return self._now()


def _positions_without_ids(knows: Original, self: Log, cursor: Any) -> bool:
    return bool(self._before.position <= cursor.position)


def _tail_without_id(news: Original, self: Log, since: Any) -> Any:
    return News(self.tail, epoch=self.epoch) if since.position == self.tail.position else news(self, since)


def _trimmed_is_not_noticed(news: Original, self: Log, since: Any) -> Any:
    told = news(self, since)
    return News(self.tail, tuple(event for event, _ in self._events), epoch=self.epoch) if told.reset else told


def _deaf(news: Original, self: Log, since: Any) -> Any:
    return News(self.tail, epoch=self.epoch)


def _nothing(original: Original, *arguments: Any) -> None:
    return None


def _no(original: Original, *arguments: Any) -> bool:
    return False


def _yes(original: Original, *arguments: Any) -> bool:
    return True


def _none_of_them(original: Original, *arguments: Any) -> list[Any]:
    return []


KEY, TAG = {"names": {"keys": (K,)}}, {"names": {"tags": ("t",)}}
OPENED = {"name": test_openings.TAG}

MUTANTS = (
    Mutant(
        "G1",
        "replies carry no news",
        Log,
        "news",
        _deaf,
        test_claims.test_g1_a_claim_hears_the_effects_of_every_settle_before_it,
    ),
    Mutant(
        "G8",
        "a job's end is told without the log",
        Log,
        "news",
        _deaf,
        test_settle.test_g8_whoever_is_told_of_a_job_hears_the_log_up_to_now,
    ),
    Mutant(
        "L2",
        "claims come before settles",
        MemoryPartition,
        "turn",
        _claims_before_settles,
        test_claims.test_l2_a_turn_settles_before_it_claims,
    ),
    Mutant(
        "L10",
        "two of a line run at once",
        Jobs,
        "_take",
        _line_not_held,
        test_lines.test_the_jobs_of_a_line_run_one_at_a_time_in_order,
    ),
    Mutant(
        "L12",
        "what a job leaves behind stays",
        Jobs,
        "_let_go",
        _nothing,
        test_lost.test_l12_an_intent_planted_by_a_lost_attempt_alone_does_not_stand_for_ever,
    ),
    Mutant(
        "L12",
        "a job that ends while it waits frees no key",
        Jobs,
        "_let_go",
        _nothing,
        test_unique.test_br024_a_cancelled_an_expired_and_a_purged_twin_free_the_key,
    ),
    Mutant(
        "L13",
        "a job is forgotten while those who wait for it are told",
        Jobs,
        "_is_told_of",
        _nothing,
        test_fan_outs.test_l13_a_job_is_kept_until_all_were_told,
    ),
    Mutant(
        "P1",
        "a claim's position is the tail before it",
        MemoryPartition,
        "_claim",
        _claims_from_before,
        test_claims.test_p1_a_claim_names_the_tail_of_the_reply_that_carries_it,
    ),
    Mutant(
        "P3",
        "a stored value's position is the reply's tail",
        MemoryPartition,
        "turn",
        _position_of_the_tail,
        test_intents.test_p3_a_value_stored_by_a_settle_has_the_position_before_the_same_turn_s_claims,
    ),
    Mutant(
        "P4",
        "values of one position are not ordered",
        Cells,
        "_store",
        _stamp_one,
        test_intents.test_p4_values_of_one_position_are_ordered_by_their_stamps,
    ),
    Mutant(
        "P7",
        "intents are a single slot",
        Cells,
        "plant",
        _single_slot,
        test_intents.test_p7_a_key_stays_closed_until_the_last_of_its_writers_has_settled,
    ),
    Mutant(
        "P7",
        "a settle removes others' intents",
        Cells,
        "_remove",
        _remove_all,
        test_intents.test_p7_a_settle_removes_only_its_own_intent,
    ),
    Mutant(
        "P7",
        "an invalidation removes intents",
        Cells,
        "void",
        _void_removes_intents,
        test_intents.test_p7_no_invalidation_removes_an_intent,
        KEY,
    ),
    Mutant(
        "P7",
        "a fill does not look at intents",
        Cells,
        "fill",
        _no_token,
        test_intents.test_p7_a_token_granted_before_the_claim_fills_nothing,
    ),
    Mutant(
        "P8",
        "an invalidation leaves intents clean",
        Cells,
        "void",
        _void_leaves("clean"),
        test_intents.test_p8_a_put_is_not_stored_over_an_invalidation_from_outside,
        KEY,
    ),
    Mutant(
        "P8",
        "a tag leaves intents clean",
        Cells,
        "resolve",
        _tag_does_not_soil,
        test_intents.test_p8_a_put_is_not_stored_over_an_invalidation_from_outside,
        TAG,
    ),
    Mutant(
        "P8",
        "a put needs no sole, clean intent",
        Cells,
        "resolve",
        _sole_or_not,
        test_intents.test_p8_of_two_writers_at_once_neither_put_is_stored,
        {"last": B},
    ),
    Mutant(
        "P8",
        "any end stores its puts",
        Jobs,
        "_settle_cells",
        _changed_settlement(event=JobEvent.SUCCEED),
        test_intents.test_p8_only_a_success_stores_its_puts,
        {"event": JobEvent.FAIL},
    ),
    Mutant(
        "P8",
        "a put of an undeclared key is stored",
        Jobs,
        "_settle_cells",
        _undeclared_put_is_stored,
        test_intents.test_p8_a_put_of_a_key_that_was_not_declared_is_an_invalidation,
    ),
    Mutant(
        "P9",
        "a refused settle voids nothing",
        Jobs,
        "_void_late",
        _nothing,
        test_intents.test_p9_a_writing_scope_that_outlived_its_lease_voids_when_it_ends,
    ),
    Mutant(
        "P9",
        "a resolve without an intent is silent",
        Cells,
        "resolve",
        _silent_resolve,
        test_intents.test_p9_a_resolve_without_an_intent_voids_tokens_and_makes_others_unclean,
    ),
    Mutant(
        "P10",
        "an invalidation keeps the pre-image",
        Cells,
        "void",
        _void_leaves("clean", "preimage"),
        test_intents.test_p10_a_preimage_does_not_return_once_anything_touched_its_key,
        {"touch": "key"},
    ),
    Mutant(
        "P10",
        "an attempt that started gives its pre-image back",
        Jobs,
        "_settle_cells",
        _changed_settlement(event=JobEvent.RELEASE, started=False),
        test_intents.test_p10_an_attempt_that_started_takes_the_preimage_with_it,
        {"event": JobEvent.RETRY},
    ),
    Mutant(
        "P10",
        "a served key is invalidated by a success only",
        Jobs,
        "_settle_cells",
        _serves_only_on_success,
        test_claims.test_p10_every_end_of_an_attempt_invalidates_a_served_key,
        {"event": JobEvent.RETRY},
    ),
    Mutant(
        "P11",
        "tokens start again with the key",
        Cells,
        "look",
        _token_one,
        test_fills.test_p11_a_token_is_never_used_again_after_an_invalidation,
    ),
    Mutant(
        "P11",
        "all who renew an entry get a token",
        Cells,
        "look",
        _renewed_by_all,
        test_fills.test_of_those_who_renew_an_entry_one_gets_the_token_and_all_get_the_entry,
    ),
    Mutant(
        "P11",
        "any token fills",
        Cells,
        "fill",
        _any_token,
        test_fills.test_p11_a_token_is_never_used_again_after_an_invalidation,
    ),
    Mutant(
        "P11",
        "a fill needs no token",
        Cells,
        "fill",
        _no_token,
        test_fills.test_p11_a_load_begun_before_an_invalidation_is_never_stored_after_it,
    ),
    Mutant(
        "P11",
        "an invalidation leaves tokens",
        Cells,
        "void",
        _void_leaves("token"),
        test_fills.test_p11_a_load_begun_before_an_invalidation_is_never_stored_after_it,
    ),
    Mutant(
        "P11",
        "a token has no end",
        Cells,
        "fill",
        _no_closing_time,
        test_fills.test_p11_a_token_that_ran_out_fills_nothing_even_before_another_is_granted,
    ),
    Mutant(
        "P12",
        "a fill does not look at tags",
        Cells,
        "fill",
        _fill_without_tags,
        test_fills.test_p12_a_fill_is_refused_if_its_tag_or_family_was_voided_after_the_token_was_granted,
        TAG,
    ),
    Mutant(
        "P12",
        "a hit does not look at tags",
        Log,
        "voided_after",
        _no,
        test_fills.test_p12_a_tag_or_family_voids_what_bears_it,
        {**TAG, "dropped": True},
    ),
    Mutant(
        "L14",
        "an intent on a tag opens nothing",
        Log,
        "open",
        _stays_closed,
        test_openings.test_p7_nothing_that_bears_it_is_stored_while_it_stands,
        OPENED,
    ),
    Mutant(
        "L14",
        "an event closes what is open",
        Log,
        "append",
        _closed_by_events,
        test_openings.test_p7_no_invalidation_closes_it,
        {**OPENED, "names": {"tags": ("t",)}},
    ),
    Mutant(
        "L14",
        "a settle closes without an event",
        Cells,
        "resolve",
        _closes_in_silence,
        test_openings.test_p12_a_load_that_began_while_it_stood_is_not_stored_after_it,
        OPENED,
    ),
    Mutant(
        "L14",
        "the first of several writers closes it",
        Cells,
        "_remove",
        _first_one_closes,
        test_openings.test_p7_it_stays_open_until_the_last_of_its_writers_has_settled,
        OPENED,
    ),
    Mutant(
        "L14",
        "a refused fill is forgotten",
        Cells,
        "fill",
        _forgets_the_refusal,
        test_openings.test_those_who_come_after_a_refused_fill_do_not_wait_for_each_other,
    ),
    Mutant(
        "L14",
        "a refused fill is remembered beyond the settle",
        Cells,
        "look",
        _shut_for_good,
        test_openings.test_those_who_come_after_a_refused_fill_do_not_wait_for_each_other,
    ),
    Mutant(
        "P13",
        "a fill does not look at the floor",
        Cells,
        "fill",
        _fill_without_floor,
        test_fills.test_f6_f7_a_snapshot_or_replica_older_than_the_floor_fills_nothing,
    ),
    Mutant(
        "P13",
        "nothing sets a floor or closes a key",
        Cells,
        "set_floors",
        _nothing,
        test_fills.test_p13_a_write_without_a_version_stops_fills_for_a_while,
    ),
    Mutant(
        "P14",
        "an invalidation inside a job takes effect at once only",
        Cells,
        "plant",
        _plant_is_a_void,
        test_intents.test_p14_an_invalidation_inside_a_job_plants_now_and_is_resolved_at_the_settle,
    ),
    Mutant(
        "P15",
        "fences are the time of day",
        MemoryPartition,
        "_next",
        _counter_is_the_clock,
        test_claims.test_p15_a_fence_is_not_used_again_after_a_purge_and_a_new_job_of_the_same_id,
    ),
    Mutant(
        "P15",
        "a settle matches the job alone",
        Jobs,
        "holds",
        _holds_by_name_of("instance"),
        test_settle.test_p15_l4_a_settle_must_match_instance_job_and_fence,
        {"wrong": "fence"},
    ),
    Mutant(
        "P15",
        "a settle matches job and fence alone",
        Jobs,
        "holds",
        _holds_by_name_of("fence"),
        test_settle.test_p15_l4_a_settle_must_match_instance_job_and_fence,
        {"wrong": "instance"},
    ),
    Mutant(
        "P16",
        "a repeated turn is executed again",
        MemoryPartition,
        "turn",
        _repeats_are_executed,
        test_turns.test_p16_a_repeated_turn_returns_the_same_claims_and_outcomes_with_fresh_news,
    ),
    Mutant(
        "P16",
        "a turn that was overtaken is taken for a repeat",
        MemoryPartition,
        "turn",
        _turns_in_order_only,
        test_turns.test_p16_two_turns_in_flight_may_arrive_in_either_order,
    ),
    Mutant(
        "P16",
        "a heartbeat renews what was never received",
        Jobs,
        "release",
        _nothing,
        test_turns.test_p16_what_a_lost_reply_claimed_is_released_uncounted_by_the_next_heartbeat,
    ),
    Mutant(
        "P16",
        "a heartbeat releases what is on its way",
        MemoryPartition,
        "beat",
        _beat_as_if(last_turn=_NEVER),
        test_turns.test_p16_a_heartbeat_leaves_alone_what_a_later_turn_claimed,
    ),
    Mutant(
        "P17",
        "remote intents are never resolved",
        Jobs,
        "_post",
        _nothing,
        test_partitions.test_p17_a_remote_intent_stands_until_the_outbox_resolves_it_after_the_settle,
        partitions=4,
    ),
    Mutant(
        "P17",
        "a reaper removes remote intents",
        Jobs,
        "lose",
        _lose_resolves_elsewhere,
        test_partitions.test_p18_a_remote_intent_passes_to_the_next_attempt,
        partitions=4,
    ),
    Mutant(
        "P17",
        "orphans are not asked after",
        Cells,
        "orphans",
        _none_of_them,
        test_partitions.test_p17_an_intent_of_another_home_that_stood_long_is_asked_after,
        partitions=4,
    ),
    Mutant(
        "P18",
        "a lost attempt's intents go",
        Jobs,
        "lose",
        _lose_removes_intents,
        test_lost.test_p18_the_intents_of_a_lost_attempt_pass_to_the_next_one,
    ),
    Mutant(
        "P18",
        "the last lost attempt's intents have no grace",
        Cells,
        "let_stand",
        _fall_at_once,
        test_lost.test_p18_the_intents_of_the_last_lost_attempt_stand_a_grace_then_void,
    ),
    Mutant(
        "P18",
        "a lost attempt keeps its pre-image for the next",
        Cells,
        "pass_on",
        _nothing,
        test_lost.test_p18_the_intents_of_a_lost_attempt_pass_to_the_next_one,
    ),
    Mutant(
        "P18",
        "a served key is open to fills though a write of a lost attempt may land",
        Cells,
        "set_floors",
        _nothing_is_closed,
        test_unsure.test_p18_a_served_key_that_may_still_be_written_is_closed_to_fills_for_a_grace,
        {"how": "lost"},
    ),
    Mutant(
        "P19",
        "the first look reaps",
        MemoryPartition,
        "_reap",
        _reap_at_first_look,
        test_lost.test_p19_an_expired_lease_is_looked_at_twice_a_grace_apart,
    ),
    Mutant(
        "P19",
        "the first look reaps a worker that was held up",
        MemoryPartition,
        "_reap",
        _reap_at_first_look,
        test_lost.test_p19_a_heartbeat_that_was_only_held_up_keeps_everything,
    ),
    Mutant(
        "P19",
        "a heartbeat leaves the suspicion",
        MemoryPartition,
        "beat",
        _suspicion_stays,
        test_lost.test_p19_suspicion_is_forgotten_by_a_heartbeat,
    ),
    Mutant(
        "P19",
        "a process keeps everything while its heart beats",
        MemoryPartition,
        "beat",
        _beat_as_if(abandoned=()),
        test_lost.test_p19_a_body_that_cannot_be_ended_is_given_up_while_its_process_lives,
    ),
    Mutant(
        "P19",
        "a heartbeat delivers no settles",
        MemoryPartition,
        "beat",
        _beat_as_if(settlements=()),
        test_lost.test_p19_settles_that_the_main_connection_cannot_deliver_go_with_the_heartbeat,
    ),
    Mutant(
        "P20",
        "events have no ids",
        Log,
        "_knows",
        _positions_without_ids,
        test_log.test_p20_a_cursor_of_another_log_is_noticed_though_no_position_is_missing,
    ),
    Mutant(
        "P20",
        "the tail has no id",
        Log,
        "news",
        _tail_without_id,
        test_log.test_p20_a_cursor_at_the_tail_of_another_log_is_noticed,
    ),
    Mutant(
        "P20",
        "entries outlive their epoch",
        Cells,
        "forget",
        _nothing,
        lambda world: test_log.test_p20_a_store_that_lost_events_resets_its_readers_and_trusts_no_entry(),
    ),
    Mutant(
        "P20",
        "a trimmed log is read on from its end",
        Log,
        "news",
        _trimmed_is_not_noticed,
        test_log.test_b8_a_log_trimmed_past_a_sleeper_s_cursor_resets_it,
    ),
    Mutant(
        "P21",
        "whoever leaves promotes nobody",
        Jobs,
        "_leave",
        _no_promotion,
        test_lines.test_p21_every_exit_of_the_head_promotes_the_next,
    ),
    Mutant(
        "P21",
        "a paused head blocks its line",
        Jobs,
        "_served",
        _yes,
        test_lines.test_p21_a_head_in_a_paused_queue_does_not_block_its_line,
    ),
    Mutant(
        "P21",
        "an unserved head blocks its line",
        Jobs,
        "_served",
        _yes,
        test_lines.test_p21_a_head_in_a_queue_that_nobody_serves_does_not_block_its_line,
    ),
    Mutant(
        "P21",
        "a retry keeps its place",
        Jobs,
        "_enter",
        _old_place,
        test_lines.test_p21_a_retry_gives_the_line_up_and_joins_its_tail,
        {"event": JobEvent.RETRY},
    ),
    Mutant(
        "P21",
        "an ordered retry gives the line up",
        Jobs,
        "_again",
        _ordered_is_nothing,
        test_lines.test_p21_an_ordered_retry_keeps_the_line_while_it_backs_off,
    ),
    Mutant(
        "P21",
        "a lock that nobody fetches stays",
        Jobs,
        "unfetched_locks",
        _none_of_them,
        test_lines.test_p21_a_lock_that_is_not_fetched_passes_to_the_next,
    ),
    Mutant(
        "P22",
        "a settled parent is not asked",
        Jobs,
        "register",
        _settled_parents_are_not_asked,
        test_partitions.test_p22_registering_at_a_settled_parent_releases_at_once,
        partitions=4,
    ),
    Mutant(
        "P22",
        "a scope is forgotten at its end",
        Jobs,
        "_end",
        _scopes_are_forgotten,
        test_dependents.test_p22_a_job_that_is_registered_after_its_scope_ended_still_learns_how,
        {"event": JobEvent.SUCCEED, "state": JobState.READY},
    ),
    Mutant(
        "P22",
        "a directory entry goes to whoever comes last",
        Jobs,
        "reserve",
        _whoever_comes_last,
        test_partitions.test_p22_a_directory_entry_is_taken_once,
        partitions=4,
    ),
    Mutant(
        "BR-010",
        "a lease belongs to a name",
        MemoryPartition,
        "enroll",
        _lease_by_name,
        test_lost.test_br010_a_lease_belongs_to_the_process_not_to_its_name,
        {"between": ""},
    ),
    Mutant(
        "BR-011",
        "lost attempts are not counted",
        Jobs,
        "lose",
        _attempt_not_counted_as_lost,
        test_lost.test_br012_a_worker_lost_in_the_last_allowed_attempt_ends_the_job_for_everybody,
    ),
    Mutant(
        "BR-024",
        "an end frees no unique key",
        Jobs,
        "_free_unique",
        _nothing,
        test_unique.test_br024_every_end_of_the_twin_frees_the_key,
        {"event": JobEvent.FAIL},
    ),
    Mutant(
        "BR-104",
        "a cancel asks nobody",
        MemoryPartition,
        "_cancels",
        lambda cancels, *_: (),
        test_cancel.test_br104_a_running_job_is_asked_and_its_worker_is_told,
    ),
    Mutant(
        "Q6",
        "children of a failure are enqueued",
        Jobs,
        "settle",
        _children_of_any_end,
        test_settle.test_children_of_anything_but_a_success_are_dropped,
        {"event": JobEvent.FAIL},
    ),
    Mutant(
        "expiry",
        "a job expires though it has started",
        Jobs,
        "_again",
        _expires_though_started,
        test_retention.test_a_job_that_has_started_does_not_expire_while_it_runs_or_waits_to_run_again,
    ),
)
