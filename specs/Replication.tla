----------------------------- MODULE Replication -----------------------------
(*
One partition of Penstock: brokers that copy a log by Fetch, and a metadata store that decides by compare-and-swap who
leads, in which epoch, and who is in sync. README.md says what is left out, and what each removed rule shows.

What keeps the number of states small without hiding behaviour:
- A compare-and-swap on a revision that has passed can only fail. So revisions are not counted: a leader's view is
  `fresh` or not, and changes under way (`adding`) vanish with the first change of the partition's state.
- Whom the controller believes dead is not modelled: it may drop any member, and elect any that may lead, at any time.
  That is more than it does.
- A follower has one fetch under way, so a prompt fetch is one step; its answer may be lost. What is under way when the
  follower turns away (a new epoch, a crash) stays in `net`, and may reach the old leader at any later time. Messages
  that their receivers would refuse are removed at once.
- A broker goes down and comes back in one step: one that is down is one that does nothing.
*)
EXTENDS Naturals, Integers, Sequences, FiniteSets, TLC

CONSTANTS
  Replicas,
  None,
  MinIsr,
  MaxEpoch,     \* leader epochs, the first one included
  MaxLog,       \* entries in a log
  MaxCrashes,   \* kills and power cuts, wiped disks included
  MaxWipes,     \* of these, how many lose the disk
  MaxStops,     \* clean stops
  MaxAdding,    \* expansions of the ISR under way at once
  Drops,        \* TRUE: members leave the ISR at any time; FALSE: by an unclean start only
  Commit,       \* TRUE: flush=commit, an end counts when it is synced; FALSE: flush=os, a crash may lose anything
  Removed       \* names of the rules that are switched off; {} is the design

Rules == {"R1", "R2", "fence", "late-fetch", "R3", "R4-start", "R4-hw", "diverging", "pending", "shrink-first",
          "min-isr", "unclean", "unclean-elr", "incarnation", "admission", "admit-order", "mark", "sync", "last-all",
          "last-enough"}

ASSUME Removed \subseteq Rules
ASSUME MinIsr \in 1..Cardinality(Replicas)

On(rule) == rule \notin Removed
Symmetry == Permutations(Replicas)

VARIABLES
  st,        \* partitions/...: leader, epoch, isr, elr, last
  adding,    \* members the leader's compare-and-swaps under way would add, each to the ISR as it stands
  adm,       \* admitted/{id} has the broker's present incarnation
  clean,     \* what the broker registered at its last start
  view,      \* a broker's own, perhaps old, view: epoch, leader; a leader's: isr, and whether it is the latest revision
  log,       \* a sequence of epochs; an entry is its offset and its epoch
  synced,    \* length of what surely survives a crash; 0 with flush=os
  hw,        \* high watermark
  ends,      \* a leader's knowledge of the others' ends in its epoch (-1: none), and how many incarnations ago that was
  pend,      \* members a leader asked to add without knowing what became of it
  net,       \* fetches (with "R2" removed: answers) of followers that have turned away since
  comm,      \* ghost: all entries that some leader has counted below its high watermark
  led,       \* ghost: the store's epoch has begun
  twice,     \* ghost: an epoch was begun twice
  lossy,     \* ghost: the broker crashed and may have lost entries, and the controller has not dealt with it
  faults     \* how many crashes, wipes, stops

vars == <<st, adding, adm, clean, view, log, synced, hw, ends, pend, net, comm, led, twice, lossy, faults>>
broker == <<adm, clean, lossy>>
ghosts == <<led, twice>>
idle == <<log, synced, hw, ends, pend, net, comm, twice, faults>>     \* what a write to the store leaves as it is

-------------------------------------------------------------------------------
Min(a, b) == IF a < b THEN a ELSE b
Max(a, b) == IF a > b THEN a ELSE b
Least(set) == CHOOSE x \in set : \A y \in set : x <= y
Prefix(s, n) == SubSeq(s, 1, n)
IsPrefix(s, t) == Len(s) <= Len(t) /\ s = Prefix(t, Len(s))
Last(s) == IF s = <<>> THEN 0 ELSE s[Len(s)]
EndOf(s, epoch) == Cardinality({i \in DOMAIN s : s[i] <= epoch})    \* where `epoch` and all before it end

