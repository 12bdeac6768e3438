"""The embedded metadata store without a broker: read from a copy, salvaged row by row, built anew.

Reading copies the file and its write-ahead log first: SQLite writes beside a database even to read it, and a command
that only looks must leave no trace and disturb no running broker.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from uuid import UUID

import orjson

from penstock.cluster.metadata.database import checksum
from penstock.cluster.metadata.embedded import EmbeddedStore
from penstock.engine.groups.group_configs import GROUPS, group_key, read_group_key
from penstock.engine.topics import CREATING, GROWING, REMOVING, TOPICS, TopicRecord
from penstock.errors import StartupError
from penstock.storage.offline.catalogue import Catalogue, Intent, TopicEntry

FILE_NAME = "metadata.db"
NEIGHBOURS = ("-wal", "-shm")
_CLUSTER = "cluster"
_PRODUCER_IDS = "producer-ids"
_COPIES = 20


def load_catalogue(data_dir: str) -> Catalogue:
    """What the store of a data directory says; `problem` is set when it cannot be used. Blocking, leaves no trace."""
    path = f"{data_dir}/meta/{FILE_NAME}"
    if not os.path.exists(path):
        return Catalogue(path, exists=False)
    with tempfile.TemporaryDirectory(prefix="penstock-metadata-") as place:
        copy = str(Path(place, "meta", FILE_NAME))
        _copy(path, copy)
        try:
            return _catalogue(path, asyncio.run(_entries(copy)))
        except StartupError as error:
            problem = str(error).replace(copy, path).partition(". Restore the file")[0]
        except (ValueError, KeyError, TypeError) as error:
            problem = f"metadata store {path}: an entry is not what this release writes ({error})"
        _copy(path, copy)
        return _salvage(path, copy, problem)


def replace_store(data_dir: str, catalogue: Catalogue) -> list[str]:
    """Put a new store in the place of a lost one; returns the files that keep the old one.

    The new one is whole and synced under another name before the old one is moved aside. In between there is none,
    which a start refuses and a repair finds again. The old write-ahead log goes before the new file comes: SQLite would
    apply it.
    """
    directory = f"{data_dir}/meta"
    path, new = f"{directory}/{FILE_NAME}", f"{directory}/{FILE_NAME}.tmp"
    os.makedirs(directory, 0o700, exist_ok=True)
    for suffix in ("", *NEIGHBOURS):
        Path(new + suffix).unlink(missing_ok=True)
    _build(new, catalogue)
    number = 1
    while any(os.path.exists(f"{path}{suffix}.damaged-{number}") for suffix in ("", *NEIGHBOURS)):
        number += 1
    kept = []
    for suffix in ("", *NEIGHBOURS):
        if os.path.exists(path + suffix):
            kept.append(f"{path}{suffix}.damaged-{number}")
            os.rename(path + suffix, kept[-1])
    _sync(directory)
    os.rename(new, path)
    _sync(directory)
    _sync(data_dir)
    return kept


def _build(path: str, catalogue: Catalogue) -> None:
    """Write a store with what a catalogue says, whole and synced when this returns."""
    put = {f"{TOPICS}{name}": _record(entry).encode() for name, entry in catalogue.topics.items()}
    put[_CLUSTER] = orjson.dumps({"id": catalogue.cluster_id})
    put[_PRODUCER_IDS] = b"%d" % catalogue.next_producer_id
    put |= {group_key(group_id): orjson.dumps(dict(given)) for group_id, given in catalogue.groups.items()}

    async def build() -> None:
        store = await EmbeddedStore.open(path)
        await store.transact(put=put)
        await store.close()

    asyncio.run(build())
    _sync(path)


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy(path: str, copy: str) -> None:
    """Copy the database and its write-ahead log at one moment: again, if either changed meanwhile."""
    for _ in range(_COPIES):
        shutil.rmtree(os.path.dirname(copy), ignore_errors=True)
        os.makedirs(os.path.dirname(copy))
        before = _stamps(path)
        for suffix in ("", "-wal"):
            if os.path.exists(path + suffix):
                shutil.copyfile(path + suffix, copy + suffix)
        if _stamps(path) == before:
            return


def _stamps(path: str) -> list[tuple[int, int, int] | None]:
    stamps: list[tuple[int, int, int] | None] = []
    for suffix in ("", "-wal"):
        try:
            found = os.stat(path + suffix)
        except FileNotFoundError:
            stamps.append(None)
        else:
            stamps.append((found.st_ino, found.st_size, found.st_mtime_ns))
    return stamps


async def _entries(path: str) -> dict[str, bytes]:
    store = await EmbeddedStore.open(path)
    try:
        return {entry.key: entry.value for entry in await store.list("")}
    finally:
        await store.close()


def _catalogue(path: str, entries: Mapping[str, bytes], problem: str | None = None) -> Catalogue:
    topics = {
        key.removeprefix(TOPICS): _entry(TopicRecord.decode(value))
        for key, value in entries.items()
        if key.startswith(TOPICS)
    }
    intents = []
    for key, value in entries.items():
        if key.startswith((CREATING, GROWING, REMOVING)):
            told = orjson.loads(value)
            intents.append(Intent(key.partition("/")[0], told["topic"], UUID(told["id"]), told.get("partitions", 0)))
    cluster = entries.get(_CLUSTER)
    return Catalogue(
        path,
        orjson.loads(cluster)["id"] if cluster is not None else None,
        topics,
        tuple(intents),
        int(entries.get(_PRODUCER_IDS, b"0")),
        {read_group_key(key): orjson.loads(value) for key, value in entries.items() if key.startswith(GROUPS)},
        problem,
    )


def _salvage(path: str, copy: str, problem: str) -> Catalogue:
    """What can still be read of a damaged store: rows that match their own checksum."""
    from sqlite3 import DatabaseError, connect

    entries: dict[str, bytes] = {}
    try:
        with (
            closing(connect(copy)) as connection,
            closing(connection.execute("SELECT key, value, revision, crc FROM entries")) as rows,
        ):
            for key, value, revision, crc in rows:
                typed = isinstance(key, str) and isinstance(value, bytes) and isinstance(revision, int)
                if typed and 0 < revision < 1 << 63 and checksum(key, revision, value) == crc:
                    entries[key] = value
    except (DatabaseError, OverflowError, UnicodeDecodeError):
        pass  # what was read before it is as good as its checksums
    try:
        return _catalogue(path, entries, problem)
    except (ValueError, KeyError, TypeError):
        return Catalogue(path, problem=problem)


def _entry(record: TopicRecord) -> TopicEntry:
    return TopicEntry(
        record.topic_id,
        record.partitions,
        record.leader_epoch,
        dict(record.settings),
        dict(record.attached),
        dict(record.queues),
    )


def _record(entry: TopicEntry) -> TopicRecord:
    return TopicRecord(
        entry.topic_id, entry.partitions, entry.settings, entry.leader_epoch, entry.attached, entry.queues
    )
