"""A topic as Metadata and DescribeTopicPartitions tell of it; `encode` keeps the fields each of them has."""

from collections.abc import Sequence

from penstock.engine.coordination.internal_topics import INTERNAL_TOPICS
from penstock.engine.partition import Partition
from penstock.engine.topics import Topic
from penstock.protocols.kafka import errors
from penstock.protocols.kafka.handlers import Context, Fields


def describe_topic(context: Context, topic: Topic, partitions: Sequence[Partition], operations: int) -> Fields:
    """The topic with some of its partitions, or all of them."""
    here = [context.node_id]
    return {
        "error_code": errors.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": [
            {
                "error_code": errors.NONE,
                "partition_index": partition.index,
                "leader_id": context.node_id,
                "leader_epoch": partition.leader_epoch,
                "replica_nodes": here,
                "isr_nodes": here,
                "eligible_leader_replicas": [],
                "last_known_elr": [],
                "offline_replicas": here if partition.log is None else [],
            }
            for partition in partitions
        ],
        "topic_authorized_operations": operations,
    }
