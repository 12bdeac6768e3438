"""The topics the broker keeps its coordinators' records in, under Kafka's names."""

from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset((OFFSETS_TOPIC, TRANSACTIONS_TOPIC))
SETTINGS: Final = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20), "compression.type": "producer"}
DEFAULT_PARTITIONS: Final = 16
"""Kafka has 50; each costs a directory and, when written, a file to sync."""


def shard_of(name: str, shards: int) -> int:
    """Which partition a group or transactional id lives in: Java's hash of the name, as Kafka's tools expect."""
    value = 0
    units = name.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % shards
