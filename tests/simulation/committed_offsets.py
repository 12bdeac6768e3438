"""What clients wrote to and read from offsets of groups, and whether one register per offset explains it.

A write that was answered has happened in between; one that was not may happen at any later time, or never. What a read
returns must not have been overwritten when the read began. A coordinator that was deposed and does not know it yet may
answer out of what it had: its reads count from the moment at which another epoch began in etcd.
"""

import math
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.cluster import keys
from penstock.engine.partition_state import PartitionState
from penstock.ports.metadata import Change

if TYPE_CHECKING:
    from tests.simulation.world import World

NOTHING = -1
"""What a partition without a commit is answered with."""


@dataclass(slots=True)
class Write:
    value: int
    sent_at: float
    acked_at: float = math.inf
    refused: bool = False
    """It was answered with no, every time: it never happens."""


@dataclass(slots=True)
class Read:
    value: int
    began_at: float
    ended_at: float
    who: str
    """For the trace: which broker in which epoch."""


@dataclass(slots=True)
class Register:
    """One offset of one group. Every write has a value of its own."""

    name: Hashable
    writes: dict[int, Write] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)

    def write(self, value: int, now: float) -> Write:
        assert value not in self.writes, f"{value} is written to {self.name} twice"
        made = self.writes[value] = Write(value, now)
        return made

    def check(self) -> list[str]:
        found = self._check_sources()
        happened = {write.value: Write(write.value, write.sent_at, write.acked_at) for write in self.writes.values()}
        for read in self.reads:  # what was seen by one has happened for all
            if read.value in happened:
                write = happened[read.value]
                write.acked_at = min(write.acked_at, read.ended_at)
        acked = sorted(
            (write for write in happened.values() if write.acked_at < math.inf), key=lambda each: each.acked_at
        )
        times = [write.acked_at for write in acked]
        latest: list[Write] = list(accumulate(acked, _later))
        for read in self.reads:
            over_at = happened[read.value].acked_at if read.value in happened else -math.inf
            before = bisect_left(times, read.began_at)
            if before and latest[before - 1].sent_at > over_at:
                newer = latest[before - 1]
                found.append(
                    f"{self.name}: went back: {read.value} read at {read.ended_at:.3f} ({read.who}), after "
                    f"{newer.value} was committed at {newer.acked_at:.3f}"
                )
        return found

    def _check_sources(self) -> list[str]:
        found = []
        for read in self.reads:
            write = self.writes.get(read.value)
            if write is None:
                if read.value != NOTHING:
                    found.append(f"{self.name}: {read.value} was read ({read.who}) and never committed by anybody")
            elif write.refused:
                found.append(f"{self.name}: {read.value} was read ({read.who}), its commit was refused or taken back")
            elif read.ended_at < write.sent_at:
                found.append(
                    f"{self.name}: {read.value} was read at {read.ended_at:.3f} ({read.who}), before it was to count "
                    f"at {write.sent_at:.3f}"
                )
        return found


def _later(one: Write, other: Write) -> Write:
    return one if one.sent_at > other.sent_at else other


def check_registers(registers: Sequence[Register]) -> list[str]:
    return [text for register in registers for text in register.check()]


class Terms:
    """Since when the epochs of partitions are over, by the truth of etcd."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._begins: dict[tuple[UUID, int], dict[int, float]] = {}
        state = world.cluster.etcd.state
        self._told = state.on_change
        state.on_change = self._on_change

    def _on_change(self, changes: list[Change]) -> None:
        for change in changes:
            if change.key.startswith(keys.PARTITIONS) and change.value is not None:
                epoch = PartitionState.decode(change.value, change.revision).leader_epoch
                begins = self._begins.setdefault(keys.read_partition_key(change.key), {})
                begins.setdefault(epoch, self._world.loop.time())
        if self._told is not None:
            self._told(changes)

    def valid_until(self, topic_id: UUID, index: int, epoch: int) -> float:
        """When the next epoch began: who leads in this one knows of everything acknowledged until then."""
        begins = self._begins.get((topic_id, index), {})
        return min((at for later, at in begins.items() if later > epoch), default=math.inf)
