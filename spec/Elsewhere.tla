----------------------------- MODULE Elsewhere -----------------------------
(***************************************************************************)
(* Two partitions: a job is at home in one, the keys it writes and the job *)
(* that follows it are in the other. Nothing is atomic across the two: an  *)
(* outbox carries what home decided, at least once, in order or not.       *)
(*                                                                         *)
(* `declared` is a key that the job declares, so that an intent stands on  *)
(* it; `found` is one that it only invalidates when it ends. Both hold one *)
(* version number in the datastore, as in Coherence.                       *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets

CONSTANTS
    MaxFence, MaxVersion, MaxVoids,
    Parts,     \* what is looked at beside the writer: "reads" there, the "child" there
    Broken

VARIABLES
    db,        \* key -> the datastore's version
    covered,   \* key -> ghost: what readers are promised
    home,      \* the writer: [state, fence]; state: ready, running, done, failed
    outbox,    \* what home decided for the other partition
    done,      \* effects that were delivered at least once
    intents,   \* there, on `declared`: fences of the writer's attempts, with when they fall
    entry,     \* there, key -> value | 0
    token,     \* there, key -> the right to fill | 0
    counter,   \* of tokens there
    bodies,    \* the writer's attempts whose code may still act
    child,     \* the job that follows it: [state, waits]
    told,      \* at home: the child is registered at its parent
    loads,     \* reads under way: [key, least, value, token]
    voids, verdict

vars == <<db, covered, home, outbox, done, intents, entry, token, counter, bodies, child, told, loads, voids, verdict>>

Keys == {"declared", "found"}
Without(rule) == Broken = rule
Max(a, b) == IF a > b THEN a ELSE b
Zero == [k \in Keys |-> 0]

Init ==
    /\ db = Zero /\ covered = Zero
    /\ home = [state |-> "ready", fence |-> 0]
    /\ outbox = {} /\ done = {} /\ intents = {} /\ entry = Zero /\ token = Zero /\ counter = 0
    /\ bodies = {} /\ child = [state |-> "unborn"] /\ told = FALSE /\ loads = {}
    /\ voids = 0 /\ verdict = {}

-----------------------------------------------------------------------------
(* The writer. *)

Claim ==
    /\ home.state = "ready" /\ home.fence < MaxFence
    /\ home' = [state |-> "running", fence |-> home.fence + 1]
    /\ bodies' = bodies \cup {[fence |-> home.fence + 1, step |-> "claimed", wrote |-> Zero]}
    /\ UNCHANGED <<db, covered, outbox, done, intents, entry, token, counter, child, told, loads, voids, verdict>>

Become(b, step) == bodies' = (bodies \ {b}) \cup {[b EXCEPT !.step = step]}

\* Before its body starts its intents are planted there; not where a later attempt has its own (P17).
Plants(b) ==
    /\ b.step = "claimed"
    /\ IF \E i \in intents : i.fence > b.fence
       THEN bodies' = bodies \ {b} /\ UNCHANGED <<intents, entry, token, voids>>
       ELSE /\ Become(b, "runs")
            /\ intents' = {i \in intents : i.fence > b.fence} \cup {[fence |-> b.fence, falls |-> FALSE]}
            /\ entry' = [entry EXCEPT !["declared"] = 0]
            /\ token' = [token EXCEPT !["declared"] = 0]
            /\ UNCHANGED voids
    /\ UNCHANGED <<db, covered, home, outbox, done, counter, child, told, loads, verdict>>

Running(b) == home.state = "running" /\ home.fence = b.fence

Commits(b) ==
    /\ b.step = "runs" \/ (Without("a body starts before its intents stand") /\ b.step = "claimed")
    /\ \A k \in Keys : db[k] < MaxVersion
    /\ db' = [k \in Keys |-> db[k] + 1]
    /\ covered' = [covered EXCEPT !["declared"] = IF Running(b) \/ intents # {} THEN db["declared"] + 1 ELSE @]
    /\ bodies' = (bodies \ {b}) \cup {[b EXCEPT !.step = "wrote", !.wrote = db']}
    /\ UNCHANGED <<home, outbox, done, intents, entry, token, counter, child, told, loads, voids, verdict>>

