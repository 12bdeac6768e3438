"""What the bytes mean: topics, partitions, who waits for what.

Owns: the verbs every protocol calls. Never imports protocols, net or server, and knows no protocol's types.

engine.py        start, stop, the verbs; settings.py  what it is made of
access.py        who may do what: subjects, operations, the one decision
acting/          the engine as one subject may use it: what doors go by
end_keeper.py    keeps where logs end apart from them, by which an old copy is known
catalogue.py     how topics come to be, change and go; local_catalogue.py  on a broker of its own
unfinished.py    what a shortage kept from being taken away
replicas.py      the logs of this broker's replicas: made, opened, shortened, closed
partition_state.py  who holds, follows and leads a partition, in which epoch
leadership.py    what a leader knows of its followers
topics.py        topics and their settings as the metadata store has them
topic_names.py   what a topic may be called
topic_config.py  a topic's settings: names, defaults, checks; internal_settings.py  those of the broker's own topics
attached.py      logs attached to partitions: where these are, led and followed with them
partition_events.py  who hears what becomes of partitions
partition.py     one partition: what it is here, what may be read; leader.py  what only its leader does: append, count
                 followers, high watermark; replica.py  what any replica has
waiters.py       who waits for a high watermark; safety.py  the same to be awaited
producer_ids.py  ids for idempotent producers, never handed out twice
offset_lookup.py offsets by time
intake.py        what records have to be like to be taken
publishing.py    the way in for records: appended, and told when they are as safe as wanted
gathering.py     single messages of many connections as one batch a turn, wherever it is led
forwarding.py    a batch through a broker that does not lead: to the leader, and there once
opener.py        batches that cannot be kept at once
once/            messages with an id, appended once within a window
looking.py       the way out: slices of files, or a wait until there may be some
reading.py       a cursor: slices, or records one by one, wherever they are led
elsewhere.py     what other brokers lead, read from here, and what is led here, given to them
tails.py         the newest records of a partition for many; feed.py  from a place to there, for one
segment_copies.py  whole segments for followers that are far behind
caretaker.py     calls each log's upkeep when it is due
cleaner.py       has logs compacted and thinned that are worth it; needs.py  what is needed of a partition's log
scrubber.py      reads sealed segments again, so that damage is found early
steady_clock.py  wall time that never jumps
coordination/    state machines on partitions of internal topics
groups/          consumer groups and their offsets
transactions/    transactions
queues/          queues: who has which records, and what became of them
"""
