----------------------------- MODULE Coherence -----------------------------
(***************************************************************************)
(* One partition, one key: how claims, settles, reads, fills and a log     *)
(* keep every copy of a value as fresh as its reader needs it.             *)
(*                                                                         *)
(* The datastore is a counter of versions. Each commit raises it by one.   *)
(* `covered` is the newest version that the protocol answers for: a commit *)
(* counts at once while its job has not ended, or an intent of it stands;  *)
(* otherwise from the moment at which the key is voided for it.            *)
(*                                                                         *)
(* A request is executed by the store in one step; its reply travels, and  *)
(* may overtake others. Instants are numbers of one clock, which moves on  *)
(* when somebody notes the time.                                           *)
(*                                                                         *)
(* `Broken` takes one rule out. spec/check.py knows, for each, the         *)
(* invariant that must fall.                                               *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Procs,       \* processes
    Writers,     \* jobs that write the key, once an attempt
    Watchers,    \* jobs that read it: causal reads
    Readers,     \* reads outside jobs
    Patient,     \* those of them that allow for some age: bounded reads; the others are strict
    Bound,       \* how many instants a bounded reader allows
    MaxVersion, MaxTail, MaxClock, MaxFence, \* where a history ends
    Losses,      \* how often a lease may be lost
    None,        \* nothing there
    Features,    \* what may happen beside: see Has
    Broken       \* the rule that is taken out, or "nothing"

VARIABLES
    db,          \* the datastore's version
    covered,     \* ghost: the newest version that readers are promised
    store,       \* the partition: tail, kept, mark, epoch, entry, intents, token, counter, floor
    jobs,        \* job -> [state, fence, epoch]: its latest claim
    bodies,      \* attempts whose code may still act, in some process
    procs,       \* process -> [applied, epoch, confirmed, l1, served, raised]
    reads,       \* read -> where it stands
    net,         \* replies under way
    clock, past, \* the time, and `covered` at each instant
    copy,        \* what a replica holds, for a failover
    lost,        \* leases lost so far
    outside,     \* what another program committed: 0 nothing yet
    verdict      \* what was broken: {} for ever, or the specification is

vars == <<db, covered, store, jobs, bodies, procs, reads, net, clock, past, copy, lost, outside, verdict>>

Jobs == Writers \cup Watchers
Has(feature) == feature \in Features
Without(rule) == Broken = rule
Max(a, b) == IF a > b THEN a ELSE b

Idle == [state |-> "idle", proc |-> None, need |-> 0, least |-> 0, seen |-> 0, began |-> 0, value |-> 0, token |-> None,
         level |-> "none", floor |-> 0]

Done(value) == [Idle EXCEPT !.state = "done", !.value = value]

Init ==
    /\ db = 0 /\ covered = 0
    /\ store = [tail |-> 0, kept |-> 0, mark |-> 0, epoch |-> 0, entry |-> None, intents |-> {}, token |-> None,
                counter |-> 0, floor |-> 0]
    /\ jobs = [j \in Jobs |-> [state |-> "ready", fence |-> 0, epoch |-> 0]]
    /\ bodies = {}
    /\ procs = [p \in Procs |-> [applied |-> 0, epoch |-> 0, confirmed |-> 0, l1 |-> None, served |-> 0, raised |-> 0]]
    /\ reads = [r \in Readers \cup Watchers |-> Idle]
    /\ net = {} /\ clock = 0 /\ past = [t \in 0..MaxClock |-> 0]
    /\ copy = None /\ lost = 0 /\ outside = 0 /\ verdict = {}

-----------------------------------------------------------------------------
(* The store. Each operator is one step of a script, from a store to a store. *)

Untouched(s, position) == s.mark <= position
Valid(s) == s.entry # None /\ Untouched(s, s.entry.at)

Unclean(intents) == {[i EXCEPT !.clean = FALSE, !.pre = None] : i \in intents}

Append(s) == IF Without("events") THEN s ELSE [s EXCEPT !.tail = s.tail + 1]

\* To void the key: one event; its entry and token go; its intents stay, unclean (P7, P8).
Void(s) ==
    [Append(s) EXCEPT
        !.entry = None,
        !.token = IF Without("void leaves the token") THEN s.token ELSE None,
        !.intents = IF Without("an invalidation removes intents") THEN {}
                    ELSE IF Without("touched intents stay clean") THEN s.intents ELSE Unclean(s.intents)]

\* An invalidation by tag is a position, not a deletion (P12).
VoidTag(s) == [s EXCEPT !.tail = s.tail + 1, !.mark = s.tail + 1]

Own(s, j, f) == {i \in s.intents : i.job = j /\ i.fence = f}

Plant(s, j, f) ==
    LET others == {i \in s.intents : i.job # j}
        alone == others = {}
    IN IF Without("intents")
       THEN Void(s)
       ELSE [Void(s) EXCEPT !.intents =
                (IF Without("one intent a key") THEN {} ELSE
                 IF Without("touched intents stay clean") THEN others ELSE Unclean(others))
                \cup {[job |-> j, fence |-> f, at |-> s.tail + 1, clean |-> alone /\ s.intents = others,
                       pre |-> IF alone /\ s.intents = others /\ Valid(s) THEN s.entry ELSE None]}]

\* Remove the attempt's own intent; put a value over it if it stood alone and clean (P7, P8, P9).
Resolve(s, j, f, put) ==
    LET own == Own(s, j, f)
        left == [s EXCEPT !.intents = IF Without("a settle removes every intent") THEN {} ELSE s.intents \ own]
    IN IF own = {} THEN Void(s)
       ELSE IF put = None \/ own = {} THEN left
       ELSE IF \/ left.intents = {} /\ (\A i \in own : i.clean /\ Untouched(s, i.at))
               \/ Without("every put is stored")
            THEN [left EXCEPT !.entry = [value |-> put, at |-> s.tail], !.token = None]
            ELSE Void(left)

\* What a settle's put was stored at: 0 when it was not.
StoredAt(before, after) ==
    IF after.entry # None /\ after.entry # before.entry THEN after.entry.at ELSE 0

Fill(s, value, token) ==
    IF /\ \/ s.token = token
          \/ Without("fills without a lease")
       /\ s.intents = {}
       /\ \/ token = None
          \/ Untouched(s, token.at)
          \/ Without("a fill ignores tags")
    THEN [s EXCEPT !.entry = [value |-> value, at |-> s.tail], !.token = None]
    ELSE s

\* Fences and tokens come from one counter, under the epoch (P15).
NextOf(s) == IF Without("the counter ignores the epoch") THEN s.counter + 1 ELSE s.epoch * 100 + s.counter + 1

Grant(s) == IF Without("tokens are reused") THEN [id |-> 1, at |-> 0] ELSE [id |-> NextOf(s), at |-> s.tail]

-----------------------------------------------------------------------------
(* Time, replies, and the one rule for local reads. *)

Tick == clock < MaxClock /\ clock' = clock + 1
Remember == past' = [past EXCEPT ![clock'] = covered']
\* The instant of an answer counts only where somebody may be content with less than now (P4).
Moment == IF Patient = {} THEN UNCHANGED clock ELSE Tick
Noted == IF Patient = {} THEN UNCHANGED past ELSE Remember

\* What a reply tells of the log: how far it reaches, and whether it reaches back to where the process was.
News(s, p, sent) ==
    [proc |-> p, tail |-> s.tail, epoch |-> IF Without("epochs") THEN 0 ELSE s.epoch, sent |-> sent,
     cut |-> procs[p].applied < s.kept]

\* The process applies a reply's news: entries go, then `applied`, then `confirmed` grows (P2, P6, P20).
Heard(state, n) ==
    LET anew == n.epoch > state.epoch
        told == anew \/ ~(Without("a trimmed log is not noticed") /\ n.cut)
        gone == state.l1 # None /\ told /\ (anew \/ state.l1.at < n.tail)
    IN IF n.epoch < state.epoch \/ (Without("claims carry no news") /\ n.kind = "turn") THEN state
       ELSE [state EXCEPT !.epoch = n.epoch,
                          !.l1 = IF gone THEN None ELSE state.l1,
                          !.applied = IF anew THEN n.tail ELSE Max(state.applied, n.tail),
                          !.confirmed = Max(state.confirmed, IF Without("confirmed at receipt") THEN clock ELSE n.sent)]

\* A value true at `at`, asked for at `sent`, enters the local tier unless an event speaks against it (P3, P4).
Keep(state, value, at, sent, epoch) ==
    IF /\ epoch = state.epoch
       /\ \/ at >= state.applied
          \/ Without("late replies enter the local tier")
       /\ \/ state.l1 = None
          \/ at > state.l1.at
          \/ at = state.l1.at /\ sent > state.l1.sent
    THEN [state EXCEPT !.l1 = [value |-> value, at |-> at, sent |-> sent]]
    ELSE state

\* An answer is given out: later readers here may not be told of an older one (P4). Promised of what is covered.
Answered(state, value, since) ==
    [state EXCEPT !.served = IF value > covered THEN @ ELSE Max(@, value),
                  !.raised = IF Patient = {} \/ Without("an answer raises nothing") THEN state.raised ELSE Max(state.raised, since)]

Judge(r, value) ==
    verdict' = verdict
        \cup (IF value < reads[r].least THEN {"stale"} ELSE {})
        \cup (IF value < reads[r].seen THEN {"backwards"} ELSE {})

Send(reply) == net' = net \cup {reply}

-----------------------------------------------------------------------------
(* Jobs: the turn settles an attempt (or none), then claims a job (or none), in one step. *)

Hold(j, f) == jobs[j].state = "running" /\ jobs[j].fence = f

\* The store knows of the attempt (a failover may have forgotten it), and its job has not ended or its intents stand.
Open(b) == /\ jobs[b.job].epoch = b.epoch /\ jobs[b.job].fence >= b.fence
           /\ \/ jobs[b.job].state \in {"ready", "running"} /\ ~Has("undeclared")
              \/ \E i \in store.intents : i.job = b.job

Turn(p) ==
    /\ Tick
    /\ store.tail + 2 <= MaxTail
    /\ \E a \in {b \in bodies : b.proc = p /\ b.ended} \cup {None} :
       \E j \in {k \in Jobs : jobs[k].state = "ready"} \cup {None} :
       \E sent \in {clock'} \cup (IF Has("slow requests") THEN {0} ELSE {}) : \* it was under way for so long
       \E puts \in (IF a # None /\ a.job \in Writers /\ a.wrote > 0 /\ ~Has("undeclared") THEN BOOLEAN ELSE {FALSE}) :
        /\ a # None \/ j # None
        /\ LET held == a # None /\ (Hold(a.job, a.fence) \/ (Without("fencing") /\ jobs[a.job].state = "running"))
               put == IF puts THEN a.wrote ELSE None
               unsure == a # None /\ a.late   \* stopped from outside: its commit may still be under way
               settled ==
                   IF a = None THEN store
                   ELSE IF a.job \notin Writers \/ Without("what a body invalidates is voided at once only") THEN store
                   ELSE IF ~held THEN (IF Without("a refused settle is silent") THEN store ELSE Void(store))
                   ELSE IF unsure /\ ~Without("an unsure settle removes its intent")
                        THEN [store EXCEPT !.intents = Unclean(store.intents)]
                   ELSE [Resolve(store, a.job, a.fence, put) EXCEPT
                            !.floor = IF Has("lag") THEN Max(@, a.wrote) ELSE @]
               fence == NextOf(settled)
               claimed == IF j \in Writers /\ ~Has("undeclared") THEN Plant([settled EXCEPT !.counter = @ + 1], j, fence)
                          ELSE IF j # None THEN [settled EXCEPT !.counter = @ + 1] ELSE settled
               at == IF put = None THEN 0
                     ELSE IF Without("a put's position is the reply's tail") /\ StoredAt(store, settled) > 0
                     THEN claimed.tail ELSE StoredAt(store, settled)
               pre == IF j \in Writers THEN {i.pre : i \in Own(claimed, j, fence)} \ {None} ELSE {}
           IN /\ j # None => claimed.counter <= MaxFence
              /\ store' = claimed
              /\ jobs' = [k \in Jobs |->
                    IF k = j THEN [state |-> "running", fence |-> fence, epoch |-> store.epoch]
                    ELSE IF a # None /\ k = a.job /\ held
                         THEN [jobs[k] EXCEPT !.state = IF unsure THEN "ready" ELSE "done"]
                    ELSE jobs[k]]
              /\ bodies' = IF a = None THEN bodies
                           ELSE IF unsure THEN (bodies \ {a}) \cup {[a EXCEPT !.ended = FALSE, !.stray = TRUE]}
                           ELSE bodies \ {a}
              /\ covered' = IF a # None /\ a.job \in Writers /\ ~unsure THEN Max(covered, a.wrote) ELSE covered
              /\ verdict' = verdict \cup (IF held /\ (~Hold(a.job, a.fence) \/ jobs[a.job].epoch # a.epoch) THEN {"rival"} ELSE {})
              /\ Send(News(claimed, p, sent) @@
                    [kind |-> "turn", job |-> j, fence |-> IF j = None THEN 0 ELSE fence,
                     value |-> IF at > 0 THEN put ELSE 0, at |-> at, pre |-> pre, least |-> covered',
                     told |-> IF held /\ ~unsure /\ a.job \in Writers THEN a.wrote ELSE 0])
    /\ UNCHANGED <<db, procs, reads, copy, lost, outside>>
    /\ Remember

TurnArrives(m) ==
    /\ m.kind = "turn" /\ Tick
    /\ net' = net \ {m}
    /\ LET heard == Heard(procs[m.proc], m)
           kept == IF m.at > 0 THEN Keep(heard, m.value, m.at, m.sent, m.epoch) ELSE heard
           raised == IF m.told = 0 \/ Patient = {} \/ Without("an end that is told raises nothing") THEN kept.raised ELSE clock'
       IN procs' = [procs EXCEPT ![m.proc] = [kept EXCEPT !.served = Max(@, m.told), !.raised = raised]]
    /\ bodies' = IF m.job = None THEN bodies
                 ELSE bodies \cup {[job |-> m.job, fence |-> m.fence, epoch |-> m.epoch, proc |-> m.proc, wrote |-> 0,
                                    said |-> ~Has("undeclared"), ended |-> m.job \in Watchers, late |-> FALSE, stray |-> FALSE, pre |-> m.pre]}
    /\ reads' = IF m.job \in Watchers /\ reads[m.job].state = "idle"
                THEN [reads EXCEPT ![m.job] =
                        [Idle EXCEPT !.state = "asks", !.proc = m.proc, !.level = "causal",
                                     !.need = IF Without("joins as of the send") THEN m.sent ELSE clock',
                                     !.least = m.least, !.seen = procs[m.proc].served]]
                ELSE reads
    /\ UNCHANGED <<db, covered, store, jobs, copy, lost, outside, verdict>>
    /\ Remember

\* The body's transaction commits, whether its lease still stands or not.
Commit(b) ==
    /\ b.job \in Writers /\ b.wrote = 0 /\ (~b.ended \/ b.stray) /\ db < MaxVersion
    /\ db' = db + 1
    /\ covered' = IF ~Has("lag") /\ Open(b) THEN db' ELSE covered
    /\ bodies' = (bodies \ {b}) \cup (IF b.stray THEN {} ELSE {[b EXCEPT !.wrote = db']})
    /\ UNCHANGED <<store, jobs, procs, reads, net, clock, past, copy, lost, outside, verdict>>

