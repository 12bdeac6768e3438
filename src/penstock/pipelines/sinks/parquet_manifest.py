"""What is in a directory of Parquet files, batch by batch: numbered entries that are made once and never changed.

    DIR/_penstock/entries/00000000000000000007.json    entry 7
    DIR/_penstock/staging/<key>/<batch>/part-...       files before they are moved to where the entry says
    DIR/day=2026-11-16/part-...parquet                 files in place

An entry is the commit: it is linked under the next number, whole and durable, or that number was somebody else's.
Then its files are moved into place; a staging directory of a committed batch that still exists says that this is not
done, and whoever comes next does it. Readers that do not know the entries see only files that were committed.

Entry 0 has the table's columns. From time to time an entry is a snapshot: the marks of all queries, and the files of
the entries before it, which are then deleted. Snapshots form a chain, and a new one absorbs those that are not larger,
so there are few of them and a file's line is copied a logarithmic number of times.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from crc32c import crc32c

from penstock.pipelines.errors import SinkError
from penstock.pipelines.home.sealed import sync_directory
from penstock.pipelines.sinks.storage import make_directories

VERSION: Final = 1
HIDDEN: Final = "_penstock"
SNAPSHOT_EVERY: Final = 128
_SNAPSHOT_FILES: Final = 50_000  # a snapshot with more is not copied any more
_LOOKS: Final = 50  # how often a directory is listed again while somebody else deletes entries in it
_NAME: Final = re.compile(r"(\d{20})\.json")
_HEAD: Final = re.compile(rb'\{"penstock_manifest":(\d+),"crc32c":"([0-9a-f]{8})","body":')


class DamagedManifest(SinkError):
    """An entry is not what was written, or one is missing."""


class CommittedFile(NamedTuple):
    """A file that belongs to the table.

    Attributes:
        path: relative to the directory.
        size: in bytes.
        partition: the text of each partition column's value, None for null.
    """

    path: str
    rows: int
    size: int
    partition: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry.

    Attributes:
        kind: `table`, `batch` or `snapshot`.
        table: of entry 0 and snapshots: `schema` (Spark's JSON) and `partition_by`.
        marks: last batch of each query; of a batch, its own only.
        chain: of a snapshot: the numbers of those whose files come before its own, oldest first.
    """

    number: int
    kind: str
    files: tuple[CommittedFile, ...] = ()
    marks: Mapping[str, int] = field(default_factory=dict)
    table: Mapping[str, Any] = field(default_factory=dict)
    chain: tuple[int, ...] = ()
    time_ms: int = 0


def encode(entry: Entry) -> bytes:
    body = {
        "number": entry.number,
        "kind": entry.kind,
        "time_ms": entry.time_ms,
        "marks": dict(entry.marks),
        "table": dict(entry.table),
        "chain": list(entry.chain),
        "files": [each._asdict() for each in entry.files],
    }
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    head = b'{"penstock_manifest":%d,"crc32c":"' % VERSION
    tail = b'","body":' + text + b"}\n"
    return head + b"%08x" % crc32c(head + tail) + tail


def decode(data: bytes, path: Path) -> Entry:
    """Raises `DamagedManifest`, naming `path`, unless every byte is as it was written."""
    found = _HEAD.match(data)
    if found is None:
        raise DamagedManifest(f"{path}: does not begin as an entry of a manifest. {_WAY_OUT}")
    if crc32c(data[: found.start(2)] + data[found.end(2) :]) != int(found[2], 16):
        raise DamagedManifest(f"{path}: the checksum does not match. {_WAY_OUT}")
    if int(found[1]) > VERSION:
        raise DamagedManifest(f"{path}: format version {int(found[1])}; this release reads up to {VERSION}")
    body = json.loads(data)["body"]
    if f"{body['number']:020}.json" != path.name:
        raise DamagedManifest(f"{path}: holds entry {body['number']}. {_WAY_OUT}")
    body["files"] = tuple(CommittedFile(**each) for each in body["files"])
    body["chain"] = tuple(body["chain"])
    return Entry(**body)


_WAY_OUT = "Restore it from a copy; without it nobody knows which files are whole batches"


class _Gone(Exception):
    """An entry was deleted while it was looked for."""


