-------------------------------- MODULE Queue --------------------------------
(*
One queue over one data partition of Penstock: the ledger that says what has become of each message, leases, dead
letters, and leader changes. README.md says what is left out, and what each removed rule shows.

What keeps the number of states small without hiding behaviour:
- The ledger is a sequence of entries of which a part is committed (Replication.tla says when). The committed ones are
  kept as the state they add up to, `base`; the others are `tail`. A new leader has any prefix of the tail: what it
  lacks of it is gone, as soon as the new leader has committed anything. `machine` is what the leader makes of both.
- A crash of the leader is a leader change, also when the same broker leads again.
- Consumers may present any receipt they ever got, at any time. One that is refused changes nothing, and is no step.
- A lease may end at any time while it is held, so time, deadlines, renewals and nacks are one step, `Fail`. Backoff is
  that a message that is ready need not be leased.
- What was once sent to the dead letter topic may arrive at any later time, and again and again. A leader that has been
  deposed and does not know may go on sending what was recorded before, so that counts as sent.
- Where a lease is told at once, such a leader also leases out. Nobody will ever see those entries, so its receipts are
  as those of leases that were lost with the tail; its answers to acknowledgements wait for a commit that never is.
- A record of the data is committed when it is there. It is known by its offset and the epoch in which it was written.
*)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
  MaxRecords,    \* records in the data
  Consumers,     \* with bound leases: no receipt, and only while their session with this leader lasts
  Limit,         \* failed attempts after which a message becomes a dead letter
  MaxReleases,   \* of a message that cost nothing; a further one is a failed attempt
  Rejects,       \* TRUE: consumers may reject messages
  Waits,         \* TRUE: a consumer has a message when its lease is committed, as where there are other replicas
  MaxEpoch,      \* leader epochs, the first one included
  MaxTail,       \* entries that are not committed yet
  MaxLosses,     \* leader changes in which committed data are lost: an operator has chosen a replica that lacks some
  Removed        \* names of the rules that are switched off; {} is the design

Rules == {"told-when-committed", "leased-when-committed", "serve-when-committed", "lease-ids-fresh",
          "receipt-compared", "bound-leases-end", "refused-when-settled", "bury-recorded", "numbers-recorded",
          "numbers-compared", "numbers-kept", "producer-fresh", "written-before-settled", "burial-kept", "void-cut",
          "void-by-epoch"}

ASSUME Removed \subseteq Rules
ASSUME Limit > 0

On(rule) == rule \notin Removed
Symmetry == Permutations(Consumers)

VARIABLES
  epoch,      \* of the leader
  serving,    \* the leader has loaded the ledger, and answers
  data,       \* a sequence of epochs; a record is its offset and the epoch in which it was written
  losses,     \* how often data were lost
  base,       \* the state that the committed entries add up to
  tail,       \* the entries that the leader has besides
  machine,    \* the state that all its entries add up to
  sure,       \* entries of the tail that the leader takes for committed: none, unless a rule is removed
  given,      \* of each offset, the ids of its leases so far, the oldest first: consumers may have receipts with them
  producers,  \* producer ids that were taken
  sent,       \* batches to the dead letter topic that may still arrive
  memory,     \* the numbers of the last batch of each producer in the dead letter topic
  dead,       \* messages in the dead letter topic
  told,       \* ghost: messages of which somebody was told that they are acknowledged
  accepted,   \* ghost: messages of which a leader has taken an acknowledgement
  failures,   \* ghost: how often a consumer has had the message now at each offset, and not settled it
  wrong,      \* ghost: an acknowledgement was taken that was not by the holder of the lease
  twice       \* ghost: a message came into the dead letter topic twice

leadership == <<epoch, serving, data, losses>>
ledger == <<base, tail, machine, sure>>
consumers == <<given, told, accepted, failures, wrong>>
letters == <<sent, memory, dead, twice>>
vars == <<leadership, ledger, consumers, letters, producers>>

-------------------------------------------------------------------------------
(* What entries mean *)

Offsets == 1..MaxRecords
Message(o) == <<o, data[o]>>