\* A body invalidates a key that its job did not declare, before its commit or after it: an intent is planted now, and
\* resolved by the settle (P14).
Declares(b) ==
    /\ ~b.said /\ ~b.ended /\ store.tail < MaxTail
    /\ store' = IF Without("what a body invalidates is voided at once only") THEN Void(store)
                ELSE IF Without("what a body invalidates is voided by its settle only") THEN store
                ELSE Plant(store, b.job, b.fence)
    /\ covered' = Max(covered, b.wrote)
    /\ bodies' = (bodies \ {b}) \cup {[b EXCEPT !.said = TRUE]}
    /\ UNCHANGED <<db, jobs, procs, reads, net, clock, past, copy, lost, outside, verdict>>

\* A body that has its pre-image as a parameter saw it before it wrote; read again inside, it would be the past (P10).
ReadsInside(b) ==
    /\ Without("the pre-image is served inside the body")
    /\ b.wrote > 0 /\ b.pre # {} /\ ~b.ended
    /\ verdict' = verdict \cup {"own write unseen" : e \in {e \in b.pre : e.value < b.wrote}}
    /\ UNCHANGED <<db, covered, store, jobs, bodies, procs, reads, net, clock, past, copy, lost, outside>>

\* A body's promise at its start: the pre-image is no older than what was promised at its claim.
End(b) ==
    /\ ~b.ended /\ ~b.stray /\ b.said
    /\ \E late \in (IF Has("stops") /\ b.wrote = 0 /\ b.job \in Writers THEN {TRUE} ELSE {FALSE}) \cup {FALSE} :
        /\ late \/ b.wrote > 0
        /\ bodies' = (bodies \ {b}) \cup {[b EXCEPT !.ended = TRUE, !.late = late]}
    /\ UNCHANGED <<db, covered, store, jobs, procs, reads, net, clock, past, copy, lost, outside, verdict>>

