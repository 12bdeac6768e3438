"""Consumer groups: who reads which partition, and how far each group has read. Share groups: who takes from which.

Owns: membership and committed offsets, as pure state machines, and the verbs that ask them. Never imports a protocol.

groups.py               the verbs: asks the shard a group lives in
machine.py              the groups of one shard: finds the group a request is for, ties groups and offsets together
offsets.py              committed offsets and those of transactions under way
retention.py            which offsets a group may lose when time passes
classic.py              a group whose members divide the partitions among themselves
classic_requests.py     what is asked of it and what it answers
classic_roster.py       its members, and what they have in common
classic_member.py       one of its members
consumer.py             a group whose partitions the broker divides (KIP-848)
consumer_requests.py    what is asked of it and what it answers
consumer_state.py       its records, and what follows from them
group_config.py         what can be set for a group: names, defaults, bounds; group_configs.py  what is set
share.py                a group whose members take from the same partitions (KIP-932)
share_requests.py       what is asked of it and what it answers; share_verbs.py  that part of the machine
share_state.py          its records, and what follows from them
share_assignor.py       who is to take from which partition
steps.py                how groups whose members the broker gives their partitions write records
name_lists.py           lists of topics that members subscribe to, each kept once
member_room.py          how much all members of all groups may make a broker keep
assignors.py            ways to divide partitions among the members of a consumer group
reconciliation.py       how one member gets from what it has to what it is to have
sights.py               which of those topics each member may be told of
topic_patterns.py       which topics a regular expression stands for
known_topics.py         the topics as groups see them
topic_view.py           the same, made of the topics of the engine
"""
