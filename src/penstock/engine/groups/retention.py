"""Which offsets a group may lose when time passes (KIP-211).

Offsets of a simple group expire some time after their commit, those of any other when the group has been empty as long;
while it has members, only those of topics they do not read. Kafka does not spare what was committed after a group
became empty; here somebody set it, and will want it when the group starts.
"""

from collections.abc import Callable

from penstock.engine.coordination.schemas import OffsetValue
from penstock.engine.groups.classic import ClassicGroup, State
from penstock.engine.groups.consumer import ConsumerGroup
from penstock.engine.groups.share import ShareGroup

Group = ClassicGroup | ConsumerGroup | ShareGroup
RETENTION_MS = 7 * 24 * 3600 * 1000  # Kafka's offsets.retention.minutes


def reads(group: Group) -> Callable[[str], bool]:
    """Tells of a topic whether members of the group read it, or may read it for all one knows."""
    if group.is_empty:
        return lambda topic: False
    topics = group.subscribed_topics()
    return topics.__contains__ if topics is not None else lambda topic: True


def expired(group: Group, now: int, retention_ms: int, empty_since: int) -> Callable[[str, OffsetValue], bool]:
    """Tells of an offset of a topic whether it has expired.

    Args:
        empty_since: since when the group has had no members; before all times for one that has, or never had any.
    """
    if isinstance(group, ClassicGroup) and not group.is_empty and group.state is not State.STABLE:
        return lambda topic, value: False  # what its members will read is being settled
    is_read = reads(group)

    def is_expired(topic: str, value: OffsetValue) -> bool:
        return now - max(value.commit_timestamp, empty_since) >= retention_ms and not is_read(topic)

    return is_expired