\* Its lease runs out: the intents pass to the next attempt, or stand a grace after the last one (P18).
Lose(j) ==
    /\ jobs[j].state = "running" /\ lost < Losses
    /\ lost' = lost + 1
    /\ \E last \in BOOLEAN :
        jobs' = [jobs EXCEPT ![j].state = IF last THEN "failed" ELSE "ready"]
    /\ store' = [store EXCEPT !.intents =
                    IF Without("a lost attempt's intents go") THEN {i \in store.intents : i.job # j}
                    ELSE Unclean({i \in store.intents : i.job = j}) \cup {i \in store.intents : i.job # j}]
    /\ UNCHANGED <<db, covered, bodies, procs, reads, net, clock, past, copy, outside, verdict>>

\* The grace is over: what the zombie committed until now is voided for; what it commits later, it must void itself.
Fall(j) ==
    /\ jobs[j].state = "failed" /\ store.tail < MaxTail
    /\ \E i \in store.intents : i.job = j
    /\ store' = Void([store EXCEPT !.intents = {i \in store.intents : i.job # j}])
    /\ UNCHANGED <<db, covered, jobs, bodies, procs, reads, net, clock, past, copy, lost, outside, verdict>>

-----------------------------------------------------------------------------
(* Reads. *)

Start(r, p) ==
    /\ reads[r].state = "idle" /\ r \in Readers /\ Tick
    /\ LET need == IF r \notin Patient THEN clock'
                   ELSE Max(procs[p].raised, IF clock' > Bound THEN clock' - Bound ELSE 0)
       IN reads' = [reads EXCEPT ![r] = [Idle EXCEPT !.state = "asks", !.proc = p, !.level = IF r \in Patient THEN "bounded" ELSE "strict", !.need = need,
                        !.least = IF need = clock' THEN covered ELSE past[need], !.seen = procs[p].served]]
    /\ UNCHANGED <<db, covered, store, jobs, bodies, procs, net, copy, lost, outside, verdict>>
    /\ Remember

Fresh(r, state) ==
    \/ reads[r].level = "causal"       \* its claim's reply has moved `applied`
    \/ state.confirmed >= reads[r].need
    \/ state.l1.sent >= reads[r].need
    \/ Without("no reader asks for the tail")

FromL1(r) ==
    /\ reads[r].state = "asks"
    /\ Moment
    /\ LET p == reads[r].proc IN
        /\ procs[p].l1 # None /\ Fresh(r, procs[p])
        /\ Judge(r, procs[p].l1.value)
        /\ procs' = [procs EXCEPT ![p] = Answered(@, procs[p].l1.value, clock')]
        /\ reads' = [reads EXCEPT ![r] = Done(procs[p].l1.value)]
    /\ UNCHANGED <<db, covered, store, jobs, bodies, net, copy, lost, outside>>
    /\ Noted

