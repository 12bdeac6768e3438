"""What all share that have to do with this broker's replicas."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.cluster.image import Image
from penstock.cluster.roles.agenda import Agenda
from penstock.engine.engine import Engine
from penstock.engine.partition import Partition
from penstock.engine.partition_state import PartitionState
from penstock.ports.disk import Disk
from penstock.ports.metadata import MetadataStore
from penstock.storage.data_directory import DataDirectory


@dataclass(frozen=True, slots=True)
class Holdings:
    """Attributes:
    incarnation: of this broker, as the cluster knows it.
    damaged: replicas that lack what they should have, in the order in which that was found.
    leaving: replicas that are none any more, and whose files are to go; and those that were begun and may become so.
    """

    engine: Engine
    image: Image
    store: MetadataStore
    disk: Disk
    directory: DataDirectory
    incarnation: Callable[[], int]
    agenda: Agenda = field(default_factory=Agenda)
    damaged: dict[Partition, None] = field(default_factory=dict)
    leaving: dict[Partition, None] = field(default_factory=dict)  # in their order, so that a run can be repeated
    _locks: dict[Partition, asyncio.Lock] = field(default_factory=dict)

    @property
    def me(self) -> int:
        return self.engine.node_id

    def lock_of(self, partition: Partition) -> asyncio.Lock:
        """Held by whoever changes what the partition is here, or its log; the same for what is attached to it."""
        return self._locks.setdefault(partition.attached_to or partition, asyncio.Lock())

    def forget(self, partition: Partition) -> None:
        """It is gone, with its topic."""
        self._locks.pop(partition, None)
        self.leaving.pop(partition, None)

    def decided(self, partition: Partition) -> PartitionState | None:
        """What the cluster has decided about it, or about what it is attached to, as far as is known."""
        return self.image.states.get((partition.attached_to or partition).topic_id, {}).get(partition.index)
