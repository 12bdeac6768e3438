"""The topics the broker keeps its coordinators' records in, under Kafka's names."""

from typing import Final

from penstock.engine.coordination.registry import GROUPS, REGISTERED, TRANSACTIONS

OFFSETS_TOPIC: Final = GROUPS.topic
TRANSACTIONS_TOPIC: Final = TRANSACTIONS.topic
INTERNAL_TOPICS: Final = frozenset(REGISTERED)
DEFAULT_PARTITIONS: Final = 16
"""Kafka has 50; each costs a directory and, when written, a file to sync."""


def shard_of(name: str, shards: int) -> int:
    """Which partition a group or transactional id lives in: Java's hash of the name, as Kafka's tools expect."""
    value = 0
    units = name.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % shards
