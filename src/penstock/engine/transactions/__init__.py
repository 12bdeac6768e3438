"""Transactions: whose writes to many partitions are seen together, or not at all.

Owns: the state of every transactional id, as a pure state machine. Never imports a protocol, a clock or the log.

transaction.py   one transactional id: its state, its producer, what it becomes next
requests.py      what is asked of them and answered, and the limits
refusals.py      why a coordinator says no
machine.py       the ids of one shard: who may do what, who waits, what runs out
transactions.py  the shards at work: markers into partitions, answers when records are durable
other_brokers.py how they reach coordinators and partitions of other brokers
"""
