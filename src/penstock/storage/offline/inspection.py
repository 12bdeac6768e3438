"""Look at a whole data directory without changing it: format, owners, metadata against directories, every log."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import orjson

from penstock.ports.disk import Disk
from penstock.storage import checked_file
from penstock.storage.checked_file import DamagedFile
from penstock.storage.data_directory import FORMAT_VERSION
from penstock.storage.kept_ends import FILE_NAME as ENDS_NAME
from penstock.storage.kept_ends import Ends, end_of, load_ends
from penstock.storage.log.segment import LOG_SUFFIX
from penstock.storage.offline.catalogue import Catalogue, Intent
from penstock.storage.offline.findings import NEXT_START, NOTHING, REPAIR, Finding, Kind, Severity, Start
from penstock.storage.offline.log_inspection import OWNER_NAME, inspect_partition
from penstock.storage.offline.partition_report import PartitionReport
from penstock.storage.offline.segment_files import segment_names

REMOVED = "~removed"
DAMAGED = "~damaged"
_NEWEST_ANY = 0xFFFF
_KNOWN = frozenset({"format", "clean-shutdown", ".lock", "meta", "logs"})


@dataclass(frozen=True, slots=True)
class Owner:
    """A partition's directory, and whose it is as far as that can be told."""

    topic: str
    partition: int
    path: str
    topic_id: UUID | None = None
    problem: str | None = None
    is_empty: bool = False
    """A creation that was cut short: nothing was written yet."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(slots=True)
class DirectoryReport:
    path: str
    owners: list[Owner] = field(default_factory=list)
    partitions: list[PartitionReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """Of the directory and all its partitions."""
    clean_ends: dict[str, int] = field(default_factory=dict)
    """By the mark of a clean stop, if there is one."""
    kept_ends: Ends = field(default_factory=dict)
    """By the metadata's directory."""
    from_later_release: bool = False

    @property
    def damage(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_damage]

    def known_end(self, topic: str, topic_id: UUID | None, partition: int) -> int:
        """Up to where a log was durable, by others than its own files; 0 if nobody knows."""
        kept = end_of(self.kept_ends, topic_id, partition) if topic_id is not None else 0
        return max(self.clean_ends.get(f"{topic}-{partition}", 0), kept)


def find_owners(disk: Disk, path: str, topics: Iterable[str] = ()) -> list[Owner]:
    """Every partition directory, of some topics or of all."""
    wanted = frozenset(topics)
    found = []
    for topic in disk.list_dir(f"{path}/logs"):
        if topic in (REMOVED, DAMAGED) or (wanted and topic not in wanted) or not disk.is_dir(f"{path}/logs/{topic}"):
            continue
        numbers = [name for name in disk.list_dir(f"{path}/logs/{topic}") if name.isdigit()]
        found += [_owner(disk, topic, int(name), f"{path}/logs/{topic}/{name}") for name in sorted(numbers, key=int)]
    return found


def log_bytes(disk: Disk, owners: Iterable[Owner]) -> int:
    """What a look at these partitions will read, about."""
    total = 0
    for owner in owners:
        for name in segment_names(disk.list_dir(owner.path)):
            try:
                file = disk.open(f"{owner.path}/{name}{LOG_SUFFIX}")
            except FileNotFoundError:
                continue
            total += file.size()
            file.close()
    return total