Oldest == MaxCrashes + MaxStops + 1
Older(age) == Min(age + 1, Oldest)

NoView == [epoch |-> 0, leader |-> None, isr |-> {}, fresh |-> FALSE]
NoEnds == [r \in Replicas |-> [off |-> -1, age |-> Oldest]]

Leading(b) == view[b].leader = b
Start(b) == EndOf(log[b], view[b].epoch - 1)     \* of the leader's epoch: all before it was there when it began

Following(b) == [epoch |-> st.epoch, leader |-> IF st.leader = b THEN None ELSE st.leader, isr |-> {}, fresh |-> FALSE]

\* What may be counted of a log: with flush=commit only what is synced.
Counted(length, sync) == IF Commit /\ On("sync") THEN sync ELSE length

WithIsr(s, new) ==
  IF Cardinality(new) >= MinIsr
  THEN [s EXCEPT !.isr = new, !.elr = {}, !.last = {}]
  ELSE [s EXCEPT !.isr = new, !.elr = (s.elr \cup s.isr) \ new, !.last = s.last \ new]

WriteState(s) ==
  /\ st' = s
  /\ led' = (led /\ s.epoch = st.epoch)
  /\ adding' = {}
  /\ view' = [b \in Replicas |-> [view[b] EXCEPT !.fresh = FALSE]]

\* Messages that can still have an effect, given who sees what.
Kept(messages, v) ==
  {m \in messages :
     IF m.kind = "fetch" THEN v[m.to].leader = m.to /\ (v[m.to].epoch = m.epoch \/ ~On("fence")) ELSE m.age = 0}

\* The leader b's high watermark, from its own end, its view, the others' ends and members perhaps added.
HwOf(b, own, v, e, p) ==
  LET least == Least({own} \cup {e[r].off : r \in (v.isr \cup p) \ {b}})
  IN IF (Cardinality(v.isr) >= MinIsr \/ ~On("min-isr")) /\ least > hw[b] THEN least ELSE hw[b]

SetHw(b, h, entries) ==
  /\ hw' = [hw EXCEPT ![b] = h]
  /\ comm' = IF h > Len(comm) THEN comm \o SubSeq(entries, Len(comm) + 1, h) ELSE comm

-------------------------------------------------------------------------------
Init ==
  \E l \in Replicas :
    /\ st = [leader |-> l, epoch |-> 1, isr |-> Replicas, elr |-> {}, last |-> {}]
    /\ view = [b \in Replicas |-> IF b = l THEN [epoch |-> 1, leader |-> l, isr |-> Replicas, fresh |-> TRUE]
                                  ELSE [epoch |-> 1, leader |-> l, isr |-> {}, fresh |-> FALSE]]
    /\ adding = {}
    /\ adm = [b \in Replicas |-> TRUE]
    /\ clean = [b \in Replicas |-> TRUE]
    /\ log = [b \in Replicas |-> <<>>]
    /\ synced = [b \in Replicas |-> 0]
    /\ hw = [b \in Replicas |-> 0]
    /\ ends = [b \in Replicas |-> NoEnds]
    /\ pend = [b \in Replicas |-> {}]
    /\ net = {}
    /\ comm = <<>>
    /\ led = TRUE
    /\ twice = FALSE
    /\ lossy = [b \in Replicas |-> FALSE]
    /\ faults = [crashes |-> 0, wipes |-> 0, stops |-> 0]

-------------------------------------------------------------------------------
(* Leader *)

Produce(b) ==
  /\ Leading(b)
  /\ Len(log[b]) < MaxLog
  /\ LET entries == log[b] \o <<view[b].epoch>>
     IN /\ log' = [log EXCEPT ![b] = entries]
        /\ SetHw(b, HwOf(b, Counted(Len(entries), synced[b]), view[b], ends[b], pend[b]), entries)
  /\ UNCHANGED <<st, adding, view, synced, ends, pend, net, faults>> /\ UNCHANGED broker /\ UNCHANGED ghosts

