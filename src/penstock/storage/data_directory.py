"""A broker's data directory: the lock, the format version, who owns each partition directory, the clean-shutdown mark.

format                      what wrote this directory
clean-shutdown              present only between a clean stop and the next start: where each log ended
.lock                       held by the broker that uses it
meta/metadata.db            a broker's on its own: its metadata store
cluster                     a cluster member's: which one (`cluster/member_file.py`)
logs/{topic}/{partition}/   one log each, with `partition.meta` naming topic id and partition
logs/{topic}~{kind}/{partition}/  the same of what is attached to the partition (`attached_names.py`)
logs/~removed/              logs of deleted topics on their way out
logs/~damaged/              damaged replicas, kept until their partition is in sync again
"""

import errno
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import orjson

from penstock import obstacles
from penstock.errors import StartupError, WrongSettings
from penstock.ports.disk import DirectoryLock, Disk
from penstock.storage import checked_file
from penstock.storage.attached_names import attached_id, split_name
from penstock.storage.checked_file import DamagedFile

FORMAT_VERSION = 1
METADATA_FILE = "metadata.db"
MEMBER_FILE = "cluster"
_REMOVED = "~removed"  # no topic can have this name
_DAMAGED = "~damaged"
_CLEAN_MARK = "clean-shutdown"
_INCARNATION = ""


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    topic: str
    topic_id: UUID
    partition: int
    path: str