def inspect_directory(
    disk: Disk,
    path: str,
    catalogue: Catalogue,
    *,
    topics: Iterable[str] = (),
    deep: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> DirectoryReport:
    """Check a data directory, or some topics in it. Blocking; reads every segment once, a window at a time."""
    wanted = frozenset(topics)
    look = _Look(disk, DirectoryReport(path), catalogue)
    look.format()
    look.clean_mark()
    look.kept_ends()  # before the logs: a broker may run, and they grow
    look.names()
    report = look.report
    report.owners = find_owners(disk, path, wanted)
    look.metadata()
    look.compare(wanted)
    held = catalogue.held
    for owner in report.owners:
        look.owner(owner)
        if owner.is_empty:
            continue
        entry = held.get(owner.topic)
        partition = inspect_partition(
            disk,
            owner.path,
            owner.name,
            expected_end=report.known_end(owner.topic, owner.topic_id, owner.partition),
            deep=deep,
            compacted=entry is not None and "compact" in entry.settings.get("cleanup.policy", ""),
            advance=advance,
        )
        report.partitions.append(partition)
        report.findings += partition.findings
    return report


class _Look:
    """The parts of a look at a directory; each adds its findings."""

    def __init__(self, disk: Disk, report: DirectoryReport, catalogue: Catalogue) -> None:
        self._disk = disk
        self._catalogue = catalogue
        self.report = report

    def format(self) -> None:
        path = f"{self.report.path}/format"
        try:
            version, _ = checked_file.decode(b"frmt", _NEWEST_ANY, _read(self._disk, path), path)
        except FileNotFoundError:
            if self._disk.exists(f"{self.report.path}/logs"):
                self._add(Kind.FORMAT, False, path, "the directory has no format file", Start.MENDS, NEXT_START)
        except DamagedFile as error:
            self._add(Kind.FORMAT, True, path, f"{error}; it says only which release wrote here", Start.REFUSES, REPAIR)
        else:
            if version > FORMAT_VERSION:
                self.report.from_later_release = True
                what = f"{path}: format version {version}; this release reads up to {FORMAT_VERSION}"
                self._add(Kind.FORMAT, True, path, what, Start.REFUSES, "use the release that wrote it, or a later one")

    def clean_mark(self) -> None:
        path = f"{self.report.path}/clean-shutdown"
        try:
            self.report.clean_ends = orjson.loads(checked_file.load(self._disk, path, b"clsd", 1))
        except FileNotFoundError:
            return
        except DamagedFile as error:
            what = f"{error}; the next start looks at the logs as after a crash"
            self._add(Kind.FORMAT, True, path, what, Start.MENDS, NEXT_START)

    def kept_ends(self) -> None:
        directory = f"{self.report.path}/meta"
        try:
            self.report.kept_ends = load_ends(self._disk, directory)
        except DamagedFile as error:
            what = f"{error}; the next start does not notice an old copy of a log"
            self._add(Kind.FORMAT, True, f"{directory}/{ENDS_NAME}", what, Start.MENDS, NEXT_START)

    def names(self) -> None:
        for name in self._disk.list_dir(self.report.path):
            path = f"{self.report.path}/{name}"
            if name in _KNOWN:
                continue
            if name.endswith(".tmp"):
                self._leftover(path, "a file not finished when the broker stopped", Start.IGNORES)
            else:
                self._leftover(path, "no file of a data directory", Start.IGNORES)
        for name in self._disk.list_dir(f"{self.report.path}/logs/{REMOVED}"):
            path = f"{self.report.path}/logs/{REMOVED}/{name}"
            self._leftover(path, "records of a deleted topic on their way out", Start.MENDS)

    def metadata(self) -> None:
        catalogue = self._catalogue
        for intent in catalogue.intents:
            what = f"{intent.deed} topic {intent.topic} ({intent.topic_id}) was under way"
            self._add(Kind.INTENT, False, catalogue.path, what, Start.MENDS, NEXT_START)
        if catalogue.problem is not None:
            what = f"{catalogue.problem}; topics, settings, producer ids and the cluster id are in it"
            self._add(Kind.METADATA, True, catalogue.path, what, Start.REFUSES, REPAIR)
        elif catalogue.is_lost and any(not owner.is_empty for owner in self.report.owners):
            what = "is missing" if not catalogue.exists else "is empty"
            what = f"{catalogue.path} {what}, but there are partitions"
            self._add(Kind.METADATA, True, catalogue.path, what, Start.REFUSES, REPAIR)

    def compare(self, wanted: frozenset[str]) -> None:
        """Topics on record against directories."""
        catalogue, report = self._catalogue, self.report
        if catalogue.is_lost:
            return
        held = catalogue.held
        unfinished = {intent.topic_id: intent for intent in catalogue.intents}
        present = {(owner.topic, owner.partition) for owner in report.owners if not owner.is_empty}
        for owner in report.owners:
            entry = held.get(owner.topic)
            known = entry is not None and owner.partition < entry.partitions
            known = known and owner.topic_id in (None, entry.topic_id if entry else None)
            if not known and not self._is_undone(owner, unfinished) and not owner.is_empty:
                what = f"{owner.path} belongs to no topic on record: the metadata is from another time or broker"
                way_out = f"restore {catalogue.path}, or move the directory out of logs/ to go on without it"
                self._add(Kind.STRANGER, True, owner.path, what, Start.REFUSES, way_out, owner.name)
        for topic, entry in sorted(held.items()):
            for index in range(entry.partitions):
                if (topic, index) not in present and (not wanted or topic in wanted):
                    path = f"{report.path}/logs/{topic}/{index}"
                    way_out = "restore it from a backup, or 'penstock log repair --recreate-missing' for an empty one"
                    what = f"{path} is missing, topic {topic} has {entry.partitions} partitions"
                    self._add(Kind.MISSING_PARTITION, True, path, what, Start.OFFLINE, way_out, f"{topic}-{index}")

    def _is_undone(self, owner: Owner, unfinished: Mapping[UUID, Intent]) -> bool:
        """Whether a start takes the directory away: a creation cut short has no records, a removal may."""
        intent = unfinished.get(owner.topic_id) if owner.topic_id is not None else None
        if intent is None or owner.partition < intent.first_partition:
            return False
        return intent.is_removal or log_bytes(self._disk, [owner]) == 0

    def owner(self, owner: Owner) -> None:
        if owner.problem is not None:
            path = f"{owner.path}/{OWNER_NAME}"
            self._add(Kind.OWNER, True, path, owner.problem, Start.REFUSES, REPAIR, owner.name)
        elif owner.is_empty:
            self._leftover(owner.path, "a partition whose creation was cut short; nothing is in it", Start.IGNORES)

    def _leftover(self, path: str, what: str, start: Start) -> None:
        way_out = NOTHING if start is Start.IGNORES else NEXT_START
        self._add(Kind.LEFTOVER, False, path, what, start, way_out)

    def _add(
        self, kind: Kind, is_damage: bool, path: str, what: str, start: Start, way_out: str, partition: str = ""
    ) -> None:
        severity = Severity.DAMAGE if is_damage else Severity.HARMLESS
        self.report.findings.append(Finding(kind, severity, path, what, start, way_out, partition))


def _owner(disk: Disk, topic: str, partition: int, path: str) -> Owner:
    meta = f"{path}/{OWNER_NAME}"
    try:
        told = orjson.loads(checked_file.load(disk, meta, b"part", 1))
        topic_id = UUID(told["topic_id"])
    except FileNotFoundError:
        if segment_names(disk.list_dir(path)):
            return Owner(topic, partition, path, problem=f"{path} has segments but no {OWNER_NAME}")
        return Owner(topic, partition, path, is_empty=True)
    except DamagedFile as error:
        return Owner(topic, partition, path, problem=str(error))
    except (ValueError, KeyError, TypeError) as error:
        return Owner(topic, partition, path, problem=f"{meta}: names no owner ({error})")
    if told["topic"] != topic or told["partition"] != partition:
        moved = f"{path} belongs to {told['topic']}-{told['partition']}: it was moved; put it back where it was"
        return Owner(topic, partition, path, topic_id, moved)
    return Owner(topic, partition, path, topic_id)


def _read(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return file.read_at(file.size(), 0)
    finally:
        file.close()