\* A look at the log's tail.
Check(p) ==
    /\ \E r \in Readers : reads[r].state = "asks" /\ reads[r].proc = p /\ procs[p].l1 # None /\ ~Fresh(r, procs[p])
    /\ \A m \in net : m.proc = p => m.kind # "check"
    /\ Tick
    /\ Send(News(store, p, clock') @@ [kind |-> "check"])
    /\ UNCHANGED <<db, covered, store, jobs, bodies, procs, reads, copy, lost, outside, verdict>>
    /\ Remember

CheckArrives(m) ==
    /\ m.kind = "check"
    /\ net' = net \ {m}
    /\ procs' = [procs EXCEPT ![m.proc] = Heard(@, m)]
    /\ UNCHANGED <<db, covered, store, jobs, bodies, reads, clock, past, copy, lost, outside, verdict>>

\* A look at the shared tier; whoever misses while no intent stands gets a token.
Look(r) ==
    /\ reads[r].state = "asks" /\ Tick
    /\ LET p == reads[r].proc
           hit == Valid(store) /\ store.intents = {}
           free == ~hit /\ store.intents = {} /\ (store.token = None \/ Without("tokens are reused"))
           token == IF free THEN Grant(store) ELSE None
       IN /\ store' = IF token # None THEN [store EXCEPT !.token = token, !.counter = @ + 1] ELSE store
          /\ store'.counter <= MaxFence
          /\ Send(News(store, p, clock') @@
                [kind |-> "look", hit |-> hit, value |-> IF hit THEN store.entry.value ELSE 0, token |-> token,
                 read |-> r, floor |-> store.floor])
    /\ reads' = [reads EXCEPT ![r].state = "looks", ![r].began = clock']
    /\ UNCHANGED <<db, covered, jobs, bodies, procs, copy, lost, outside, verdict>>
    /\ Remember

LookArrives(m) ==
    /\ m.kind = "look"
    /\ net' = net \ {m}
    /\ Moment
    /\ LET p == m.proc
           heard == Heard(procs[p], m)
           kept == IF m.hit THEN Keep(heard, m.value, m.tail, m.sent, m.epoch) ELSE heard
       IN IF m.hit
          THEN /\ Judge(m.read, m.value)
               /\ procs' = [procs EXCEPT ![p] = Answered(kept, m.value, clock')]
               /\ reads' = [reads EXCEPT ![m.read] = Done(m.value)]
          ELSE /\ procs' = [procs EXCEPT ![p] = heard]
               /\ reads' = [reads EXCEPT ![m.read].state = "loads", ![m.read].token = m.token, ![m.read].floor = m.floor]
               /\ UNCHANGED verdict
    /\ UNCHANGED <<db, covered, store, jobs, bodies, copy, lost, outside>>
    /\ Noted

