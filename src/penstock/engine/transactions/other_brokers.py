"""How a broker's transactions reach other brokers: coordinators that are elsewhere, partitions led elsewhere."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from penstock.engine.transactions.requests import AddPartitions, MarkersDue
from penstock.engine.transactions.transaction import TopicPartition
from penstock.errors import Code, PenstockError


class OtherBrokers(Protocol):
    """Each call raises PenstockError, NOT_AVAILABLE when the broker cannot be reached."""

    async def add_partitions(
        self, broker_id: int, request: AddPartitions
    ) -> Mapping[TopicPartition, PenstockError | None]:
        """As `Transactions.add_partitions`, by the coordinator on another broker."""
        ...

    async def write_markers(
        self, broker_id: int, due: MarkersDue, places: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, PenstockError | None]:
        """Write the markers of a transaction into partitions another broker leads; returns when they are durable."""
        ...

    async def is_gone(self, topic: str) -> bool:
        """Whether a topic that this broker does not know was deleted, and is not merely unknown here yet."""
        ...


class NoOtherBrokers:
    """A broker on its own has none."""

    async def add_partitions(
        self, broker_id: int, request: AddPartitions
    ) -> Mapping[TopicPartition, PenstockError | None]:
        raise PenstockError(Code.NOT_COORDINATOR, f"broker {broker_id} is not known here")

    async def write_markers(
        self, broker_id: int, due: MarkersDue, places: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, PenstockError | None]:
        raise PenstockError(Code.NOT_AVAILABLE, f"broker {broker_id} is not known here")

    async def is_gone(self, topic: str) -> bool:
        return True