Sync(b) ==
  /\ Commit
  /\ synced[b] < Len(log[b])
  /\ synced' = [synced EXCEPT ![b] = Len(log[b])]
  /\ IF Leading(b) THEN SetHw(b, HwOf(b, Len(log[b]), view[b], ends[b], pend[b]), log[b]) ELSE UNCHANGED <<hw, comm>>
  /\ UNCHANGED <<st, adding, view, log, ends, pend, net, faults>> /\ UNCHANGED broker /\ UNCHANGED ghosts

Request(f) == [kind |-> "fetch", from |-> f, to |-> view[f].leader, epoch |-> view[f].epoch, off |-> Len(log[f]),
               last |-> Last(log[f]), age |-> 0, data |-> <<>>, hw |-> 0]

Diverging(m) == m.off > Len(log[m.to]) \/ (m.off > 0 /\ log[m.to][m.off] # m.last)

\* The offset of a fetch counts if the follower's log up to there is the leader's, and it is of no earlier incarnation.
EndsAfter(m) ==
  IF \/ Diverging(m) /\ On("diverging")
     \/ m.age > ends[m.to][m.from].age /\ On("late-fetch")
  THEN ends[m.to]
  ELSE [ends[m.to] EXCEPT ![m.from] = [off |-> m.off, age |-> m.age]]

HwAfter(m) ==
  LET l == m.to IN Min(Len(log[l]), HwOf(l, Counted(Len(log[l]), synced[l]), view[l], EndsAfter(m), pend[l]))

Answer(m) ==
  IF Diverging(m)
  THEN LET cut == EndOf(log[m.to], m.last)
       IN [m EXCEPT !.kind = "diverging", !.off = cut, !.last = Last(Prefix(log[m.to], cut))]
  ELSE [m EXCEPT !.kind = "data", !.data = SubSeq(log[m.to], m.off + 1, Len(log[m.to])), !.hw = HwAfter(m)]

\* The follower's log when it has taken an answer.
Taken(m) ==
  IF m.kind = "diverging" THEN Prefix(log[m.from], Min(m.off, EndOf(log[m.from], m.last)))
  ELSE IF m.off = Len(log[m.from]) THEN log[m.from] \o m.data
  ELSE log[m.from]

LateFetch(m) ==
  /\ m.kind = "fetch"
  /\ ends' = [ends EXCEPT ![m.to] = EndsAfter(m)]
  /\ SetHw(m.to, HwAfter(m), log[m.to])
  /\ net' = net \ {m}
  /\ UNCHANGED <<st, adding, view, log, synced, pend, faults>> /\ UNCHANGED broker /\ UNCHANGED ghosts

\* The leader asks to add r. From now on the high watermark counts r, whatever becomes of the request.
AskToAdd(b, r) ==
  /\ Leading(b) /\ view[b].fresh
  /\ r \notin view[b].isr /\ r \notin adding /\ Cardinality(adding) < MaxAdding
  /\ adm[r] /\ ends[b][r].age = 0
  /\ On("R4-hw") => ends[b][r].off >= hw[b]
  /\ On("R4-start") => ends[b][r].off >= Start(b)
  /\ adding' = adding \cup {r}
  /\ pend' = IF On("pending") THEN [pend EXCEPT ![b] = @ \cup {r}] ELSE pend
  /\ UNCHANGED <<st, adm, clean, view, log, synced, hw, ends, net, comm, led, twice, lossy, faults>>

\* A request to add arrives at the store; the leader learns of it when it looks.
Add(r) ==
  /\ r \in adding
  /\ WriteState(WithIsr(st, st.isr \cup {r}))
  /\ UNCHANGED idle /\ UNCHANGED broker

\* Only with a rule removed: the leader counts without r before the store knows.
ShrinkFirst(b, r) ==
  /\ ~On("shrink-first")
  /\ Leading(b)
  /\ r \in view[b].isr \ {b}
  /\ LET v == [view[b] EXCEPT !.isr = @ \ {r}]
     IN /\ view' = [view EXCEPT ![b] = v]
        /\ SetHw(b, HwOf(b, Counted(Len(log[b]), synced[b]), v, ends[b], pend[b]), log[b])
  /\ UNCHANGED <<st, adding, log, synced, ends, pend, net, faults>> /\ UNCHANGED broker /\ UNCHANGED ghosts

-------------------------------------------------------------------------------
(* Follower *)

\* A fetch, and its answer unless that is lost. What came is synced before the next fetch, so it may as well be now.
Fetch(f) ==
  LET l == view[f].leader
      m == Request(f)
      answer == Answer(m)
      entries == Taken(answer)
      synchronous == Commit /\ On("sync")
  IN
  /\ l \notin {None, f}
  /\ Leading(l) /\ view[l].epoch = m.epoch
  /\ synchronous => synced[f] = Len(log[f])
  /\ \E lost \in BOOLEAN :
       /\ IF lost THEN EndsAfter(m) # ends[l] ELSE entries # log[f] \/ answer.hw > hw[f]
       /\ log' = IF lost THEN log ELSE [log EXCEPT ![f] = entries]
       /\ synced' = IF lost THEN synced
                    ELSE [synced EXCEPT ![f] = IF synchronous THEN Len(entries) ELSE Min(@, Len(entries))]
       /\ hw' = [hw EXCEPT ![l] = HwAfter(m), ![f] = IF lost THEN @ ELSE Min(Max(@, answer.hw), Len(entries))]
  /\ comm' = IF HwAfter(m) > Len(comm) THEN comm \o SubSeq(log[l], Len(comm) + 1, HwAfter(m)) ELSE comm
  /\ ends' = [ends EXCEPT ![l] = EndsAfter(m)]
  /\ UNCHANGED <<st, adding, view, pend, net, faults>> /\ UNCHANGED broker /\ UNCHANGED ghosts

\* Only with "R2" removed: an answer of another epoch is taken.
LateAnswer(m) ==
  LET entries == Taken(m) IN
  /\ m.kind # "fetch"
  /\ ~Leading(m.from)
  /\ log' = [log EXCEPT ![m.from] = entries]
  /\ synced' = [synced EXCEPT ![m.from] = Min(@, Len(entries))]
  /\ hw' = [hw EXCEPT ![m.from] = Min(@, Len(entries))]
  /\ net' = net \ {m}
  /\ UNCHANGED <<st, adding, view, ends, pend, comm, faults>> /\ UNCHANGED broker /\ UNCHANGED ghosts

\* What a follower that turns away may leave under way.
Leftovers(f) ==
  LET l == view[f].leader IN
  IF l \in {None, f} \/ (Commit /\ On("sync") /\ synced[f] < Len(log[f])) THEN {}
  ELSE IF On("R2") THEN {Request(f)}
  ELSE IF Leading(l) /\ view[l].epoch = view[f].epoch /\ Diverging(Request(f)) THEN {Answer(Request(f))}
  ELSE {}

-------------------------------------------------------------------------------
(* Any broker looks at the store, or a watch tells it. *)

Look(b) ==
  LET leads == st.leader = b /\ (adm[b] \/ ~On("admission"))
      begins == st.epoch # view[b].epoch
      v == IF leads THEN [epoch |-> st.epoch, leader |-> b, isr |-> st.isr, fresh |-> TRUE]
           ELSE Following(b)
      known == IF begins /\ (On("R3") \/ ~leads) /\ (On("R3") \/ view[b].epoch = 0) THEN NoEnds ELSE ends[b]
      entries == IF begins /\ ~leads /\ ~On("R1") THEN Prefix(log[b], hw[b]) ELSE log[b]
  IN
  /\ begins \/ (Leading(b) /\ ~view[b].fresh)
  /\ view' = [view EXCEPT ![b] = v]
  /\ ends' = [ends EXCEPT ![b] = known]
  /\ pend' = [pend EXCEPT ![b] = {}]
  /\ log' = [log EXCEPT ![b] = entries]
  /\ synced' = [synced EXCEPT ![b] = Min(@, Len(entries))]
  /\ IF leads THEN SetHw(b, Min(Len(entries), HwOf(b, Counted(Len(entries), synced[b]), v, known, {})), entries)
     ELSE UNCHANGED <<hw, comm>>
  /\ \E left \in SUBSET (IF begins THEN Kept(Leftovers(b), view') ELSE {}) :
       /\ Cardinality(left) <= 1
       /\ net' = Kept(net \cup left, view')
  /\ led' = (led \/ leads)
  /\ twice' = (twice \/ (leads /\ begins /\ led))
  /\ UNCHANGED <<st, adding, faults>> /\ UNCHANGED broker

-------------------------------------------------------------------------------
(* Controller, and the leader's removals: each one compare-and-swap on the latest revision. *)

\* A member is dropped: by the controller that believes it dead, or by the leader it lags behind.
Drop(r) ==
  /\ Drops
  /\ st.leader # None
  /\ r \in st.isr \ {st.leader}
  /\ WriteState(WithIsr(st, st.isr \ {r}))
  /\ UNCHANGED idle /\ UNCHANGED broker

Elected(b, new) == [WithIsr(st, new) EXCEPT !.leader = b, !.epoch = st.epoch + 1]

Elect(b) ==
  /\ st.epoch < MaxEpoch
  /\ adm[b]
  /\ \/ b \in st.isr /\ WriteState(Elected(b, st.isr))     \* Drop takes out those that are dead
     \/ b \in st.elr /\ WriteState(Elected(b, {b}))
  /\ UNCHANGED idle /\ UNCHANGED broker

\* Nobody is there but those that started uncleanly: enough of them that one has an intact disk, or all there are.
ElectLast(b) ==
  /\ Commit
  /\ st.epoch < MaxEpoch
  /\ \E there \in SUBSET {r \in st.last : adm[r]} :
       /\ b \in there
       /\ On("last-enough") => there = st.isr \cup st.elr \cup st.last \/ Cardinality(there) >= MinIsr
       /\ \A r \in there : \/ Last(log[b]) > Last(log[r])
                           \/ Last(log[b]) = Last(log[r]) /\ Len(log[b]) >= Len(log[r])
  /\ WriteState(Elected(b, {b}))
  /\ UNCHANGED idle /\ UNCHANGED broker

\* The partition's state when all that b's start means has been written.
Admitted(b) ==
  LET s == IF st.leader = b THEN [st EXCEPT !.leader = None, !.epoch = @ + 1] ELSE st
      isr == s.isr \ {b}
      elr == IF On("unclean-elr") THEN s.elr \ {b} ELSE WithIsr(s, isr).elr
      keep == IF On("last-all") THEN s.leader = None \/ Cardinality(isr) < MinIsr ELSE isr = {} /\ elr = {}
  IN IF clean[b] \/ ~On("unclean") \/ b \notin (s.isr \cup s.elr) THEN s
     ELSE [s EXCEPT !.isr = isr, !.elr = elr, !.last = IF keep /\ b \notin elr THEN @ \cup {b} ELSE @]

Admit(b) ==
  /\ ~adm[b]
  /\ Admitted(b).epoch <= MaxEpoch
  /\ adm' = [adm EXCEPT ![b] = TRUE]
  /\ lossy' = [lossy EXCEPT ![b] = FALSE]
  /\ clean' = [clean EXCEPT ![b] = TRUE]     \* of no use any more
  /\ \/ IF Admitted(b) = st THEN UNCHANGED <<st, adding, view, led>> ELSE WriteState(Admitted(b))
     \* Only with a rule removed: a controller whose view of the partition is older than that of the brokers.
     \/ /\ ~On("admit-order")
        /\ st.leader # b
        /\ \E c \in Replicas :
             /\ Leading(c) /\ ~view[c].fresh
             /\ Cardinality(view[c].isr) >= MinIsr /\ b \notin view[c].isr     \* the ELR was empty, then
        /\ UNCHANGED <<st, adding, view, led>>
  /\ UNCHANGED idle

-------------------------------------------------------------------------------
(* Faults *)

\* b goes down, keeps `entries`, and registers as a new incarnation. That a broker is down for a while is the same as
\* its doing nothing for a while; what others do meanwhile for its old incarnation could as well be done just before.
Again(b, entries, mark) ==
  /\ adm' = [adm EXCEPT ![b] = FALSE]
  /\ clean' = [clean EXCEPT ![b] = mark]
  /\ log' = [log EXCEPT ![b] = entries]
  /\ synced' = [synced EXCEPT ![b] = IF Commit THEN Len(entries) ELSE 0]
  /\ hw' = [hw EXCEPT ![b] = IF mark THEN @ ELSE 0]
  /\ view' = [view EXCEPT ![b] = IF On("admission") THEN Following(b) ELSE NoView]
  /\ ends' = [r \in Replicas |-> IF r = b THEN NoEnds ELSE [ends[r] EXCEPT ![b].age = Older(@)]]
  /\ pend' = [pend EXCEPT ![b] = {}]
  \* An expansion expects the follower's registration as it was: it fails now.
  /\ adding' = IF On("incarnation") THEN adding \ {b} ELSE adding
  /\ \E left \in SUBSET Leftovers(b) :
       /\ Cardinality(left) <= 1
       /\ net' = Kept({IF m.from = b THEN [m EXCEPT !.age = Older(@)] ELSE m : m \in net \cup left}, view')
  /\ UNCHANGED <<st, comm>> /\ UNCHANGED ghosts

Crash(b) ==
  /\ faults.crashes < MaxCrashes
  /\ faults' = [faults EXCEPT !.crashes = @ + 1]
  /\ \E kept \in synced[b]..Len(log[b]) : Again(b, Prefix(log[b], kept), FALSE)
  /\ lossy' = IF Commit THEN lossy ELSE [lossy EXCEPT ![b] = TRUE]

Wipe(b) ==
  /\ faults.crashes < MaxCrashes /\ faults.wipes < MaxWipes
  /\ faults' = [faults EXCEPT !.crashes = @ + 1, !.wipes = @ + 1]
  /\ Again(b, <<>>, FALSE)
  /\ lossy' = [lossy EXCEPT ![b] = TRUE]

\* A clean mark would hide an unclean start that the controller has not dealt with: only an admitted broker leaves one.
Stop(b) ==
  /\ faults.stops < MaxStops
  /\ faults' = [faults EXCEPT !.stops = @ + 1]
  /\ Again(b, log[b], adm[b] \/ ~On("mark"))
  /\ UNCHANGED lossy

-------------------------------------------------------------------------------
Next ==
  \/ \E b \in Replicas :
       \/ Produce(b) \/ Sync(b) \/ Fetch(b) \/ Look(b)
       \/ Add(b) \/ Drop(b) \/ Elect(b) \/ ElectLast(b) \/ Admit(b)
       \/ Crash(b) \/ Wipe(b) \/ Stop(b)
       \/ \E r \in Replicas : AskToAdd(b, r) \/ ShrinkFirst(b, r)
  \/ \E m \in net : LateFetch(m) \/ LateAnswer(m)

Spec == Init /\ [][Next]_vars

-------------------------------------------------------------------------------
(* Invariants *)

Durable(b) == IF Commit THEN Prefix(log[b], synced[b]) ELSE log[b]

\* The leader that the store names has every committed entry (unless it is down with losses, and so cannot act).
LeaderComplete == st.leader # None /\ ~lossy[st.leader] => IsPrefix(comm, log[st.leader])

\* So has everyone who may be elected, and with flush=commit on its disk.
MembersComplete == \A b \in st.isr \cup st.elr : ~lossy[b] => IsPrefix(comm, Durable(b))

\* No two show different entries below their high watermarks; with LeaderComplete: no committed entry is rewritten.
WatermarksAgree == \A b \in Replicas : hw[b] <= Len(log[b]) /\ IsPrefix(Prefix(log[b], hw[b]), comm)

OneLeaderPerEpoch ==
  /\ ~twice
  /\ \A b, c \in Replicas : Leading(b) /\ Leading(c) /\ b # c => view[b].epoch # view[c].epoch

\* Logs with the same entry somewhere are equal up to there.
LogsMatch ==
  \A b, c \in Replicas : \A i \in (DOMAIN log[b]) \cap (DOMAIN log[c]) :
    log[b][i] = log[c][i] => Prefix(log[b], i) = Prefix(log[c], i)

StateSound ==
  /\ st.isr \cap st.elr = {} /\ (st.isr \cup st.elr) \cap st.last = {}
  /\ st.leader # None => st.leader \in st.isr
  /\ Cardinality(st.isr) >= MinIsr => st.elr = {}
=============================================================================
