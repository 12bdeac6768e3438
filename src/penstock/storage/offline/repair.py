"""Mend a data directory whose broker is stopped: the plan first, each step durable by itself, nothing ever deleted.

What a start mends by itself is left to it. What only a person can decide (a directory that was moved, a topic nobody
knows) is explained, not guessed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import orjson

from penstock.errors import StartupError
from penstock.ports.disk import DirectoryLock, Disk
from penstock.storage import checked_file
from penstock.storage.attached_names import attached_id, split_name
from penstock.storage.checked_file import save_all
from penstock.storage.data_directory import FORMAT_VERSION, DataDirectory
from penstock.storage.log.state import FILE_NAME as STATE_NAME
from penstock.storage.log.state import LogState
from penstock.storage.offline.catalogue import Catalogue, TopicEntry
from penstock.storage.offline.findings import RESTORE, Finding, Kind, Start
from penstock.storage.offline.inspection import DirectoryReport, Owner
from penstock.storage.offline.log_inspection import OWNER_NAME
from penstock.storage.offline.log_repair import Step, keep_copy, plan_partition

PRODUCER_ID_MARGIN = 1_000_000
"""Ids left out above the largest one seen: those may be in the hands of producers that have not written yet."""
KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The settings of a topic that has lost its own: nothing goes because knowledge about it is missing."""
_ID_BLOCK = 1000
_MENDED = frozenset({Kind.BATCHES, Kind.BLOCK, Kind.HOLE, Kind.CARD, Kind.STATE, Kind.GAPS, Kind.SHORT, Kind.SNAPSHOT})


@dataclass(slots=True)
class Plan:
    steps: list[Step] = field(default_factory=list)
    catalogue: Catalogue | None = None
    """What a new metadata store should say, when the old one is lost."""
    notes: list[str] = field(default_factory=list)
    """What a person should know before saying yes."""
    left: list[Finding] = field(default_factory=list)
    """Damage that this repair does not mend."""

    @property
    def is_empty(self) -> bool:
        return not self.steps and self.catalogue is None


def take_lock(disk: Disk, path: str) -> DirectoryLock:
    """The lock a broker holds while it runs. Raises `StartupError` when one does."""
    try:
        return disk.lock(f"{path}/.lock")
    except BlockingIOError:
        raise StartupError(f"data directory {path} is in use by a broker; stop it before repairing") from None


def make_plan(
    report: DirectoryReport,
    catalogue: Catalogue,
    now_ms: int,
    new_cluster_id: str,
    *,
    recreate_missing: bool = False,
    whole: bool = True,
) -> Plan:
    """What to do about an inspection's findings. Nothing is changed yet.

    Args:
        new_cluster_id: used when the old one is lost.
        recreate_missing: make empty partitions for those whose directory is gone.
        whole: the report covers the whole directory, not only some topics; metadata is rebuilt only then.

    Raises:
        StartupError: the directory was written by a later release.
    """
    if report.from_later_release:
        raise StartupError(f"{report.path} was written by a later release; use that one to repair it")
    plan = Plan()
    ids = _topic_ids(report, catalogue)
    handled: set[str] = set()
    for finding in report.damage:
        if finding.kind is Kind.FORMAT and finding.start is Start.REFUSES:
            plan.steps.append(_format_step(finding.path))
            handled.add(finding.path)
    for owner in report.owners:
        if owner.problem is not None and owner.topic_id is None and owner.topic in ids:
            plan.steps.append(_owner_step(owner, ids[owner.topic]))
            handled.add(f"{owner.path}/{OWNER_NAME}")
    ends = {
        owner.name: report.known_end(owner.topic, owner.topic_id or ids.get(owner.topic), owner.partition)
        for owner in report.owners
    }
    for partition in report.partitions:
        plan.steps += plan_partition(partition, now_ms, ends.get(partition.name))
    if recreate_missing and not catalogue.is_lost:
        for finding in report.damage:
            if finding.kind is Kind.MISSING_PARTITION:
                plan.steps.append(_recreate_step(report, finding, catalogue))
                handled.add(finding.path)
    if any(finding.kind is Kind.METADATA for finding in report.damage):
        handled |= _plan_metadata(plan, report, catalogue, ids, new_cluster_id, whole)
    plan.left = [
        finding
        for finding in report.damage
        if finding.path not in handled
        and finding.start is not Start.MENDS
        and (finding.kind not in _MENDED or finding.way_out == RESTORE)
    ]
    return plan


def _topic_ids(report: DirectoryReport, catalogue: Catalogue) -> dict[str, UUID]:
    """The id of each topic that has one id only, by the metadata or by its partitions."""
    ids = {name: entry.topic_id for name, entry in catalogue.held.items()}
    for topic in {owner.topic for owner in report.owners}:
        told = {
            owner.topic_id for owner in report.owners if owner.topic == topic and owner.topic_id and not owner.problem
        }
        if topic not in ids and len(told) == 1:
            ids[topic] = next(each for each in told if each is not None)
    return ids


# --- steps


def _format_step(path: str) -> Step:
    def apply(disk: Disk) -> list[str]:
        kept = [keep_copy(disk, path)]
        text = orjson.dumps({"penstock": "data directory", "format": FORMAT_VERSION})
        checked_file.save(disk, path, b"frmt", FORMAT_VERSION, text)
        return kept

    return Step(path, f"write the format file anew, for format {FORMAT_VERSION}", apply)