\* What it invalidates there is told there first, under no lease: twice is once (P12, P17).
TellsFirst(b) ==
    /\ b.step = "wrote" /\ voids < MaxVoids
    /\ Become(b, "told")
    /\ voids' = voids + 1
    /\ IF Without("invalidations elsewhere come after the settle") THEN UNCHANGED <<entry, token>>
       ELSE entry' = [entry EXCEPT !["found"] = 0] /\ token' = [token EXCEPT !["found"] = 0]
    /\ UNCHANGED <<db, covered, home, outbox, done, intents, counter, child, told, loads, verdict>>

Post(effect) == outbox' = outbox \cup {effect}

Parted(state) == {[what |-> "parted", state |-> state, fence |-> 0, wrote |-> Zero]}

Settles(b) ==
    /\ b.step = "told"
    /\ bodies' = bodies \ {b}
    /\ \E retry \in (IF Running(b) THEN BOOLEAN ELSE {FALSE}) :
        IF Running(b)
        THEN /\ home' = [home EXCEPT !.state = IF retry THEN "ready" ELSE "done"]
             /\ outbox' = outbox \cup {[what |-> "resolve", state |-> "", fence |-> b.fence, wrote |-> Zero]}
                    \cup (IF Without("invalidations elsewhere come after the settle")
                          THEN {[what |-> "void", state |-> "", fence |-> b.fence, wrote |-> b.wrote]} ELSE {})
                    \cup (IF told /\ ~retry THEN Parted("done") ELSE {})
             /\ covered' = [k \in Keys |-> Max(covered[k], b.wrote[k])]
        ELSE /\ Post([what |-> IF Without("a refused settle is silent") THEN "nothing" ELSE "void", state |-> "", fence |-> b.fence,
                      wrote |-> b.wrote])
             /\ UNCHANGED <<home, covered>>
    /\ UNCHANGED <<db, done, intents, entry, token, counter, child, told, loads, voids, verdict>>

\* Its lease ran out. Home decides first; intents there stand until it has (P17, P18).
Lost ==
    /\ home.state = "running"
    /\ \E last \in BOOLEAN :
        /\ home' = [home EXCEPT !.state = IF last THEN "failed" ELSE "ready"]
        /\ IF last THEN Post([what |-> "stand", state |-> "", fence |-> home.fence, wrote |-> Zero]) ELSE UNCHANGED outbox
    /\ UNCHANGED <<db, covered, done, intents, entry, token, counter, bodies, child, told, loads, voids, verdict>>

\* A sweep there meets an intent that has stood for long, and asks its home what became of the attempt.
Sweeps ==
    /\ \E i \in intents :
        LET runs == home.state = "running" /\ home.fence = i.fence
            next == home.state = "ready" \/ (home.state = "running" /\ home.fence > i.fence)
        IN /\ ~i.falls
           /\ IF Without("a sweep does not ask home")
              THEN intents' = intents \ {i}
              ELSE ~runs /\ ~next /\ intents' = (intents \ {i}) \cup {[i EXCEPT !.falls = TRUE]}
    /\ UNCHANGED <<db, covered, home, outbox, done, entry, token, counter, bodies, child, told, loads, voids, verdict>>

Falls ==
    /\ \E i \in intents : i.falls /\ intents' = intents \ {i}
    /\ entry' = [entry EXCEPT !["declared"] = 0] /\ token' = [token EXCEPT !["declared"] = 0]
    /\ covered' = covered
    /\ UNCHANGED <<db, home, outbox, done, counter, bodies, child, told, loads, voids, verdict>>

-----------------------------------------------------------------------------
(* Deliveries: at least once, in any order. *)

