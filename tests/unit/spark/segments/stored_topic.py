"""A data directory with one partition in it, written with the storage's own code, and how to read it."""

import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.simulated_log import DIRECTORY, contents
from tests.unit.storage.compaction.sealed_log import Row, SealedLog, rows_of

from penstock.ports.disk import File
from penstock.spark.arrow.decode import Place
from penstock.spark.segments import segments
from penstock.spark.segments.segments import Piece
from penstock.storage.data_directory import DataDirectory
from penstock.storage.local_disk import LocalDisk
from penstock.testing.faulty_disk import FaultyDisk

TOPIC = "orders"
TOPIC_ID = uuid.UUID(int=7)
END = 1 << 40


class UnsyncedDisk(LocalDisk):
    """No power is cut here."""

    def sync_dir(self, path: str) -> None:
        return None

    def sync_files(self, files: Sequence[File]) -> None:
        return None


class StoredTopic:
    def __init__(self, path: Path, topic: str = TOPIC, topic_id: uuid.UUID = TOPIC_ID, partition: int = 0) -> None:
        self.path = str(path / "data")
        self.disk = UnsyncedDisk()
        self.owner = DataDirectory(self.disk, self.path)
        self.owner.open()
        self.topic, self.id, self.partition = topic, topic_id, partition
        (made,) = self.owner.create_partitions(topic, topic_id, [partition])
        self.owner.release()
        self.directory = Path(made)
        self.log = SealedLog(self.disk, made)

    def take(self, disk: FaultyDisk) -> None:
        """Be the directory of a simulated log."""
        for name, data in contents(disk, DIRECTORY).items():
            (self.directory / name).write_bytes(data)

    def plan(
        self, start: int = 0, end: int = END, *, read_committed: bool = True, stopped: bool = False
    ) -> tuple[list[Piece], int]:
        return segments.plan(
            self.path,
            self.topic,
            self.id,
            self.partition,
            start,
            end,
            read_committed=read_committed,
            stopped=stopped,
        )

    def read(self, pieces: Iterable[Piece], *, read_committed: bool = True) -> list[Row]:
        return [row for piece in pieces for row in read_piece(self.path, piece, read_committed=read_committed)]

    def rows(self, start: int = 0, end: int = END, *, read_committed: bool = True) -> list[Row]:
        """What can be read from files."""
        pieces, reached = self.plan(start, end, read_committed=read_committed)
        assert [piece.first for piece in pieces[1:]] == [piece.end for piece in pieces[:-1]]
        assert reached <= end
        return self.read(pieces, read_committed=read_committed)

    def names(self) -> dict[str, tuple[int, int]]:
        """Every file there is, with its size and the time it was changed."""
        found = [each for each in Path(self.path).rglob("*") if each.is_file()]
        return {str(each): (each.stat().st_size, each.stat().st_mtime_ns) for each in found}


def read_piece(path: str, piece: Piece, *, read_committed: bool = True) -> list[Row]:
    return rows_in(segments.read(path, piece, read_committed=read_committed), piece)


def rows_in(stretches: Iterable[tuple[memoryview, list[Place]]], piece: Piece) -> list[Row]:
    found: list[Row] = []
    for data, places in stretches:
        assert places
        for place in places:
            assert not place.header.is_control and place.header.record_count
            batch = bytes(data[place.position : place.position + place.header.size])
            found += [row for row in rows_of(batch) if piece.first <= row[0] < piece.end]
    return found