\* The loader runs: it sees one version of the datastore, an older one where the datastore itself is late (P13). Who
\* joins it must be content with a read that began with its look: the floor is known as of then.
Load(r) ==
    /\ reads[r].state = "loads"
    /\ \E value \in (IF Has("lag") THEN 0..db ELSE {db}) :
        /\ reads' = [reads EXCEPT ![r].state = "loaded", ![r].value = value]
    /\ UNCHANGED <<db, covered, store, jobs, bodies, procs, net, clock, past, copy, lost, outside, verdict>>

\* Another reader of the process has the same load or look under way: join it, if it began late enough.
Join(r, other) ==
    /\ r # other /\ reads[r].state = "asks" /\ reads[other].state \in {"looks", "loads", "loaded"}
    /\ reads[r].proc = reads[other].proc
    /\ \/ reads[other].began >= reads[r].need
       \/ Without("a reader joins any load")
    /\ reads' = [reads EXCEPT ![r].state = "joined", ![r].token = [joined |-> other]]
    /\ UNCHANGED <<db, covered, store, jobs, bodies, procs, net, clock, past, copy, lost, outside, verdict>>

\* With a floor known, a reader that must be fresh loads again instead of taking what is below it (P13).
Enough(r) == ~Has("lag") \/ reads[r].value >= reads[r].floor \/ Without("a load below the floor is served")

