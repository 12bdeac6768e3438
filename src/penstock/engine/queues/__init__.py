"""Queues: who has which of a topic's records, for how long, and what became of each.

Owns: what consumers of a group have leased and settled, as a pure state machine for each partition, in a log attached
to it; and the verbs that ask it. Never imports a protocol.

queues.py    the verbs, on the broker that leads
machine.py   the groups of one partition: what may be leased, by whom, until when, and what follows
window.py    the offsets of one group in one partition
entries.py   what the machine keeps in its log, and the bytes of it
burials.py   how a message becomes a dead letter: there once, and never in both places
names.py     queue names, and the topics of their dead letters
settings.py  what a queue goes by, as text and as values; backoff.py  how long a returned message waits
headers.py   what a message says of itself, and what the broker says of a dead letter
"""
