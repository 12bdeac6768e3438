"""The engine as one subject may use it. Doors reach topics, groups, transactions and operations through this alone.

Owns: which right each verb takes, asked once for each thing and kept until the rules change. What rules there are is
`engine.access`'s business; what the verbs do is the engine's.

acting.py        one subject's verdicts, and the ways in
topics.py        topics and their partitions
groups.py        groups and their offsets
transactions.py  transactions, and the ids of producers
"""