Fills(r) ==
    /\ reads[r].state = "loaded" /\ (reads[r].token # None \/ Without("fills without a lease")) /\ Enough(r)
    /\ Tick
    /\ LET s == Fill(store, reads[r].value, reads[r].token)
           kept == s # store \/ (s.entry # None /\ s.entry.value = reads[r].value /\ s.token # store.token)
       IN /\ store' = s
          /\ Send(News(s, reads[r].proc, clock') @@
                [kind |-> "fill", read |-> r, value |-> reads[r].value, kept |-> kept, began |-> reads[r].began])
    /\ reads' = [reads EXCEPT ![r].state = "filling"]
    /\ UNCHANGED <<db, covered, jobs, bodies, procs, copy, lost, outside, verdict>>
    /\ Remember

FillArrives(m) ==
    /\ m.kind = "fill"
    /\ net' = net \ {m}
    /\ Moment
    /\ LET heard == Heard(procs[m.proc], m)
           kept == IF m.kept \/ Without("a refused fill enters the local tier")
                   THEN Keep(heard, m.value, m.tail, m.sent, m.epoch) ELSE heard
       IN procs' = [procs EXCEPT ![m.proc] = Answered(kept, m.value, clock')]
    /\ Judge(m.read, m.value)
    /\ reads' = [reads EXCEPT ![m.read] = Done(m.value)]
    /\ UNCHANGED <<db, covered, store, jobs, bodies, copy, lost, outside>>
    /\ Noted

