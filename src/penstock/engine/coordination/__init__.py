"""What group and transaction coordinators share: their records, and running a state machine on a partition.

Owns: the internal topics. Never imports a protocol.

registry.py  which coordinators there are: their topics, settings and records
coordinators.py  those of a broker, by topic
schemas.py  records of the internal topics in Kafka's schemas
outcome.py  what a state machine answers with
turn.py     what the steps of one turn of the event loop have come to
shard.py    one partition and the machine that lives in it
shards.py   all of an internal topic; attached_shards.py  all of a kind that is attached to partitions
snapshot.py  a machine's state, saved beside its log
deadlines.py  which of many things has to be looked at next
expressions.py  regular expressions clients send, and how much work they may make
internal_topics.py  their names and settings, and which partition a name lives in
"""