class DataDirectory:
    """Blocking; call through `disk.run`."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._lock: DirectoryLock | None = None
        self._removals = 0

    @property
    def metadata_path(self) -> str:
        return f"{self.path}/meta"

    def check_owner(self, *, is_member: bool) -> None:
        """Whether the directory is that of a broker of this kind, on its own or in a cluster. Changes nothing.

        Raises:
            WrongSettings: it is the other kind's.
        """
        was_member = self._disk.exists(f"{self.path}/{MEMBER_FILE}")
        metadata = f"{self.metadata_path}/{METADATA_FILE}"
        was_alone = self._disk.exists(metadata)
        if was_member and not was_alone and not is_member:  # an earlier release let an empty one be both
            raise WrongSettings(
                f"data directory {self.path} belongs to a broker of a cluster ({self.path}/{MEMBER_FILE} says which); "
                "start it as that one (--cluster STORE, --node-id N), or choose another --data-dir"
            )
        if is_member and was_alone and not was_member:
            raise WrongSettings(
                f"data directory {self.path} belongs to a broker on its own ({metadata}), and a cluster knows nothing "
                "of its topics; start it without --cluster, or choose another --data-dir. If it never had a topic that "
                "is wanted, remove the directory"
            )

    def open(self) -> None:
        """Take the directory.

        Raises:
            StartupError: it is in use, or from a later release.
            WrongSettings: no directory can be there, or it is not for this user.
        """
        try:
            self._take()
        except OSError as error:
            raise self._unusable(error) from error

    def _take(self) -> None:
        self._disk.make_dirs(f"{self.path}/logs/{_REMOVED}")  # now: on a full disk deleting a topic needs it
        try:
            self._lock = self._disk.lock(f"{self.path}/.lock")
        except BlockingIOError:
            raise StartupError(
                f"data directory {self.path} is in use by another broker; stop it or choose another --data-dir"
            ) from None
        self._disk.sync_dir(self.path)  # a start cut short may have left `logs` unsynced
        path = f"{self.path}/format"
        try:
            payload = checked_file.load(self._disk, path, b"frmt", FORMAT_VERSION)
            orjson.loads(payload)
        except FileNotFoundError:
            note = orjson.dumps({"penstock": "data directory", "format": FORMAT_VERSION})
            checked_file.save(self._disk, path, b"frmt", FORMAT_VERSION, note)
        except DamagedFile as error:
            raise StartupError(
                f"{error}; if the rest of the directory is sound, remove this one file and start again"
            ) from error

    def _unusable(self, error: OSError) -> Exception:
        if isinstance(error, FileExistsError):
            return WrongSettings(f"data directory {self.path}: {error.filename} is a file; choose another --data-dir")
        if obstacles.is_lasting(error):
            return WrongSettings(f"data directory {self.path}: {obstacles.tell_path(error, '--data-dir')}")
        return error

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def log_path(self, topic: str, partition: int) -> str:
        return f"{self.path}/logs/{topic}/{partition}"

    def create_partitions(self, topic: str, topic_id: UUID, indexes: Iterable[int]) -> list[str]:
        """Make partitions' directories and name their owner, durably. Harmless for those that are there already.

        Raises:
            OSError: another topic's is in the way, or one that does not say whose it is; records would be mixed.
        """
        paths, notes = [], {}
        for index in indexes:
            path = self.log_path(topic, index)
            paths.append(path)
            owner = self._owner_of_what_is_there(topic, index) if self._disk.is_dir(path) else None
            if owner is not None and owner.topic_id != topic_id:
                raise OSError(errno.EEXIST, "holds another topic's records", path)
            if owner is None:
                note = orjson.dumps({"topic": topic, "topic_id": str(topic_id), "partition": index})
                notes[f"{path}/partition.meta"] = checked_file.encode(b"part", 1, note)
        if notes:
            self._disk.make_dirs(f"{self.path}/logs/{topic}")
            for path in notes:
                self._disk.make_dir(path.removesuffix("/partition.meta"))
            checked_file.save_all(self._disk, notes)
            # A creation cut short may have left these names unsynced, and making what is there passes over it.
            self._disk.sync_dirs([f"{self.path}/logs/{topic}", f"{self.path}/logs"])
        return paths

    def _owner_of_what_is_there(self, topic: str, index: int) -> PartitionDirectory | None:
        try:
            return self._owner(topic, index)
        except StartupError as error:
            raise OSError(errno.EEXIST, str(error), self.log_path(topic, index)) from error

    def partitions(
        self, unreadable: dict[tuple[str, int], StartupError] | None = None, unfinished: list[str] | None = None
    ) -> list[PartitionDirectory]:
        """Every partition directory and its owner.

        Args:
            unreadable: gets those whose owner cannot be told, by topic and partition as their place says.
            unfinished: gets the paths of those whose creation was cut short.

        Raises:
            StartupError: there is one, and nobody to be told.
        """
        found = []
        for topic in self._disk.list_dir(f"{self.path}/logs"):
            if topic in (_REMOVED, _DAMAGED):
                continue
            for name in self._disk.list_dir(f"{self.path}/logs/{topic}"):
                if not name.isdigit():
                    continue
                try:
                    owner = self._owner(topic, int(name))
                except StartupError as error:
                    if unreadable is None:
                        raise
                    unreadable[topic, int(name)] = error
                    continue
                if owner is not None:
                    found.append(owner)
                elif unfinished is not None:
                    unfinished.append(self.log_path(topic, int(name)))
        return found

    def remove_unfinished(self, paths: Iterable[str]) -> None:
        """Delete directories that were made and never got an owner, if there is nothing in them but the note of one."""
        for path in paths:
            if set(self._disk.list_dir(path)) <= {"partition.meta" + checked_file.TEMPORARY}:
                self._disk.remove_tree(path)

    def with_records(self, partitions: list[PartitionDirectory]) -> list[PartitionDirectory]:
        """Those of `partitions` that something was written to."""
        return [partition for partition in partitions if self._has_records(partition.path)]

    def _has_records(self, path: str) -> bool:
        """Whether a partition holds records or ever did: a later segment's name is the offset it begins with."""
        for name in self._disk.list_dir(path):
            if name.endswith(".log"):
                if name.strip("0") not in (".log", "next.log"):
                    return True
                file = self._disk.open(f"{path}/{name}")
                try:
                    if file.size() > 0:
                        return True
                finally:
                    file.close()
        return False

    def metadata_lost(self, unknown: list[PartitionDirectory]) -> StartupError:
        """Why a broker must not start on partitions its metadata knows nothing of, and the way out."""
        names = sorted({partition.topic for partition in unknown})
        shown = ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
        return StartupError(
            f"{self.path}/logs holds {len(unknown)} partitions ({shown}) that {self.metadata_path} knows nothing of: "
            f"its metadata is lost or from another broker. No record was touched. Restore {self.metadata_path} from a "
            "backup, rebuild it from the partitions with 'penstock log repair', or move those topic directories out of "
            "logs/ to go on without them"
        )

    def _owner(self, topic: str, partition: int) -> PartitionDirectory | None:
        path = self.log_path(topic, partition)
        try:
            owner = orjson.loads(checked_file.load(self._disk, f"{path}/partition.meta", b"part", 1))
        except FileNotFoundError:
            if any(name.endswith(".log") for name in self._disk.list_dir(path)):
                raise StartupError(
                    f"{path} has segments but no partition.meta; restore that file, or move the directory away"
                ) from None
            return None  # a creation that was cut short; nothing was written yet
        except DamagedFile as error:
            raise StartupError(f"{error}; restore it from a copy, or move the directory away") from error
        if owner["topic"] != topic or owner["partition"] != partition:
            raise StartupError(
                f"{path} belongs to {owner['topic']}-{owner['partition']}; it was moved: put it back where it was"
            )
        return PartitionDirectory(topic, UUID(owner["topic_id"]), partition, path)

    def remove_topic(self, topic: str, topic_id: UUID) -> None:
        """Take a topic's directory out of sight, so that its name can be used again; `empty_removed` deletes it."""
        source = f"{self.path}/logs/{topic}"
        if self._disk.is_dir(source):
            self._disk.make_dirs(f"{self.path}/logs/{_REMOVED}")
            self._disk.rename(source, f"{self.path}/logs/{_REMOVED}/{topic_id}")
        # Also if it is out of sight already: an earlier attempt may have had no descriptor for this.
        self._disk.sync_dir(f"{self.path}/logs")
        self._disk.sync_dir(f"{self.path}/logs/{_REMOVED}")

    def sync_removals(self) -> None:
        self._disk.sync_dirs([f"{self.path}/logs", f"{self.path}/logs/{_REMOVED}"])

    def remove_owned(self, topic: str, topic_id: UUID) -> None:
        """Take the partitions of this very topic out of sight; another one may have its name by now.

        With what is attached to them, of whichever kinds that is.
        """
        aside = self.set_aside_before()
        for name in (topic, *self.attached_to(topic)):
            split = split_name(name)
            owned = attached_id(topic_id, split[1]) if split is not None else topic_id
            self.remove_partitions(name, owned, 0)
            for owner, partition in aside:
                if owner == owned:
                    self.drop_set_aside(owned, partition)

    def attached_to(self, topic: str) -> list[str]:
        """The names under which there is something that is, or was, attached to a topic of this name."""
        names = self._disk.list_dir(f"{self.path}/logs")
        return sorted(name for name in names if (split := split_name(name)) is not None and split[0] == topic)

    def remove_partitions(self, topic: str, topic_id: UUID, first: int) -> None:
        """Take a topic's partitions from `first` on out of sight; `empty_removed` deletes them."""
        parent = f"{self.path}/logs/{topic}"
        for name in self._disk.list_dir(parent):
            if not name.isdigit() or int(name) < first:
                continue
            try:
                owner = self._owner(topic, int(name))
            except StartupError:
                continue  # it does not say whose it is: nothing goes because of that
            if owner is not None and owner.topic_id != topic_id:
                continue
            self._remove(f"{parent}/{name}", f"{topic_id}-{name}")
        if self._disk.is_dir(parent):  # or an earlier attempt had no descriptor for this
            self._disk.sync_dir(parent)
            self._disk.sync_dir(f"{self.path}/logs/{_REMOVED}")

    def remove_partition(self, topic: str, topic_id: UUID, partition: int) -> None:
        """Take one partition of this very topic out of sight; `empty_removed` deletes it."""
        try:
            owner = self._owner(topic, partition)
        except StartupError:
            return  # it does not say whose it is: nothing goes because of that
        path = self.log_path(topic, partition)
        is_unfinished = owner is None and self._disk.is_dir(path)
        if is_unfinished or (owner is not None and owner.topic_id == topic_id):
            self._remove(path, f"{topic_id}-{partition}")
            self._disk.sync_dirs([f"{self.path}/logs/{topic}", f"{self.path}/logs/{_REMOVED}"])

    def set_aside(self, topic: str, topic_id: UUID, partition: int) -> None:
        """Keep a damaged replica where it is not in the way of the one that takes its place."""
        damaged = f"{self.path}/logs/{_DAMAGED}"
        self._disk.make_dirs(damaged)
        name = f"{topic_id}-{partition}"
        path = self.log_path(topic, partition)
        if not self._disk.is_dir(path):
            pass  # an earlier attempt had no descriptor to sync with
        elif self._disk.is_dir(f"{damaged}/{name}"):  # the one that took its place: what was acknowledged was not in it
            self._remove(path, name)
        else:
            self._disk.rename(path, f"{damaged}/{name}")
        parent = f"{self.path}/logs/{topic}"
        parents = [parent] if self._disk.is_dir(parent) else []  # nothing of the topic may ever have been here
        self._disk.sync_dirs([damaged, f"{self.path}/logs/{_REMOVED}", *parents])

    def set_aside_before(self) -> set[tuple[UUID, int]]:
        """Topic id and partition of damaged replicas that are kept."""
        found = set()
        for name in self._disk.list_dir(f"{self.path}/logs/{_DAMAGED}"):
            topic_id, _, partition = name.rpartition("-")
            with suppress(ValueError):  # somebody else's
                found.add((UUID(topic_id), int(partition)))
        return found

    def drop_set_aside(self, topic_id: UUID, partition: int) -> None:
        """A damaged replica is not needed any more; `empty_removed` deletes it."""
        name = f"{topic_id}-{partition}"
        if self._disk.is_dir(f"{self.path}/logs/{_DAMAGED}/{name}"):
            self._remove(f"{self.path}/logs/{_DAMAGED}/{name}", name)
        if self._disk.is_dir(f"{self.path}/logs/{_DAMAGED}"):
            self._disk.sync_dirs([f"{self.path}/logs/{_DAMAGED}", f"{self.path}/logs/{_REMOVED}"])

    def _remove(self, path: str, name: str) -> None:
        self._removals += 1  # an earlier one of this partition may be on its way out still
        self._disk.rename(path, f"{self.path}/logs/{_REMOVED}/{name}-{self._removals}")

    def empty_removed(self) -> None:
        for name in self._disk.list_dir(f"{self.path}/logs/{_REMOVED}"):
            self._disk.remove_tree(f"{self.path}/logs/{_REMOVED}/{name}")

    def take_clean_mark(self) -> dict[str, int] | None:
        """Where each log ended, if the last stop was clean. The mark is removed: it is good for one start."""
        ends = self.read_clean_mark()
        self.remove_clean_mark()
        return ends

    def read_clean_mark(self) -> dict[str, int] | None:
        """The same, and the mark stays. Under an empty name, in a cluster: which start of the broker it is from."""
        try:
            payload = checked_file.load(self._disk, f"{self.path}/{_CLEAN_MARK}", b"clsd", 1)
        except (FileNotFoundError, DamagedFile):
            return None
        ends: dict[str, int] = orjson.loads(payload)
        return ends or None

    def remove_clean_mark(self) -> None:
        if self._disk.exists(f"{self.path}/{_CLEAN_MARK}"):
            self._disk.unlink(f"{self.path}/{_CLEAN_MARK}")
            self._disk.sync_dir(self.path)

    def leave_clean_mark(self, ends: dict[str, int], incarnation: int = 0) -> None:
        marked = {**ends, _INCARNATION: incarnation} if incarnation else ends
        checked_file.save(self._disk, f"{self.path}/{_CLEAN_MARK}", b"clsd", 1, orjson.dumps(marked))
