"""What the bytes mean: topics, partitions, who waits for what.

Owns: the verbs every protocol calls. Never imports protocols, net or server, and knows no protocol's types.

engine.py        start, stop, create and delete topics, find partitions, look offsets up
topics.py        topics and their settings as the metadata store has them
topic_config.py  a topic's settings: names, defaults, checks
partition.py     one partition: checks, append, read, high watermark
waiters.py       who waits for a high watermark
producer_ids.py  ids for idempotent producers, never handed out twice
offset_lookup.py offsets by time
opener.py        batches that cannot be kept at once
caretaker.py     calls each log's upkeep when it is due
cleaner.py       has logs compacted that are worth it
steady_clock.py  wall time that never jumps
coordination/    state machines on partitions of internal topics
groups/          consumer groups and their offsets
transactions/    transactions
"""
