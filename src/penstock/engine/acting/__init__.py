"""The engine as one subject may use it. Doors reach topics, groups, queues, transactions and operations by it.

Owns: which right each verb takes, asked once for each thing and kept until the rules change. What rules there are is
`engine.access`'s business; what the verbs do is the engine's.

acting.py        one subject's verdicts, and the ways in
topics.py        topics and their partitions
groups.py        groups and their offsets
queues.py        queues and their messages
schedules.py     messages that queues get at times
shares.py        where share groups stand
transactions.py  transactions, and the ids of producers
"""
