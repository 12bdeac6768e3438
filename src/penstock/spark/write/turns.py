"""Who may write which sequence numbers of a shared transaction: a pure state machine over the entries of one log.

Kafka takes a producer's batches of a partition in the order of their sequence numbers, and holds a repeated number for
a repeated batch. Tasks that share a producer id must therefore never use a number twice. They agree by a log, whose
order is the same for all:

    claim  a task wants to write so many records to these partitions; its numbers follow those of all claims before
    done   what was claimed is in the topics; now those behind it that share a partition may write
    seal   the driver commits what was claimed before, nothing behind; a claim behind it must not write

An entry may stand in the log twice (its writer heard no answer and wrote again); the first one counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

TopicPartition = tuple[str, int]
Counts = Mapping[TopicPartition, int]


class Claim(NamedTuple):
    """What an attempt of a task wants to write."""

    task: int
    attempt: int
    counts: Counts


@dataclass(slots=True)
class Turns:
    claims: dict[str, Claim] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    sealed: bool = False

    def claim(self, name: str, claim: Claim) -> None:
        if not self.sealed:
            self.claims.setdefault(name, claim)

    def finish(self, name: str) -> None:
        self.done.add(name)

    def seal(self) -> None:
        self.sealed = True

    def is_due(self, name: str) -> bool:
        """Whether the claim is in the log and every earlier one on a partition of its own is done."""
        if name not in self.claims:
            return False
        wanted = self.claims[name].counts.keys()
        for earlier, claim in self.claims.items():
            if earlier == name:
                return True
            if earlier not in self.done and not wanted.isdisjoint(claim.counts):
                return False
        raise AssertionError("unreachable: the claim is among the claims")

    def first_sequences(self, name: str) -> dict[TopicPartition, int]:
        """The number each partition's first record has."""
        firsts = dict.fromkeys(self.claims[name].counts, 0)
        for earlier, claim in self.claims.items():
            if earlier == name:
                break
            for partition in firsts.keys() & claim.counts.keys():
                firsts[partition] += claim.counts[partition]
        return firsts

    def has_rival(self, task: int, attempt: int) -> bool:
        """Whether another attempt of a task has claimed: then one of them wrote what is not to be counted."""
        return any(claim.task == task and claim.attempt != attempt for claim in self.claims.values())
