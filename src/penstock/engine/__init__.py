"""What the bytes mean: topics, partitions, who waits for what.

Owns: the verbs every protocol calls. Never imports protocols, net or server, and knows no protocol's types.

engine.py        start, stop, the verbs
end_keeper.py    keeps where logs end apart from them, by which an old copy is known
catalogue.py     how topics come to be, change and go; local_catalogue.py  on a broker of its own
unfinished.py    what a shortage kept from being taken away
replicas.py      the logs of this broker's replicas: made, opened, shortened, closed
partition_state.py  who holds, follows and leads a partition, in which epoch
leadership.py    what a leader knows of its followers
topics.py        topics and their settings as the metadata store has them
topic_config.py  a topic's settings: names, defaults, checks; internal_settings.py  those of the broker's own topics
partition.py     one partition: its role, checks, append, read, high watermark
waiters.py       who waits for a high watermark
producer_ids.py  ids for idempotent producers, never handed out twice
offset_lookup.py offsets by time
opener.py        batches that cannot be kept at once
caretaker.py     calls each log's upkeep when it is due
cleaner.py       has logs compacted that are worth it
scrubber.py      reads sealed segments again, so that damage is found early
steady_clock.py  wall time that never jumps
coordination/    state machines on partitions of internal topics
groups/          consumer groups and their offsets
transactions/    transactions
"""
