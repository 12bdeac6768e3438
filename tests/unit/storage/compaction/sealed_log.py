"""Sealed segments on a disk, without a log around them: write batches, compact, look at what is there."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from penstock.ports.disk import Disk
from penstock.records.batch import HEADER_BYTES, Header, decode_header, patch_place
from penstock.records.build import build_batch
from penstock.records.control import Marker, build_marker
from penstock.records.record import iterate_batch
from penstock.storage.compaction.cleaning import clean
from penstock.storage.compaction.job import Job, Result, Source
from penstock.storage.compaction.swap import drop_leftovers, finish_swap, prepare_swap
from penstock.storage.log.card import Card

DIRECTORY = "log"
LIMIT = 1 << 24
RETENTION_MS = 1000

Row = tuple[int, int, bytes | None, bytes | None]
"""Offset, time, key, value."""
Pair = tuple[bytes | None, bytes | None]


class SealedLog:
    def __init__(self, disk: Disk, directory: str = DIRECTORY) -> None:
        self.disk: Any = disk
        self.directory = directory
        self.sources: list[Source] = []
        self.pending = bytearray()
        self.card = Card(0)
        self.next_offset = 0
        self.dirty_from = 0
        disk.make_dirs(directory)

    # --- writing

    def append(self, batch: bytes) -> int:
        """Give a batch its place in the segment not sealed yet; returns its base offset."""
        view = memoryview(bytearray(batch))
        patch_place(view, self.next_offset, 3)
        header = decode_header(view)
        self.card.take(header, view, 200)
        self.pending += view
        self.next_offset = header.last_offset + 1
        return header.base_offset

    def write(self, *pairs: Pair, time: int = 0, **fields: object) -> int:
        records = [(key, value, [("h", b"1")], time + at) for at, (key, value) in enumerate(pairs)]
        return self.append(build_batch(records, **fields))  # type: ignore[arg-type]

    def mark(self, producer_id: int, marker: Marker, time: int = 0) -> int:
        return self.append(build_marker(producer_id, 0, marker, 0, time))

    def seal(self) -> Source:
        name = f"{self.directory}/{self.card.base:020d}"
        save(self.disk, name + ".log", bytes(self.pending))
        save(self.disk, name + ".index", self.card.encode())
        self.disk.sync_dir(self.directory)
        self.sources.append(Source(self.card.base, len(self.pending), self.next_offset, name + ".log"))
        self.card = Card(self.next_offset, self.card.transactions.open)
        self.pending = bytearray()
        return self.sources[-1]

    # --- compacting

    def job(self, **changes: object) -> Job:
        job = Job(
            directory=self.directory,
            segments=tuple(self.sources),
            dirty_from=self.dirty_from,
            until=self.sources[-1].next_offset,
            now_ms=0,
            delete_retention_ms=RETENTION_MS,
            segment_bytes=1,
            index_interval_bytes=200,
            max_keys=1000,
        )
        return replace(job, **changes)  # type: ignore[arg-type]

    def clean(self, **changes: object) -> Result:
        """A pass, without its outcome taking the log's place."""
        return run(self.disk, self.job(**changes))

    def compact(self, **changes: object) -> Result:
        result = self.clean(**changes)
        if prepare_swap(self.disk, self.directory, result):
            finish_swap(self.disk, self.directory)
        self.take(result)
        assert not drop_leftovers(self.disk, self.directory)
        return result

    def take(self, result: Result) -> None:
        """Go by what a pass has made of the segments."""
        replaced = {base for group in result.groups for base in group.replaced}
        made = [
            Source(group.base, group.size, group.next_offset, f"{self.directory}/{group.base:020d}.log")
            for group in result.groups
        ]
        self.sources = made + [source for source in self.sources if source.base not in replaced]
        self.dirty_from = result.cleaned_to

    # --- looking

    def batches(self) -> list[tuple[Header, bytes]]:
        return [batch for source in self.sources for batch in split(load(self.disk, source.path))]

    def rows(self) -> list[Row]:
        """What a reader gets who skips control batches."""
        return [row for header, batch in self.batches() if not header.is_control for row in rows_of(batch)]

    def pairs(self) -> list[Pair]:
        return [row[2:] for row in self.rows()]

    def files(self) -> dict[str, bytes]:
        return {name: load(self.disk, f"{self.directory}/{name}") for name in self.disk.list_dir(self.directory)}


def run(disk: Disk, job: Job, pause: Callable[[float], None] = lambda _: None) -> Result:
    return clean(disk, job, monotonic=lambda: 0.0, pause=pause)


def rows_of(batch: bytes) -> list[Row]:
    return [(offset, time, record.key, record.value) for offset, time, record in iterate_batch(batch, LIMIT)]


def split(data: bytes) -> list[tuple[Header, bytes]]:
    found, position = [], 0
    while position < len(data):
        assert len(data) - position >= HEADER_BYTES
        header = decode_header(data, position)
        found.append((header, data[position : position + header.size]))
        position += header.size
    return found


def save(disk: Disk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.write_at(data, 0)
    disk.sync_files([file])
    file.close()


def load(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return file.read_at(file.size(), 0)
    finally:
        file.close()


def values(pairs: Sequence[tuple[str, str | None]]) -> list[Pair]:
    return [(key.encode(), None if value is None else value.encode()) for key, value in pairs]
