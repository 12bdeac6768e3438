"""What the cluster has decided about one partition: who holds it, who is in sync, who leads, in which epoch.

It changes by compare-and-swap in the metadata store only, one key for each partition. `isr` members hold everything
that was acknowledged. `elr` members (KIP-966) left `isr` when it fell below the least number that acknowledging needs:
nothing was acknowledged since, so they hold everything too. `last` are those of both that started uncleanly when too
few others were there; see `cluster/election.py` for what becomes of them. While there are any of either, nothing new
may be acknowledged.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import orjson

NOBODY = -1


@dataclass(frozen=True, slots=True)
class PartitionState:
    replicas: tuple[int, ...]
    """Brokers that hold it; the first is the one that should lead."""
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    elr: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    revision: int = 0
    """Of its key in the metadata store; rises with every change, and is what a change must expect."""

    def encode(self) -> bytes:
        return orjson.dumps(
            {
                "replicas": self.replicas,
                "isr": self.isr,
                "leader": self.leader,
                "leader_epoch": self.leader_epoch,
                "elr": self.elr,
                "last": self.last,
            }
        )

    @classmethod
    def decode(cls, value: bytes, revision: int) -> "PartitionState":
        fields = orjson.loads(value)
        return cls(
            tuple(fields["replicas"]),
            tuple(fields["isr"]),
            fields["leader"],
            fields["leader_epoch"],
            tuple(fields["elr"]),
            tuple(fields["last"]),
            revision,
        )

    def with_isr(self, members: Iterable[int], min_isr: int) -> "PartitionState":
        """The same with other members in sync. Who leaves when too few stay is eligible to lead.

        When enough are in sync, nobody else holds what will be acknowledged: `elr` and `last` are over.
        """
        wanted = set(members)
        isr = tuple(replica for replica in self.replicas if replica in wanted)
        elr: tuple[int, ...] = ()
        last: tuple[int, ...] = ()
        if len(isr) < min_isr:
            holders = {*self.elr, *self.isr}
            elr = tuple(replica for replica in self.replicas if replica in holders and replica not in wanted)
            last = tuple(replica for replica in self.last if replica not in wanted)
        return replace(self, isr=isr, elr=elr, last=last)

    def without(self, members: Collection[int]) -> "PartitionState":
        """The same without `members` in `isr` and `elr`: what they hold cannot be trusted.

        If nobody is left, they are remembered in `last`.
        """
        isr = tuple(replica for replica in self.isr if replica not in members)
        elr = tuple(replica for replica in self.elr if replica not in members)
        last = self.last
        if not isr and not elr:
            doubtful = {*self.isr, *self.elr, *self.last}
            last = tuple(replica for replica in self.replicas if replica in doubtful)
        return replace(self, isr=isr, elr=elr, last=last)

    def led_by(self, leader: int) -> "PartitionState":
        """The same in the next epoch."""
        return replace(self, leader=leader, leader_epoch=self.leader_epoch + 1)


def alone(node_id: int, leader_epoch: int) -> PartitionState:
    """Of a partition that only this broker has."""
    return PartitionState((node_id,), (node_id,), node_id, leader_epoch)
