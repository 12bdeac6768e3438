"""Queues: who has which of a topic's records, for how long, and what became of each.

Owns: what consumers of a group have leased and settled, as a pure state machine for each partition, in a log attached
to it; and the verbs that ask it. Never imports a protocol.

queues.py    the verbs, on the broker that leads; receiving.py  messages one by one, leased
answers.py   what a ledger is asked for, and what it answers
machine.py   the groups of one partition: what may be leased, by whom, until when, and what follows
verdicts.py  what consumers say of a message, and what follows
group.py     one of them; window.py  its offsets; leases.py  its leases
entries.py   what the machine keeps in its log, and the bytes of it; saving.py  when all of it is kept once more
pending.py   what is acknowledged in transactions that have not ended; transactional_acks.py  how it comes to that
receipts.py  what a consumer gives back for a message
burials.py   how a message becomes a dead letter: there once, and never in both places
capacity.py  how much a queue may hold; holdings.py  what it holds back on the disk; needed.py  which records it needs
tally.py     what queues have done since the broker started, for its metrics
history.py   what became of one message, as the ledger's log has it
names.py     queue names, and the topics of their dead letters
targets.py   where dead letters go, and never round in a circle
settings.py  what a queue goes by, as text and as values; rulebook.py  what is in force for which queue
backoff.py   how long a returned message waits
sharing.py   where a share group begins to read a partition
share_offsets.py  where share groups stand, and are to; share_ledgers.py  what their coordinators have ledgers do
expiry.py    who has waited too long
single_active.py  where one consumer at a time gets everything
sorting      a package: which message is next, where messages are not alike
schedules    a package: messages that a queue gets at times
headers.py   what a message says of itself, and what the broker says of a dead letter
"""