def _owner_step(owner: Owner, topic_id: UUID) -> Step:
    path = f"{owner.path}/{OWNER_NAME}"

    def apply(disk: Disk) -> list[str]:
        kept = [keep_copy(disk, path)] if disk.exists(path) else []
        text = orjson.dumps({"topic": owner.topic, "topic_id": str(topic_id), "partition": owner.partition})
        checked_file.save(disk, path, b"part", 1, text)
        return kept

    return Step(path, f"name {owner.topic} ({topic_id}), partition {owner.partition}, as the owner", apply, owner.name)


def _recreate_step(report: DirectoryReport, finding: Finding, catalogue: Catalogue) -> Step:
    topic, _, index = finding.partition.rpartition("-")
    topic_id = catalogue.held[topic].topic_id
    end = report.known_end(topic, topic_id, int(index))

    def apply(disk: Disk) -> list[str]:
        directory = DataDirectory(disk, report.path)
        [path] = directory.create_partitions(topic, topic_id, [int(index)])
        save_all(disk, {f"{path}/{STATE_NAME}": LogState(log_start=end, producers_at=end).encode()})
        return []

    known = f"from offset {end} on, where it ended" if end else "from offset 0 on; where it ended is not known"
    return Step(finding.path, f"make an empty partition, {known}", apply, finding.partition)


# --- metadata


def _plan_metadata(
    plan: Plan,
    report: DirectoryReport,
    catalogue: Catalogue,
    ids: Mapping[str, UUID],
    new_cluster_id: str,
    whole: bool,
) -> set[str]:
    """Returns the paths of findings that the new store settles."""
    mixed = sorted({owner.topic for owner in report.owners if not owner.is_empty and owner.topic not in ids})
    if not whole:
        plan.notes.append(f"{catalogue.path} is lost; it can be rebuilt only when the whole directory is repaired")
        return set()
    if mixed:
        names = ", ".join(mixed)
        plan.notes.append(
            f"{catalogue.path} cannot be rebuilt: whose {names} is cannot be told; move it out of logs/ and try again"
        )
        return set()
    plan.catalogue = rebuild_catalogue(report, catalogue, ids, new_cluster_id)
    _explain_rebuild(plan, catalogue, plan.catalogue)
    return {catalogue.path}


def rebuild_catalogue(
    report: DirectoryReport, salvaged: Catalogue, ids: Mapping[str, UUID], new_cluster_id: str
) -> Catalogue:
    """A catalogue out of the partitions' own files, and of what could still be read of the old one."""
    epochs: dict[str, int] = {}
    largest_id = -1
    for partition in report.partitions:
        topic = partition.name.rpartition("-")[0]
        latest = partition.state.epochs.latest if partition.state is not None else -1
        epochs[topic] = max(epochs.get(topic, -1), latest, partition.largest_epoch)
        noted = [row[0] for row in partition.state.producers.dump()] if partition.state is not None else []
        largest_id = max(
            [largest_id, partition.largest_producer_id, *(each for each in noted if isinstance(each, int))]
        )
    topics = {}
    names = sorted({owner.topic for owner in report.owners if not owner.is_empty})
    for topic in [name for name in names if split_name(name) is None]:
        old = salvaged.topics.get(topic)
        old = old if old is not None and old.topic_id == ids[topic] else None
        beside = {name: split[1] for name in names if (split := split_name(name)) is not None and split[0] == topic}
        beside = {name: kind for name, kind in beside.items() if ids[name] == attached_id(ids[topic], kind)}
        with_attached = (topic, *beside)
        count = 1 + max(o.partition for o in report.owners if o.topic in with_attached and not o.is_empty)
        known = old.attached if old is not None else {}
        topics[topic] = TopicEntry(
            ids[topic],
            max(count, old.partitions if old is not None else 0),
            max(*(epochs.get(name, -1) for name in with_attached), old.leader_epoch if old is not None else -1) + 1,
            old.settings if old is not None else KEEP_ALL,
            {**known, **{kind: known.get(kind, KEEP_ALL) for kind in beside.values()}},
            old.queues if old is not None else {},
        )
    return Catalogue(
        salvaged.path,
        salvaged.cluster_id or new_cluster_id,
        topics,
        next_producer_id=_next_producer_id(largest_id, salvaged),
        groups=salvaged.groups,
    )


def _next_producer_id(largest_seen: int, salvaged: Catalogue) -> int:
    above = max(largest_seen + 1, salvaged.next_producer_id) + PRODUCER_ID_MARGIN
    return -(-above // _ID_BLOCK) * _ID_BLOCK


def _explain_rebuild(plan: Plan, old: Catalogue, new: Catalogue) -> None:
    kept = {
        name for name, entry in new.topics.items() if name in old.topics and old.topics[name].settings == entry.settings
    }
    bare = sorted(set(new.topics) - kept)
    notes = plan.notes
    notes.append(f"{old.path} is rebuilt with {len(new.topics)} topics out of the partitions' own files")
    if bare:
        notes.append(
            f"the settings of {_names(bare)} are lost: they get the defaults, but keep all records; set retention.ms "
            "and what else they had again with 'penstock topic alter'"
        )
        notes.append(f"partitions of {_names(bare)} above the last directory found are not known of any more")
    gone = sorted(set(old.topics) - set(new.topics))
    if gone:
        notes.append(f"{_names(gone)} had no directory and are left out")
    if old.cluster_id is None:
        notes.append(f"the cluster id is lost; the new one is {new.cluster_id}")
    notes.append(f"producer ids go on from {new.next_producer_id}, above every one seen")


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