\* Without a token the value is returned and kept nowhere.
Returns(r) ==
    /\ reads[r].state = "loaded" /\ reads[r].token = None /\ Enough(r)
    /\ Moment
    /\ Judge(r, reads[r].value)
    /\ procs' = [procs EXCEPT ![reads[r].proc] = Answered(@, reads[r].value, clock')]
    /\ reads' = [reads EXCEPT ![r] = Done(reads[r].value)]
    /\ UNCHANGED <<db, covered, store, jobs, bodies, net, copy, lost, outside>>
    /\ Noted

ReturnsJoined(r) ==
    /\ reads[r].state = "joined"
    /\ LET other == reads[r].token.joined IN
        /\ reads[other].state = "done"
        /\ Judge(r, reads[other].value)
    /\ reads' = [reads EXCEPT ![r] = Done(reads[r].value)]
    /\ UNCHANGED <<db, covered, store, jobs, bodies, procs, net, clock, past, copy, lost, outside>>

LoadsAgain(r) ==
    /\ reads[r].state = "loaded" /\ ~Enough(r)
    /\ reads' = [reads EXCEPT ![r].state = "loads"]
    /\ UNCHANGED <<db, covered, store, jobs, bodies, procs, net, clock, past, copy, lost, outside, verdict>>

-----------------------------------------------------------------------------
(* What happens beside: another program's writes, a log cut short, a store that loses its memory. *)

WritesOutside ==
    /\ Has("outside") /\ outside = 0 /\ db < MaxVersion
    /\ db' = db + 1 /\ outside' = db'
    /\ UNCHANGED <<covered, store, jobs, bodies, procs, reads, net, clock, past, copy, lost, verdict>>

Invalidates ==
    /\ outside > covered /\ store.tail < MaxTail
    /\ \E byTag \in (IF Has("tags") THEN BOOLEAN ELSE {FALSE}) :
        store' = IF byTag THEN VoidTag(store) ELSE Void(store)
    /\ covered' = outside
    /\ UNCHANGED <<db, jobs, bodies, procs, reads, net, clock, past, copy, lost, outside, verdict>>

Trim ==
    /\ Has("trim") /\ store.kept < store.tail
    /\ store' = [store EXCEPT !.kept = store.tail]
    /\ UNCHANGED <<db, covered, jobs, bodies, procs, reads, net, clock, past, copy, lost, outside, verdict>>

\* The shared tier drops what it likes.
Evict ==
    /\ Has("evict") /\ store.entry # None
    /\ store' = [store EXCEPT !.entry = None]
    /\ UNCHANGED <<db, covered, jobs, bodies, procs, reads, net, clock, past, copy, lost, outside, verdict>>

Replicate ==
    /\ Has("failover") /\ copy = None
    /\ copy' = [store |-> store, jobs |-> jobs]
    /\ UNCHANGED <<db, covered, store, jobs, bodies, procs, reads, net, clock, past, lost, outside, verdict>>

\* The replica takes over: what came after the copy is gone, and whoever notices begins a new epoch (P20).
Failover ==
    /\ copy # None /\ copy # [gone |-> TRUE]
    /\ store' = IF Without("epochs") THEN copy.store
                ELSE [copy.store EXCEPT !.epoch = @ + 1, !.entry = None, !.token = None, !.intents = Unclean(@)]
    /\ jobs' = copy.jobs
    /\ copy' = [gone |-> TRUE]
    /\ UNCHANGED <<db, covered, bodies, procs, reads, net, clock, past, lost, outside, verdict>>

-----------------------------------------------------------------------------

Arrives == \E m \in net : TurnArrives(m) \/ CheckArrives(m) \/ LookArrives(m) \/ FillArrives(m)

Acts ==
    \/ \E p \in Procs : Turn(p) \/ Check(p)
    \/ \E b \in bodies : Commit(b) \/ Declares(b) \/ ReadsInside(b) \/ End(b)
    \/ \E j \in Writers : Lose(j) \/ Fall(j)
    \/ \E r \in Readers, p \in Procs : Start(r, p)
    \/ \E r \in Readers \cup Watchers :
        FromL1(r) \/ Look(r) \/ Load(r) \/ Fills(r) \/ Returns(r) \/ ReturnsJoined(r) \/ LoadsAgain(r)
    \/ \E r, other \in Readers \cup Watchers : Join(r, other)
    \/ WritesOutside \/ Invalidates \/ Trim \/ Evict \/ Replicate \/ Failover

\* Where replies are prompt, nothing else happens while one is under way: for rules that do not depend on it.
Next == Arrives \/ ((Has("prompt") => net = {}) /\ Acts)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Histories that differ only in when, not in what order, things were noted are one to the checker. *)