Accept(e) ==
    /\ e \in outbox
    /\ CASE e.what = "resolve" ->
            LET own == {i \in intents : IF Without("a resolve removes any attempt's intent") THEN TRUE ELSE i.fence = e.fence}
            IN /\ intents' = intents \ own
               /\ IF own = {}
                  THEN entry' = [entry EXCEPT !["declared"] = 0] /\ token' = [token EXCEPT !["declared"] = 0]
                  ELSE UNCHANGED <<entry, token>>
               /\ UNCHANGED <<child, covered>>
         [] e.what \in {"void", "nothing"} ->
            /\ IF e.what = "void" THEN entry' = Zero /\ token' = Zero ELSE UNCHANGED <<entry, token>>
            /\ covered' = [k \in Keys |-> Max(covered[k], e.wrote[k])]
            /\ UNCHANGED <<intents, child>>
         [] e.what = "stand" ->
            /\ intents' = {IF i.fence <= e.fence THEN [i EXCEPT !.falls = TRUE] ELSE i : i \in intents}
            /\ UNCHANGED <<entry, token, child, covered>>
         [] e.what = "parted" ->
            /\ child' = IF child.state = "blocked" THEN [state |-> "ready"] ELSE child
            /\ UNCHANGED <<intents, entry, token, covered>>
         [] e.what = "register" ->
            UNCHANGED <<intents, entry, token, child, covered>>
    /\ done' = done \cup {e}
    /\ IF e.what = "register"
       THEN /\ told' = TRUE
            /\ outbox' = (outbox \ {e}) \cup
                (IF home.state = "done" /\ ~Without("registering at an ended parent is not answered") THEN Parted("done") ELSE {})
       ELSE /\ UNCHANGED told
            /\ \/ outbox' = outbox \ {e}
               \/ e \notin done /\ UNCHANGED outbox   \* the answer was lost: it will come again
    /\ UNCHANGED <<db, home, counter, bodies, loads, voids, verdict>>

-----------------------------------------------------------------------------
(* The job that follows, and reads there. *)

Register == [what |-> "register", state |-> "", fence |-> 0, wrote |-> Zero]

\* It is created blocked, then registered at its parent (P22).
Born ==
    /\ "child" \in Parts /\ child.state = "unborn"
    /\ IF Without("a dependent is registered before it is there")
       THEN \/ Register \notin done \cup outbox /\ Post(Register) /\ UNCHANGED child
            \/ Register \in done \cup outbox /\ child' = [state |-> "blocked"] /\ UNCHANGED outbox
       ELSE child' = [state |-> "blocked"] /\ Post(Register)
    /\ UNCHANGED <<db, covered, home, done, intents, entry, token, counter, bodies, told, loads, voids, verdict>>

\* It is claimed. What it may read is no older than what had settled by then (G1), which asks less than a read that must be
\* fresh at once: so reads need not be its own.
Follows ==
    /\ child.state = "ready"
    /\ child' = [state |-> "running"]
    /\ UNCHANGED <<db, covered, home, outbox, done, intents, entry, token, counter, bodies, told, loads, voids, verdict>>

Reads(k) ==
    /\ "reads" \in Parts /\ Cardinality(loads) < 2
    /\ LET least == covered[k]
           hidden == k = "declared" /\ intents # {}
       IN IF entry[k] > 0 /\ ~hidden
          THEN /\ verdict' = IF entry[k] - 1 < least THEN verdict \cup {"stale"} ELSE verdict
               /\ UNCHANGED <<token, counter, loads>>
          ELSE /\ token' = IF hidden THEN token ELSE [token EXCEPT ![k] = counter + 1]
               /\ counter' = counter + 1
               /\ loads' = loads \cup {[key |-> k, value |-> db[k], token |-> IF hidden THEN 0 ELSE counter + 1]}
               /\ verdict' = IF db[k] < least THEN verdict \cup {"stale"} ELSE verdict
    /\ counter < 3
    /\ UNCHANGED <<db, covered, home, outbox, done, intents, entry, bodies, child, told, voids>>

Fills(l) ==
    /\ loads' = loads \ {l}
    /\ IF l.token > 0 /\ token[l.key] = l.token /\ (l.key = "declared" => intents = {})
       THEN entry' = [entry EXCEPT ![l.key] = l.value + 1] /\ token' = [token EXCEPT ![l.key] = 0]
       ELSE UNCHANGED <<entry, token>>
    /\ UNCHANGED <<db, covered, home, outbox, done, intents, counter, bodies, child, told, voids, verdict>>

Next ==
    \/ Claim \/ Lost \/ Sweeps \/ Falls \/ Born \/ Follows
    \/ \E b \in bodies : Plants(b) \/ Commits(b) \/ TellsFirst(b) \/ Settles(b)
    \/ \E e \in outbox : Accept(e)
    \/ \E k \in Keys : Reads(k)
    \/ \E l \in loads : Fills(l)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* G1, G2 across partitions.
FreshReads == "stale" \notin verdict
\* G6: once its parent is done and nothing is under way, nobody waits for it any more.
NobodyWaits == (home.state = "done" /\ outbox = {} /\ child.state = "blocked") => FALSE
=============================================================================
