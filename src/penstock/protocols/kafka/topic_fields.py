"""A topic as Metadata and DescribeTopicPartitions tell of it; `encode` keeps the fields each of them has."""

from collections.abc import Sequence

from penstock.engine.coordination.internal_topics import INTERNAL_TOPICS
from penstock.engine.partition import Partition
from penstock.engine.partition_state import NOBODY
from penstock.engine.topics import Topic
from penstock.errors import Code
from penstock.protocols.kafka import cluster_view
from penstock.protocols.kafka.handlers import Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import errors


async def describe_topic(
    context: Context, topic: Topic, partitions: Sequence[Partition], operations: int, answer: LongAnswer
) -> Fields:
    """The topic with some of its partitions, or all of them."""
    return {
        "error_code": errors.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": [await answer.row(_describe_partition(context, partition)) for partition in partitions],
        "topic_authorized_operations": operations,
    }


def _describe_partition(context: Context, partition: Partition) -> Fields:
    state = partition.state
    leader = cluster_view.leader_of(context, partition)
    return {
        "error_code": errors.NONE if leader is not None else errors.KAFKA_CODES[Code.NOT_AVAILABLE],
        "partition_index": partition.index,
        "leader_id": leader.node_id if leader is not None else NOBODY,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": list(state.replicas),
        "isr_nodes": list(state.isr),
        "eligible_leader_replicas": list(state.elr),
        "last_known_elr": list(state.last),
        "offline_replicas": [replica for replica in state.replicas if _is_offline(context, partition, replica)],
    }


def _is_offline(context: Context, partition: Partition, replica: int) -> bool:
    if replica == context.node_id:
        return not partition.is_held
    return cluster_view.endpoint(context, replica) is None