Instants ==
    {0} \cup {procs[p].confirmed : p \in Procs} \cup {procs[p].raised : p \in Procs}
    \cup {procs[p].l1.sent : p \in {q \in Procs : procs[q].l1 # None}}
    \cup {reads[r].need : r \in DOMAIN reads} \cup {reads[r].began : r \in DOMAIN reads}
    \cup {m.sent : m \in net} \cup {m.began : m \in {n \in net : n.kind = "fill"}}

Order ==
    LET used == Instants
        Rank(t) == Cardinality({u \in used : u < t})
    IN <<db, covered, store, jobs, bodies, copy, lost, outside, verdict,
         [p \in Procs |-> [procs[p] EXCEPT !.confirmed = Rank(@), !.raised = Rank(@),
                             !.l1 = IF @ = None THEN None ELSE [@ EXCEPT !.sent = Rank(@)]]],
         [r \in DOMAIN reads |-> [reads[r] EXCEPT !.need = Rank(@), !.began = Rank(@)]],
         {IF m.kind = "fill" THEN [m EXCEPT !.sent = Rank(@), !.began = Rank(@)] ELSE [m EXCEPT !.sent = Rank(@)] : m \in net},
         IF Patient = {} THEN <<>> ELSE <<clock, past>> >>

Symmetry == Permutations(Procs) \cup Permutations(Readers) \cup Permutations(Writers)

-----------------------------------------------------------------------------
(* The invariants, by the names of the promises. *)

\* G1, G2, G3, G7: no read returns less than what was promised at the instant since which it had to be fresh.
FreshReads == "stale" \notin verdict
\* G5, G8: no process sees the versions go backwards, nor less than what it was told of.
Monotonic == "backwards" \notin verdict
\* G4: only the attempt that holds a job can settle it.
Fenced == "rival" \notin verdict
\* P10: no body sees the value from before its own write.
OwnWrites == "own write unseen" \notin verdict
\* G2: while an intent stands nothing is stored there.
Reserved == store.intents # {} => store.entry = None
=============================================================================
