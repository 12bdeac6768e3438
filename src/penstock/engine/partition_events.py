"""Who hears what becomes of this broker's partitions: led, lost, moved away, deleted.

A partition tells it itself when its role changes, so whoever decides about roles need not know who lives in it.
"""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.engine.partition import Partition
    from penstock.engine.topics import Topic


class PartitionSubscriber(Protocol):
    """Whoever subclasses it hears only of what it defines itself. The first three must not wait for anything."""

    def led(self, partition: "Partition") -> None:
        """This broker leads it from now on."""
        return None

    def lost(self, partition: "Partition") -> None:
        """This broker is about to stop to lead it, or to lead it in another epoch; it still is what it was."""
        return None

    def moved_away(self, partition: "Partition") -> None:
        """Other brokers hold it now, and this one nothing of it; its files are about to go."""
        return None

    async def deleted(self, topic: "Topic") -> None:
        """It is gone, with all its partitions. Whoever deletes it waits for this."""
        return None


class PartitionEvents:
    """Those who hear of it, in the order in which they came."""

    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers: list[PartitionSubscriber] = []

    def subscribe(self, subscriber: PartitionSubscriber) -> None:
        self._subscribers.append(subscriber)

    def led(self, partition: "Partition") -> None:
        for subscriber in self._subscribers:
            subscriber.led(partition)

    def lost(self, partition: "Partition") -> None:
        for subscriber in self._subscribers:
            subscriber.lost(partition)

    def moved_away(self, partition: "Partition") -> None:
        for subscriber in self._subscribers:
            subscriber.moved_away(partition)

    async def deleted(self, topic: "Topic") -> None:
        for subscriber in self._subscribers:
            await subscriber.deleted(topic)
