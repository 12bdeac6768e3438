"""A data directory seen from outside: whether it is one, whose records are in it, whether a broker uses it.

Nothing here is written or waited for.
"""

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import orjson

from penstock.ports.disk import Disk
from penstock.spark.errors import OptionError, SourceError
from penstock.storage import checked_file
from penstock.storage.checked_file import DamagedFile
from penstock.storage.data_directory import FORMAT_VERSION
from penstock.storage.offline.inspection import find_owners
from penstock.storage.offline.read_only_disk import ReadOnlyDisk

_WITHOUT_PATH = "leave the option 'path' out to read everything from the broker"


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic as the directories of its partitions tell."""

    name: str
    id: uuid.UUID
    partitions: tuple[int, ...]


def open_disk(path: str) -> ReadOnlyDisk:
    """The disk to read a data directory with.

    Raises:
        OptionError: there is no data directory at `path`.
        SourceError: a later release wrote it, or it cannot be read.
    """
    disk = ReadOnlyDisk()
    with readable():
        try:
            checked_file.load(disk, f"{path}/format", b"frmt", FORMAT_VERSION)
        except (FileNotFoundError, NotADirectoryError):
            raise OptionError(
                f"path {path!r} is no data directory of a broker: there is no file 'format' in it on this machine. "
                f"Name the broker's --data-dir, mounted here and wherever Spark runs tasks, or {_WITHOUT_PATH}"
            ) from None
        except DamagedFile as error:
            raise SourceError(
                f"{error}. Use the release of Penstock that wrote this directory, or {_WITHOUT_PATH}"
            ) from None
    return disk


@contextmanager
def readable() -> Iterator[None]:
    """Says of a file that cannot be read which one it is and what to do."""
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"cannot read {error.filename or 'a file of the data directory'}: {error.strerror}. The files are for the "
            f"broker's user only: run Spark as that user, or {_WITHOUT_PATH}"
        ) from error


def directory_of(disk: Disk, path: str, topic: str, partition: int) -> tuple[str, uuid.UUID]:
    """Where the files of a partition are, and the id of the topic they belong to.

    Raises:
        SourceError: there are none, or it cannot be told whose they are.
    """
    directory = f"{path}/logs/{topic}/{partition}"
    try:
        owner = orjson.loads(checked_file.load(disk, f"{directory}/partition.meta", b"part", 1))
    except FileNotFoundError:
        raise SourceError(
            f"data directory {path!r} has nothing of partition {partition} of topic {topic!r}; is it the directory of "
            f"the broker that was asked? Correct it, or {_WITHOUT_PATH}"
        ) from None
    except DamagedFile as error:
        raise SourceError(f"{error}. Restore it from a copy, or {_WITHOUT_PATH}") from None
    if (owner["topic"], owner["partition"]) != (topic, partition):
        raise SourceError(
            f"{directory} belongs to partition {owner['partition']} of topic {owner['topic']!r}: it was moved; put it "
            f"back where it was, or {_WITHOUT_PATH}"
        )
    return directory, uuid.UUID(owner["topic_id"])


def stopped_topics(path: str) -> dict[str, StoredTopic]:
    """The topics in the directory of a broker that does not run.

    Raises:
        OptionError: there is no data directory at `path`, or a broker uses it.
        SourceError: it cannot be read, or not be told whose a partition's files are.
    """
    disk = open_disk(path)
    with readable():
        if clean_ends(disk, path) is None and _is_locked(path):
            raise OptionError(
                f"data directory {path!r} is in use by a running broker, whose last records are not to be had from "
                "files: name the broker in 'kafka.bootstrap.servers' as well, or stop it"
            )
        found: dict[str, StoredTopic] = {}
        for owner in find_owners(disk, path):
            if owner.is_empty:
                continue
            if owner.problem is not None or owner.topic_id is None:
                raise SourceError(f"{owner.problem}. 'penstock log verify' tells more")
            known = found.get(owner.topic, StoredTopic(owner.topic, owner.topic_id, ()))
            if known.id != owner.topic_id:
                raise SourceError(f"{owner.path} belongs to another topic than its neighbours: move it away")
            found[owner.topic] = StoredTopic(owner.topic, known.id, (*known.partitions, owner.partition))
        return found


def clean_ends(disk: Disk, path: str) -> dict[str, int] | None:
    """Where each log ended, if the broker was stopped cleanly and has not been started since."""
    try:
        ends: dict[str, int] = orjson.loads(checked_file.load(disk, f"{path}/clean-shutdown", b"clsd", 1))
    except (FileNotFoundError, DamagedFile):
        return None
    return ends


def _is_locked(path: str) -> bool:
    """Whether a broker has the directory. A shared lock is tried and let go at once: no running broker notices."""
    try:
        fd = os.open(f"{path}/.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
