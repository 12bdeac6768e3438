"""Logs attached to the partitions of a topic: a partition of each, which is what and where its data partition is.

What is attached has no state of its own in the metadata store. It has the replicas, the leader and the epoch of the
partition it is attached to, takes its roles in the same step, and counts for who is in sync. The topic's record names
the kinds that are attached, with the settings of each; that a kind is named there comes before its first log does.

Doors do not see it: `Topics` finds it for followers only, by an id made of the topic's.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from penstock.engine.partition import Partition
from penstock.engine.topic_config import TopicConfig, make_config
from penstock.engine.topics import Topic
from penstock.storage.attached_names import attached_id, attached_name


def attached_config(settings: Mapping[str, str], of: TopicConfig) -> TopicConfig:
    """Its own settings; when anything counts as kept it goes by the data's, as both are kept by the same brokers."""
    own = make_config(settings, {})
    return replace(
        own,
        log=replace(own.log, flush=of.log.flush, flush_ms=of.log.flush_ms),
        min_insync_replicas=of.min_insync_replicas,
        min_insync_is_default=of.min_insync_is_default,
    )


def attached_topic(topic: Topic, kind: str, settings: Mapping[str, str]) -> Topic:
    """What holds the logs of a kind, without any yet. Raises PenstockError INVALID_TOPIC."""
    name, topic_id = attached_name(topic.name, kind), attached_id(topic.topic_id, kind)
    return Topic(name, topic_id, attached_config(settings, topic.config), [])


def attach_all(
    topic: Topic, kinds: Mapping[str, Mapping[str, str]], make: Callable[[Topic, Partition], Partition]
) -> bool:
    """Let every partition of a topic have what is to be attached to it; whether any did not.

    Args:
        kinds: by the topic's record.
        make: the partition to be attached to one, in the topic that holds those of its kind.
    """
    is_news = False
    for kind, settings in kinds.items():
        holder = topic.attached.get(kind)
        if holder is None:
            holder = topic.attached[kind] = attached_topic(topic, kind, settings)
        for partition in topic.partitions[len(holder.partitions) :]:
            attached = make(holder, partition)
            partition.attach(attached)
            holder.partitions.append(attached)
            is_news = True
    return is_news


def use_config(topic: Topic, config: TopicConfig) -> None:
    """Let a topic, and what is attached to it, go by other settings from now on."""
    topic.config = config
    for partition in topic.partitions:
        partition.use_config(config)
    for holder in topic.attached.values():
        holder.config = attached_config(holder.config.given, config)
        for attached in holder.partitions:
            attached.use_config(holder.config)
