"""Logs that end before what is known to have been durable: an operator says that they are gone on with as they are.

Somebody put an old copy in their place, or lost the newest of them. Going on means that offsets which were given out
are given out again, for other records; `repair` leaves them empty instead. Only that somebody else knows better can be
accepted here: what a log's own files miss is damage.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from penstock.ports.disk import Disk
from penstock.storage.data_directory import DataDirectory
from penstock.storage.kept_ends import save_ends
from penstock.storage.offline.inspection import DirectoryReport, Owner, find_owners
from penstock.storage.offline.log_inspection import inspect_partition


@dataclass(frozen=True, slots=True)
class OlderLog:
    name: str
    path: str
    topic_id: UUID
    partition: int
    end_offset: int
    """Where it goes on."""
    known_end: int
    """Up to where it was durable once."""
    is_damaged: bool
    """Also by itself: it has to be repaired."""


def find_older(disk: Disk, report: DirectoryReport, owners: Iterable[Owner]) -> list[OlderLog]:
    """Those of `owners` whose partitions a start keeps offline because they once reached further. Blocking."""
    inspected = {partition.name: partition for partition in report.partitions}
    found = []
    for owner in owners:
        partition = inspected.get(owner.name)
        if owner.topic_id is None or partition is None:
            continue
        known = report.known_end(owner.topic, owner.topic_id, owner.partition)
        alone = inspect_partition(disk, owner.path, owner.name, compacted=partition.compacted)
        damage = [finding for finding in alone.findings if finding.is_damage]
        torn = not damage and any(finding.is_damage for finding in partition.findings)
        if alone.end_offset < known or torn:
            found.append(
                OlderLog(owner.name, owner.path, owner.topic_id, owner.partition, alone.end_offset, known, bool(damage))
            )
    return found


def accept(disk: Disk, report: DirectoryReport, logs: Iterable[OlderLog]) -> None:
    """Forget that these logs reached further; the next start keeps where it finds them to end. Blocking.

    The mark of a clean stop goes, and what it knows of other logs is kept. Without it the next start begins a new
    leader epoch everywhere, by which clients tell records that are given an offset again from those that had it.
    """
    directory = DataDirectory(disk, report.path)
    ends = {topic_id: list(each) for topic_id, each in report.kept_ends.items()}
    for owner in find_owners(disk, report.path):
        if owner.topic_id is not None:
            known = report.known_end(owner.topic, owner.topic_id, owner.partition)
            _put(ends.setdefault(owner.topic_id, []), owner.partition, known)
    for log in logs:
        _put(ends[log.topic_id], log.partition, 0)
    save_ends(disk, directory.metadata_path, ends)
    directory.remove_clean_mark()


def _put(ends: list[int], partition: int, end: int) -> None:
    ends.extend([0] * (partition + 1 - len(ends)))
    ends[partition] = end