class Manifest:
    """The entries of a directory as far as they were read: `refresh` reads the rest."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.entries = directory / HIDDEN / "entries"
        self.staging = directory / HIDDEN / "staging"
        self._forget()

    def _forget(self) -> None:
        self.number = -1
        self.table: Mapping[str, Any] = {}
        self.marks: dict[str, int] = {}
        self.chain: tuple[int, ...] = ()
        self.recent: list[Entry] = []

    def refresh(self) -> None:
        """Read what is new.

        Raises:
            DamagedManifest: an entry is damaged or missing.
        """
        for look in range(_LOOKS):
            try:
                for entry in self._news(final=look == _LOOKS - 1):
                    self._take(entry)
                return
            except _Gone:
                self._forget()

    def _take(self, entry: Entry) -> None:
        self.number = entry.number
        self.marks.update(entry.marks)
        self.table = entry.table or self.table
        if entry.kind == "snapshot":
            self.chain, self.recent = (*entry.chain, entry.number), []
        elif entry.kind == "batch":
            self.recent.append(entry)

    def _news(self, final: bool) -> Iterator[Entry]:
        wanted = self.number + 1
        new = [number for number in self._numbers() if number >= wanted]
        if new and new[0] != wanted:
            # What is missing was deleted behind a snapshot, and the snapshot knows it.
            yield from self._from_snapshot(new, final)
            return
        for number, expected in zip(new, range(wanted, wanted + len(new)), strict=True):
            if number != expected:
                self._missing(expected, final)
            yield self._load(number, final)

    def _from_snapshot(self, numbers: list[int], final: bool) -> Iterator[Entry]:
        rest: list[Entry] = []
        for number in reversed(numbers):
            entry = self._load(number, final)
            rest.append(entry)
            if entry.kind == "snapshot":
                yield from reversed(rest)
                return
            if number - 1 not in numbers:
                self._missing(number - 1, final)

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self.entries)
        except FileNotFoundError:
            return []
        return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))

    def _load(self, number: int, final: bool) -> Entry:
        path = self.path(number)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            self._missing(number, final)
        return decode(data, path)

    def _missing(self, number: int, final: bool) -> NoReturn:
        if final:
            raise DamagedManifest(f"{self.path(number)}: the entry is missing. {_WAY_OUT}")
        raise _Gone

    def path(self, number: int) -> Path:
        return self.entries / f"{number:020}.json"

    def files(self) -> list[CommittedFile]:
        """All files, oldest first, as of the last `refresh`. Raises `_Gone` where a snapshot was absorbed since."""
        old = (each for number in self.chain for each in self._load(number, final=False).files)
        return [*old, *(each for entry in self.recent for each in entry.files)]

    def append(self, entry: Entry) -> bool:
        """Make `entry`, whose number must be the next; False where somebody else took that number.

        When this returns, what it returned is durable.
        """
        make_directories(self.entries)
        make_directories(self.staging)
        draft = self.staging / f"entry-{entry.number}-{uuid.uuid4().hex}"
        try:
            with open(draft, "xb") as file:
                file.write(encode(entry))
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(draft, self.path(entry.number))
            except (FileExistsError, FileNotFoundError):  # a draft whose number is taken may have been swept away
                return False
            except OSError as error:
                if error.errno in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP):
                    raise SinkError(
                        f"{self.directory}: its file system has no hard links, by which entries are made. Use another"
                    ) from error
                raise
        finally:
            draft.unlink(missing_ok=True)
        sync_directory(self.entries)
        self._take(entry)
        return True

    def staging_of(self, key: str) -> Path:
        return self.staging / hashlib.sha256(key.encode()).hexdigest()[:16]

    def finish(self) -> None:
        """Move the files of committed batches into place that are not there yet. Whoever does it again does nothing."""
        for entry in self.recent:
            for key, batch in entry.marks.items():
                staged = self.staging_of(key) / str(batch)
                if staged.is_dir():
                    # An entry may be seen before it is durable; a file must not be in place before its entry is.
                    sync_directory(self.entries)
                    self._move(entry, staged)
                    shutil.rmtree(staged, ignore_errors=True)

    def _move(self, entry: Entry, staged: Path) -> None:
        directories = set()
        for each in entry.files:
            place = self.directory / each.path
            make_directories(place.parent)
            with contextlib.suppress(FileNotFoundError):
                os.rename(staged / place.name, place)
            directories.add(place.parent)
        for directory in sorted(directories):
            sync_directory(directory)

    def drop_staging(self, key: str, before: int) -> None:
        """Delete what tasks of a query left behind in batches before one; its batches are committed in order."""
        with contextlib.suppress(FileNotFoundError):
            for each in os.listdir(self.staging_of(key)):
                if each.isdecimal() and int(each) < before:
                    shutil.rmtree(self.staging_of(key) / each, ignore_errors=True)

    def compact(self) -> None:
        """Gather what is known in a snapshot, and delete the entries that it replaces. `finish` comes first."""
        files = [each for entry in self.recent for each in entry.files]
        chain = list(self.chain)
        while chain:
            older = self._load(chain[-1], final=True).files
            if len(older) > min(len(files), _SNAPSHOT_FILES):
                break
            files = [*older, *files]
            chain.pop()
        number = self.number + 1
        snapshot = Entry(number, "snapshot", tuple(files), dict(self.marks), self.table, tuple(chain), _now_ms())
        if self.append(snapshot):
            for each in sorted(set(self._numbers()) - {number, *chain}):
                if each < number:
                    self.path(each).unlink(missing_ok=True)
            for draft in self.staging.glob("entry-*"):
                if int(draft.name.split("-")[1]) < number:
                    draft.unlink(missing_ok=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def batch_entry(number: int, key: str, batch: int, files: tuple[CommittedFile, ...]) -> Entry:
    return Entry(number, "batch", files, {key: batch}, time_ms=_now_ms())


def table_entry(schema: Mapping[str, Any], partition_by: tuple[str, ...]) -> Entry:
    return Entry(0, "table", table={"schema": schema, "partition_by": list(partition_by)}, time_ms=_now_ms())


def read_manifest(directory: str | Path) -> list[CommittedFile]:
    """The files of all whole batches in a directory, oldest first.

    Raises:
        DamagedManifest: naming the entry that is damaged or missing.
    """
    return _read(Path(directory))[1]


def files(directory: str | Path) -> list[str]:
    """Paths of the files of all whole batches, for any reader of Parquet.

    A file that was committed and not yet moved into place is named where it lies.
    """
    manifest, committed = _read(Path(directory))
    staged = {
        each.path: manifest.staging_of(key) / str(batch) / Path(each.path).name
        for entry in manifest.recent
        for key, batch in entry.marks.items()
        for each in entry.files
    }
    found = []
    for each in committed:
        place = Path(directory, each.path)
        waiting = staged.get(each.path, place)
        found.append(str(waiting if not place.exists() and waiting.exists() else place))
    return found


def _read(directory: Path) -> tuple[Manifest, list[CommittedFile]]:
    for _ in range(_LOOKS):
        manifest = Manifest(directory)
        manifest.refresh()
        with contextlib.suppress(_Gone):
            return manifest, manifest.files()
    raise DamagedManifest(f"{directory}: a snapshot of its manifest is missing. {_WAY_OUT}")
