------------------------------- MODULE Lines -------------------------------
(***************************************************************************)
(* One partition, one line, several processes: who may run, who holds the  *)
(* line, and what a message that was lost or late leaves behind.           *)
(*                                                                         *)
(* A process numbers its turns. It takes one again under its number when   *)
(* no reply came, or gives it up; its heartbeat says up to which turn it   *)
(* knows, and what it holds (P16).                                         *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Procs, Jobs,
    Slow,        \* jobs of a queue that can be paused
    MaxTurn,     \* turns a process takes
    MaxFence,
    Accidents,   \* messages lost, leases lost, jobs cancelled: how many in all
    None,
    Broken

VARIABLES
    jobs,        \* job -> [state, fence, owner, turn]
    line,        \* [holder, head, members]
    fences,      \* given out so far
    procs,       \* process -> [turn, known, held]: sent, received or given up, what it runs
    acked,       \* process -> turns that the store has forgotten and does nothing for
    saved,       \* what the store answered to turns it has not forgotten
    requests, replies,
    paused, accidents,
    ended,       \* attempts that were settled: [job, fence]
    verdict

vars == <<jobs, line, fences, procs, acked, saved, requests, replies, paused, accidents, ended, verdict>>

Without(rule) == Broken = rule
Range(s) == {s[i] : i \in 1..Len(s)}
Drop(s, j) == SelectSeq(s, LAMBDA x : x # j)

Init ==
    /\ jobs = [j \in Jobs |-> [state |-> "new", fence |-> 0, owner |-> None, turn |-> 0]]
    /\ line = [holder |-> None, head |-> None, members |-> <<>>]
    /\ fences = 0
    /\ procs = [p \in Procs |-> [turn |-> 0, known |-> 0, held |-> {}]]
    /\ acked = [p \in Procs |-> 0]
    /\ saved = {} /\ requests = {} /\ replies = {} /\ paused = FALSE /\ accidents = 0 /\ ended = {} /\ verdict = {}

-----------------------------------------------------------------------------
(* The line. `ready` is the head's place, not a possession: it may be given to another (P21). *)

Servable(j, stopped) == ~(stopped /\ j \in Slow)

First(members, stopped) ==
    IF members = <<>> THEN None
    ELSE LET good == SelectSeq(members, LAMBDA j : Servable(j, stopped))
         IN IF good = <<>> \/ Without("a paused head keeps its place") THEN members[1] ELSE good[1]

\* Who is head now; the others that wait are held.
Arranged(l, stopped) ==
    [l EXCEPT !.head = IF l.holder # None /\ ~Without("the next is promoted while one runs") THEN None
                       ELSE First(l.members, stopped)]

Placed(states, l) ==
    [j \in Jobs |-> IF j \in Range(l.members)
                    THEN [states[j] EXCEPT !.state = IF j = l.head THEN "ready" ELSE "held"]
                    ELSE states[j]]

Leave(l, j, stopped) ==
    LET left == [l EXCEPT !.holder = IF @ = j THEN None ELSE @, !.members = Drop(@, j), !.head = IF @ = j THEN None ELSE @]
    IN IF Without("an end promotes nobody") THEN left ELSE Arranged(left, stopped)

Join(l, j, stopped) == Arranged([l EXCEPT !.members = Append(@, j)], stopped)

Set(states, l) == line' = l /\ jobs' = Placed(states, l)

Enqueue(j) ==
    /\ jobs[j].state = "new"
    /\ Set(jobs, Join(line, j, paused))
    /\ UNCHANGED <<fences, procs, acked, saved, requests, replies, paused, accidents, ended, verdict>>

Pause ==
    /\ paused' = ~paused /\ accidents < Accidents /\ accidents' = accidents + 1
    /\ Set(jobs, Arranged(line, paused'))
    /\ UNCHANGED <<fences, procs, acked, saved, requests, replies, ended, verdict>>

Cancel(j) ==
    /\ jobs[j].state \in {"ready", "held"} /\ accidents < Accidents /\ accidents' = accidents + 1
    /\ Set([jobs EXCEPT ![j].state = "cancelled"], Leave(line, j, paused))
    /\ UNCHANGED <<fences, procs, acked, saved, requests, replies, paused, ended, verdict>>

\* A back-off is over.
Due(j) ==
    /\ jobs[j].state = "scheduled"
    /\ Set(jobs, Join(line, j, paused))
    /\ UNCHANGED <<fences, procs, acked, saved, requests, replies, paused, accidents, ended, verdict>>

-----------------------------------------------------------------------------
(* Turns. *)

Sends(p) ==
    /\ procs[p].turn < MaxTurn /\ procs[p].known = procs[p].turn
    /\ \E a \in procs[p].held \cup {None} :
        /\ requests' = requests \cup {[proc |-> p, turn |-> procs[p].turn + 1, acked |-> procs[p].known, settles |-> a]}
        /\ procs' = [procs EXCEPT ![p].turn = @ + 1, ![p].held = @ \ {a}]
    /\ UNCHANGED <<jobs, line, fences, acked, saved, replies, paused, accidents, ended, verdict>>

\* No reply came: the same turn again, or it is given up.
SendsAgain(p) ==
    /\ procs[p].known < procs[p].turn /\ accidents < Accidents
    /\ ~\E m \in requests : m.proc = p /\ m.turn = procs[p].turn
    /\ \E m \in saved \cup replies \cup {[proc |-> p, turn |-> procs[p].turn, settles |-> None]} :
        /\ m.proc = p /\ m.turn = procs[p].turn
        /\ requests' = requests \cup {[proc |-> p, turn |-> m.turn, acked |-> procs[p].known, settles |-> m.settles]}
    /\ accidents' = accidents + 1
    /\ UNCHANGED <<jobs, line, fences, procs, acked, saved, replies, paused, ended, verdict>>

GivesUp(p) ==
    /\ procs[p].known < procs[p].turn /\ accidents < Accidents /\ accidents' = accidents + 1
    /\ procs' = [procs EXCEPT ![p].known = procs[p].turn]
    /\ UNCHANGED <<jobs, line, fences, acked, saved, requests, replies, paused, ended, verdict>>

Holds(p, a) == jobs[a.job].state = "running" /\ jobs[a.job].owner = p /\ jobs[a.job].fence = a.fence

\* The store carries a turn out: it settles, then it claims the head of the line.
CarriesOut(m) ==
    LET p == m.proc
        forgotten == [acked EXCEPT ![p] = IF m.acked > @ THEN m.acked ELSE @]
        before == {s \in saved : s.proc = p /\ s.turn = m.turn}
        late == m.turn <= acked[p]
        again == before # {} /\ ~Without("a turn taken again is carried out again")
    IN  /\ requests' = requests \ {m}
        /\ acked' = forgotten
        /\ IF late THEN UNCHANGED <<jobs, line, fences, saved, replies, ended, verdict>>
           ELSE IF again
           THEN replies' = replies \cup before /\ UNCHANGED <<jobs, line, fences, saved, ended, verdict>>
           ELSE LET good == m.settles # None /\ (Holds(p, m.settles) \/ (Without("a settle does not match its fence")
                                                                          /\ jobs[m.settles.job].state = "running"))
                IN \E retry \in (IF good THEN BOOLEAN ELSE {FALSE}) :
                   LET j == IF good THEN m.settles.job ELSE None
                       keeps == retry /\ Without("a retry keeps the line")
                       mid == IF ~good THEN line ELSE IF keeps THEN line ELSE Leave(line, j, paused)
                       states == IF good THEN [jobs EXCEPT ![j].state = IF retry THEN "scheduled" ELSE "succeeded", ![j].owner = None]
                                 ELSE jobs
                       claims == mid.head # None /\ Servable(mid.head, paused) /\ fences < MaxFence
                       h == mid.head
                       f == fences + 1
                       after == IF claims THEN [holder |-> h, head |-> None, members |-> Drop(mid.members, h)] ELSE mid
                       result == [proc |-> p, turn |-> m.turn, settles |-> m.settles, good |-> good,
                                  claim |-> IF claims THEN [job |-> h, fence |-> f] ELSE None]
                   IN /\ line' = after
                      /\ jobs' = Placed(IF claims THEN [states EXCEPT ![h] = [state |-> "running", fence |-> f, owner |-> p, turn |-> m.turn]]
                                        ELSE states, after)
                      /\ fences' = IF claims THEN f ELSE fences
                      /\ saved' = {s \in saved : s.proc # p \/ s.turn > forgotten[p]} \cup {result}
                      /\ replies' = replies \cup {result}
                      /\ ended' = IF good THEN ended \cup {m.settles} ELSE ended
                      /\ verdict' = verdict \cup (IF good /\ ~Holds(p, m.settles) THEN {"rival"} ELSE {})
                                            \cup (IF good /\ m.settles \in ended THEN {"twice"} ELSE {})
        /\ UNCHANGED <<procs, paused, accidents>>

Arrives(r) ==
    /\ replies' = replies \ {r}
    /\ IF procs[r.proc].known >= r.turn THEN UNCHANGED <<procs, verdict>>   \* it was given up, or came before
       ELSE /\ procs' = [procs EXCEPT ![r.proc].known = r.turn,
                                      ![r.proc].held = IF r.claim = None THEN @ ELSE @ \cup {r.claim}]
            /\ verdict' = IF r.settles # None /\ ~r.good /\ r.settles \in ended THEN verdict \cup {"told wrong"} ELSE verdict
    /\ UNCHANGED <<jobs, line, fences, acked, saved, requests, paused, accidents, ended>>

Vanishes ==
    /\ accidents < Accidents /\ accidents' = accidents + 1
    /\ \/ \E r \in replies : replies' = replies \ {r} /\ UNCHANGED requests
       \/ \E m \in requests : requests' = requests \ {m} /\ UNCHANGED replies
    /\ UNCHANGED <<jobs, line, fences, procs, acked, saved, paused, ended, verdict>>

-----------------------------------------------------------------------------
(* Leases. *)

Back(states, l, j) == Set([states EXCEPT ![j].owner = None], Join(Leave(l, j, paused), j, paused))

\* It names what it holds; what turns it knows of have claimed beside that was in a reply it never had (P16).
Beats(p) ==
    /\ \E j \in Jobs :
        LET ghost == jobs[j].state = "running" /\ jobs[j].owner = p /\ jobs[j].turn <= procs[p].known
                     /\ [job |-> j, fence |-> jobs[j].fence] \notin procs[p].held
                     /\ ~\E m \in requests : m.proc = p /\ m.settles = [job |-> j, fence |-> jobs[j].fence]
        IN /\ ghost
           /\ IF Without("a heartbeat renews everything")
              THEN UNCHANGED <<jobs, line>> /\ verdict' = IF requests = {} /\ replies = {} THEN verdict \cup {"ghost"} ELSE verdict
              ELSE Back(jobs, line, j) /\ UNCHANGED verdict
    /\ UNCHANGED <<fences, procs, acked, saved, requests, replies, paused, accidents, ended>>

LosesLease(j) ==
    /\ jobs[j].state = "running" /\ accidents < Accidents /\ accidents' = accidents + 1
    /\ Back(jobs, line, j)
    /\ UNCHANGED <<fences, procs, acked, saved, requests, replies, paused, ended, verdict>>

Next ==
    \/ \E j \in Jobs : Enqueue(j) \/ Cancel(j) \/ Due(j) \/ LosesLease(j)
    \/ \E p \in Procs : Sends(p) \/ SendsAgain(p) \/ GivesUp(p) \/ Beats(p)
    \/ \E m \in requests : CarriesOut(m)
    \/ \E r \in replies : Arrives(r)
    \/ Pause \/ Vanishes

Spec == Init /\ [][Next]_vars
Symmetry == Permutations(Procs)

-----------------------------------------------------------------------------
\* P21: of a line at most one job runs.
OneAtATime == Cardinality({j \in Jobs : jobs[j].state = "running"}) <= 1
\* P21: when nobody holds the line, whoever may run is not kept waiting.
NobodyIsBlocked ==
    line.holder = None => \/ \A j \in Range(line.members) : ~Servable(j, paused)
                          \/ line.head # None /\ Servable(line.head, paused) /\ jobs[line.head].state = "ready"
\* P21: a line is held by an attempt that runs.
HeldByOne == line.holder # None => jobs[line.holder].state = "running"
\* G4, G6: an attempt is settled at most once, by itself.
Fenced == verdict \cap {"rival", "twice"} = {}
\* P16: whoever settled is not told that it lost its lease.
ToldRight == "told wrong" \notin verdict
\* G6, P16: nothing runs for ever in the name of a process that has never heard of it.
NoGhost == "ghost" \notin verdict
=============================================================================
