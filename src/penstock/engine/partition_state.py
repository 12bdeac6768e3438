"""What the cluster has decided about one partition: who holds it, who is in sync, who leads, in which epoch.

It changes by compare-and-swap in the metadata store only, one key for each partition. `isr` members hold everything
that was acknowledged. `elr` members (KIP-966) left `isr` when it fell below the least number that acknowledging needs:
nothing was acknowledged since, so they hold everything too. `last` are those of both that started uncleanly when too
few others were there; see `cluster/election.py` for what becomes of them. While there are any of either, nothing new
may be acknowledged.

A partition that moves to other brokers has all of them in `replicas`, old and new, until those of `target` are in sync.
"""

from collections.abc import Collection, Iterable, Sequence
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
    target: tuple[int, ...] = ()
    """Who shall hold it, while it moves."""
    origin: tuple[int, ...] = ()
    """Who held it before it moved; the target of a move that is taken back."""
    forced_epoch: int = -1
    """The last epoch whose leader an operator chose although it may lack what was acknowledged; -1 if none did."""

    def encode(self) -> bytes:
        return orjson.dumps(
            {
                "replicas": self.replicas,
                "isr": self.isr,
                "leader": self.leader,
                "leader_epoch": self.leader_epoch,
                "elr": self.elr,
                "last": self.last,
                **({"target": self.target, "origin": self.origin} if self.target else {}),
                **({"forced_epoch": self.forced_epoch} if self.forced_epoch >= 0 else {}),
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
            tuple(fields.get("target", ())),
            tuple(fields.get("origin", ())),
            fields.get("forced_epoch", -1),
        )

    @property
    def width(self) -> int:
        """How many replicas it has, or had before it moved: what the least number in sync goes by."""
        return len(self.origin or self.replicas)

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

    def move_to(self, target: Sequence[int]) -> "PartitionState":
        """The same on its way to other brokers; `origin` takes a move back. Who holds it now goes when they have it."""
        origin = self.origin or self.replicas
        staying = (replica for replica in self.replicas if replica not in target)
        return replace(self, replicas=(*target, *staying), target=tuple(target), origin=origin)

    def is_arrived(self, min_isr: int, absent: Collection[int] = ()) -> bool:
        """Whether who else holds a moving partition is not needed any more: all of `target` are in sync.

        Of those that held it before only as many must be as acknowledging needs, if the move is taken back or they are
        `absent`: they may have been gone before, and be what somebody moves away from next.
        """
        there = sum(replica in self.isr for replica in self.target)
        least = min(min_isr, len(self.target))
        if set(self.target) == set(self.origin):
            needed = least
        else:
            spared = sum(each in self.origin and each in absent and each not in self.isr for each in self.target)
            needed = max(len(self.target) - spared, least)
        return 0 < needed <= there and not self.elr and not self.last

    def arrived(self) -> "PartitionState":
        """The same at the end of its way. The leader may be one that does not hold it any more."""
        isr = tuple(replica for replica in self.target if replica in self.isr)
        return replace(self, replicas=self.target, isr=isr, target=(), origin=())

    def led_by(self, leader: int) -> "PartitionState":
        """The same in the next epoch."""
        return replace(self, leader=leader, leader_epoch=self.leader_epoch + 1)


def alone(node_id: int, leader_epoch: int) -> PartitionState:
    """Of a partition that only this broker has."""
    return PartitionState((node_id,), (node_id,), node_id, leader_epoch)