\* How far one message has come.
Untouched == [is |-> "ready", attempts |-> 0, releases |-> 0, id |-> 0, lease |-> 0, by |-> <<>>]
Gone(how) == [Untouched EXCEPT !.is = how]
Returned(s) == [s EXCEPT !.is = "ready", !.lease = 0, !.by = <<>>, !.id = IF On("lease-ids-fresh") THEN 0 ELSE @]

\* A burial writes letters as one batch. Its numbers say which: the producer, the sequence it begins with, its size.
\* Messages that are lost leave their places in it.
NoNumbers == [producer |-> 0, sequence |-> 0, size |-> 0]
NoBurial == [numbers |-> NoNumbers, offsets |-> {}, void |-> {}]

Empty ==
  [offsets |-> [o \in Offsets |-> Untouched], burial |-> NoBurial, last |-> NoNumbers, epoch |-> 1]

\* A leader begins: what is void is as if never touched, bound leases are over.
Led(m, e) ==
  LET void == {o \in m.burial.offsets : o > e.end} IN
  [m EXCEPT
     !.offsets = [o \in Offsets |->
        IF o > e.end THEN Untouched
        ELSE IF @[o].by # <<>> /\ On("bound-leases-end") THEN Returned(@[o])
        ELSE @[o]],
     !.burial = IF void = {} THEN @ ELSE IF On("burial-kept") THEN [@ EXCEPT !.void = @ \cup void] ELSE NoBurial,
     !.last = IF e.forgets \/ (void # {} /\ ~On("burial-kept")) THEN NoNumbers ELSE @,
     !.epoch = e.epoch]

Apply(m, e) ==
  CASE e.kind = "led" -> Led(m, e)
    [] e.kind = "leased" ->
         [m EXCEPT !.offsets[e.at] = [@ EXCEPT !.is = "leased", !.id = e.id, !.lease = e.lease, !.by = e.by]]
    [] e.kind = "released" -> [m EXCEPT !.offsets[e.at] = Returned([@ EXCEPT !.releases = @ + 1])]
    [] e.kind = "failed" -> [m EXCEPT !.offsets[e.at] = Returned([@ EXCEPT !.attempts = @ + 1])]
    [] e.kind = "acked" -> [m EXCEPT !.offsets[e.at] = Gone("acked")]
    [] e.kind = "dying" -> [m EXCEPT !.offsets[e.at] = Gone("dying")]
    [] e.kind = "burying" -> [m EXCEPT !.burial = e.burial]
    [] e.kind = "buried" ->
         [m EXCEPT
            !.offsets = [o \in Offsets |-> IF o \in m.burial.offsets \ m.burial.void THEN Gone("buried") ELSE @[o]],
            !.burial = NoBurial,
            !.last = m.burial.numbers]

RECURSIVE Replay(_, _)
Replay(m, entries) == IF entries = <<>> THEN m ELSE Replay(Apply(m, Head(entries)), Tail(entries))

Prefix(s, n) == SubSeq(s, 1, n)

\* The state that the leader takes for committed.
Known == IF sure = 0 THEN base ELSE Replay(base, Prefix(tail, sure))

-------------------------------------------------------------------------------
Init ==
  /\ epoch = 1
  /\ serving = TRUE
  /\ data = [o \in Offsets |-> 1]
  /\ losses = 0
  /\ base = Empty
  /\ tail = <<>>
  /\ machine = Empty
  /\ sure = 0
  /\ given = [o \in Offsets |-> <<>>]
  /\ producers = 0
  /\ sent = {}
  /\ memory = {}
  /\ dead = {}
  /\ told = {}
  /\ accepted = {}
  /\ failures = [o \in Offsets |-> 0]
  /\ wrong = FALSE
  /\ twice = FALSE

\* The leader appends an entry, and its machine has taken the step at once.
Keep(e) ==
  /\ serving
  /\ Len(tail) < MaxTail
  /\ tail' = Append(tail, e)
  /\ machine' = Apply(machine, e)
  /\ UNCHANGED <<base, sure>> /\ UNCHANGED leadership

-------------------------------------------------------------------------------
(* Consumers *)

\* Once data were lost, there is room again.
Send ==
  /\ Len(data) < MaxRecords
  /\ data' = Append(data, epoch)
  /\ UNCHANGED <<epoch, serving, losses, producers>>
  /\ UNCHANGED ledger /\ UNCHANGED consumers /\ UNCHANGED letters

Lease(o, by) ==
  LET lease == Len(given[o]) + 1
      id == IF On("lease-ids-fresh") THEN lease ELSE machine.offsets[o].id + 1
  IN
  /\ o <= Len(data)
  /\ machine.offsets[o].is = "ready"
  /\ Keep([kind |-> "leased", at |-> o, id |-> id, lease |-> lease, by |-> by])
  /\ given' = [given EXCEPT ![o] = Append(@, id)]
  /\ UNCHANGED <<told, accepted, failures, wrong, producers>> /\ UNCHANGED letters

\* The consumer has the message.
Held(o) ==
  /\ machine.offsets[o].is = "leased"
  /\ Waits /\ On("leased-when-committed") => \A i \in DOMAIN tail : ~(tail[i].kind = "leased" /\ tail[i].at = o)

\* Whether the leader takes an acknowledgement with the receipt of the n-th lease of an offset.
Takes(o, n) ==
  /\ Held(o)
  /\ On("receipt-compared") => machine.offsets[o].by = <<>> /\ machine.offsets[o].id = given[o][n]

\* Whether it takes one of a consumer that shows no receipt.
TakesFrom(o, c) ==
  /\ Held(o)
  /\ machine.offsets[o].by # <<>>
  /\ On("receipt-compared") => machine.offsets[o].by[1] = c

Acked(o) ==
  /\ o <= Len(data)
  /\ Keep([kind |-> "acked", at |-> o, message |-> Message(o)])
  /\ accepted' = accepted \cup {Message(o)}
  /\ told' = IF On("told-when-committed") THEN told ELSE told \cup {Message(o)}
  /\ UNCHANGED <<given, failures, producers>> /\ UNCHANGED letters

Ack(o, n) ==
  /\ Takes(o, n)
  /\ wrong' = (wrong \/ machine.offsets[o].lease # n)
  /\ Acked(o)

AckBound(o, c) ==
  /\ TakesFrom(o, c)
  /\ wrong' = (wrong \/ machine.offsets[o].by # <<c, epoch>>)
  /\ Acked(o)

\* Only with a rule removed: what lies below the first unsettled message counts as done, whoever asks.
AckSettled(o) ==
  /\ ~On("refused-when-settled")
  /\ serving
  /\ o <= Len(data)
  /\ given[o] # <<>>
  /\ \A p \in 1..o : base.offsets[p].is \in {"acked", "buried"}
  /\ Message(o) \notin told
  /\ told' = told \cup {Message(o)}
  /\ UNCHANGED <<given, accepted, failures, wrong, producers>>
  /\ UNCHANGED leadership /\ UNCHANGED ledger /\ UNCHANGED letters

\* A nack, the lease's end, or its consumer is lost. A lease may also end before it is told.
Fail(o) ==
  LET kind == IF machine.offsets[o].attempts + 1 < Limit THEN "failed" ELSE "dying" IN
  /\ machine.offsets[o].is = "leased"
  /\ Keep([kind |-> kind, at |-> o])
  /\ failures' = IF Held(o) THEN [failures EXCEPT ![o] = @ + 1] ELSE failures
  /\ UNCHANGED <<given, told, accepted, wrong, producers>> /\ UNCHANGED letters

\* Given back, or its consumer has left in good order.
Release(o) ==
  /\ machine.offsets[o].is = "leased"
  /\ machine.offsets[o].releases < MaxReleases
  /\ Keep([kind |-> "released", at |-> o])
  /\ UNCHANGED <<consumers, producers>> /\ UNCHANGED letters

Reject(o) ==
  /\ Rejects
  /\ Held(o)
  /\ Keep([kind |-> "dying", at |-> o])
  /\ UNCHANGED <<consumers, producers>> /\ UNCHANGED letters

-------------------------------------------------------------------------------
(* Dead letters *)

Dying == {o \in 1..Len(data) : machine.offsets[o].is = "dying"}

\* First the batch is recorded: which messages, and the numbers it will have. They go on where those of the last batch
\* ended, or, if the leader does not know that one, are a new producer's.
Bury(buried) ==
  LET fresh == machine.last = NoNumbers
      producer == IF ~fresh THEN machine.last.producer ELSE IF On("producer-fresh") THEN producers + 1 ELSE 1
      first == IF fresh THEN 0 ELSE machine.last.sequence + machine.last.size
      numbers == [producer |-> producer, sequence |-> first, size |-> Cardinality(buried)]
  IN
  /\ buried # {}
  /\ machine.burial = NoBurial
  /\ Keep([kind |-> "burying", burial |-> [numbers |-> numbers, offsets |-> buried, void |-> {}]])
  /\ producers' = IF fresh THEN producers + 1 ELSE producers
  /\ UNCHANGED consumers /\ UNCHANGED letters

\* A burial is recorded, and not known to be done. Only with a rule removed is it enough that the leader has noted it.
Recorded ==
  /\ serving
  /\ machine.burial # NoBurial
  /\ On("bury-recorded") => Known.burial.numbers = machine.burial.numbers
  /\ machine.burial.offsets \ machine.burial.void \subseteq DOMAIN data

Batch ==
  [numbers |-> IF On("numbers-recorded") THEN machine.burial.numbers
               ELSE [machine.burial.numbers EXCEPT !.producer = 100 + epoch, !.sequence = 0],
   messages |-> {Message(o) : o \in machine.burial.offsets \ machine.burial.void}]

\* Then the batch is sent, by whoever leads, as often as it takes.
Write ==
  /\ Recorded
  /\ Batch \notin sent
  /\ sent' = sent \cup {Batch}
  /\ UNCHANGED <<memory, dead, twice, producers>>
  /\ UNCHANGED leadership /\ UNCHANGED ledger /\ UNCHANGED consumers

Follows(numbers, last) == numbers.sequence = last.sequence + last.size

\* The topic takes a batch whose sequence is the next of its producer, and any of a producer that it does not know.
Arrive(batch) ==
  LET known == {last \in memory : last.producer = batch.numbers.producer} IN
  /\ \A last \in known : IF On("numbers-compared") THEN Follows(batch.numbers, last) ELSE ~twice
  /\ memory' = (memory \ known) \cup {batch.numbers}
  /\ dead' = dead \cup batch.messages
  /\ twice' = (twice \/ batch.messages \cap dead # {})
  /\ UNCHANGED <<sent, producers>>
  /\ UNCHANGED leadership /\ UNCHANGED ledger /\ UNCHANGED consumers

\* Only with a rule removed: the topic forgets a producer that has sent nothing for long.
Forget ==
  /\ ~On("numbers-kept")
  /\ memory # {}
  /\ memory' = {}
  /\ UNCHANGED <<sent, dead, twice, producers>>
  /\ UNCHANGED leadership /\ UNCHANGED ledger /\ UNCHANGED consumers

\* When the topic says that it has the batch, or had it before, the messages are settled.
Buried ==
  /\ Recorded
  /\ On("written-before-settled") => Batch.numbers \in memory
  /\ Keep([kind |-> "buried"])
  /\ UNCHANGED <<consumers, producers>> /\ UNCHANGED letters

-------------------------------------------------------------------------------
(* Leaders *)

\* The followers have the next entry; who waits for an answer gets it.
Commit ==
  /\ tail # <<>>
  /\ base' = Apply(base, Head(tail))
  /\ tail' = Tail(tail)
  /\ sure' = IF sure = 0 THEN 0 ELSE sure - 1
  /\ told' = IF Head(tail).kind = "acked" THEN told \cup {Head(tail).message} ELSE told
  /\ UNCHANGED <<machine, given, accepted, failures, wrong, producers>> /\ UNCHANGED leadership /\ UNCHANGED letters

\* Another broker leads, or the same one again. It has all that is committed, and any part of what was not.
Change ==
  /\ epoch < MaxEpoch
  /\ epoch' = epoch + 1
  /\ serving' = FALSE
  /\ \E kept \in 0..Len(tail) :
       /\ tail' = Prefix(tail, kept)
       /\ machine' = Replay(base, Prefix(tail, kept))
  /\ \E left \in (IF losses < MaxLosses THEN 0 ELSE Len(data))..Len(data) :
       /\ data' = Prefix(data, left)
       /\ losses' = IF left < Len(data) THEN losses + 1 ELSE losses
       /\ failures' = [o \in Offsets |-> IF o > left THEN 0 ELSE failures[o]]
  /\ sure' = 0
  /\ sent' = IF Recorded THEN sent \cup {Batch} ELSE sent
  /\ UNCHANGED <<base, given, told, accepted, wrong, producers, memory, dead, twice>>

\* The end of what the ledger's entries can be about: where the epoch of its last entry ends in the data.
End ==
  IF ~On("void-cut") THEN MaxRecords
  ELSE IF ~On("void-by-epoch") THEN Cardinality({o \in DOMAIN data : data[o] < epoch})
  ELSE Cardinality({o \in DOMAIN data : data[o] <= machine.epoch})

\* The leader's first entry, when all it has of the ledger is committed. If it began with a state that was saved, it may
\* not know which batch was the last.
Serve(forgets) ==
  LET e == [kind |-> "led", epoch |-> epoch, end |-> End, forgets |-> forgets] IN
  /\ ~serving
  /\ On("serve-when-committed") => tail = <<>>
  /\ Len(tail) < MaxTail
  /\ serving' = TRUE
  /\ tail' = Append(tail, e)
  /\ machine' = Apply(machine, e)
  /\ sure' = Len(tail)
  /\ UNCHANGED <<epoch, data, losses, base, producers>> /\ UNCHANGED consumers /\ UNCHANGED letters

-------------------------------------------------------------------------------
Progress ==
  \/ \E o \in Offsets :
       \/ Lease(o, <<>>)
       \/ \E c \in Consumers : Lease(o, <<c, epoch>>) \/ AckBound(o, c)
       \/ \E n \in DOMAIN given[o] : Ack(o, n)
       \/ AckSettled(o) \/ Fail(o) \/ Release(o) \/ Reject(o)
  \/ \E buried \in SUBSET Dying : Bury(buried)
  \/ Write \/ Buried \/ Forget
  \/ \E batch \in sent : Arrive(batch)
  \/ Send \/ Commit
  \/ \E forgets \in BOOLEAN : Serve(forgets)

Next == Progress \/ Change

Spec == Init /\ [][Next]_vars

\* No step but a leader change undoes another, so no behaviour goes round in circles: whoever goes on gets to the end.
Fair == Spec /\ WF_vars(Progress)

-------------------------------------------------------------------------------
(* Invariants: of the leader that serves *)

Present == IF serving THEN DOMAIN data ELSE {}
State(o) == machine.offsets[o].is

\* What somebody was told to be acknowledged stays it: it is not leased again, and does not become a dead letter.
AckStands == \A o \in Present : Message(o) \in told => State(o) = "acked"

\* Every message is ready, leased, dying, acknowledged by somebody, or in the dead letter topic.
NoneLost ==
  \A o \in Present :
    /\ State(o) = "acked" => Message(o) \in accepted
    /\ State(o) = "buried" => Message(o) \in dead

NeverBoth == told \cap dead = {}

OneCopy == ~twice

\* A message that consumers of the dead letter topic can see is nobody's any more.
DeadNotLeasable == \A o \in Present : Message(o) \in dead => State(o) \in {"dying", "buried"}

\* An offset is leased once: one receipt is good, or one consumer may do without.
OneLease ==
  \A o \in Present :
    Cardinality({n \in DOMAIN given[o] : Takes(o, n)}) + Cardinality({c \in Consumers : TakesFrom(o, c)}) <= 1

OnlyHolders == ~wrong

\* There are no more failed attempts than leases, and at most one less than consumers have failed with the message, for
\* each leader change since it was written.
AttemptsKept ==
  \A o \in Present :
    State(o) \in {"ready", "leased"} =>
      /\ machine.offsets[o].attempts <= Len(given[o])
      /\ failures[o] <= machine.offsets[o].attempts + epoch - data[o]

\* The dead letter topic has the batch that is recorded, or will take it.
BurialGoesOn ==
  LET numbers == base.burial.numbers
  IN \A last \in memory : last.producer = numbers.producer => last = numbers \/ Follows(numbers, last)

-------------------------------------------------------------------------------
(* With fairness *)

Settled == \A o \in Offsets : o \in DOMAIN data /\ base.offsets[o].is \in {"acked", "buried"}

SettledInTheEnd == <>[]Settled
=============================================================================
