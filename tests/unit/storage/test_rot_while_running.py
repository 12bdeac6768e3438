"""Rot under a running broker, on a real disk: the kernel reads ahead there, which no simulated one does."""

import asyncio
import os
import random
from pathlib import Path

import pytest
from tests.golden.make import START_MS, make_engine

from penstock.cluster.metadata.embedded import EmbeddedStore
from penstock.engine.partition import Partition
from penstock.engine.reading import Cursor
from penstock.errors import Code, PenstockError
from penstock.records.batch import crc_matches, decode_header
from penstock.records.build import NewRecord, build_batch
from penstock.storage.data_directory import DataDirectory
from penstock.storage.local_disk import LocalDisk
from penstock.storage.log.segment import Segment

SEGMENT_BYTES = 6 << 20
BATCH_BYTES = 50_000
BATCHES = 300
BATCHES_AHEAD = 20
"""Of what is synced: who writes faster than segments can be rolled gets few, and large ones."""


async def write(partition: Partition, coin: random.Random) -> list[Segment]:
    """Some sealed segments, written by this process."""
    log = partition.opened()
    async with asyncio.timeout(60):
        for number in range(BATCHES):
            rows = [NewRecord(b"k", coin.randbytes(BATCH_BYTES), (), START_MS + number)]
            partition.append(memoryview(bytearray(build_batch(rows))))
            while partition.high_watermark < number - BATCHES_AHEAD:  # noqa: ASYNC110 - segments are rolled meanwhile
                await asyncio.sleep(0.001)
        while partition.high_watermark < BATCHES or log.unsealed:  # noqa: ASYNC110 - rounds and upkeep are under way
            await asyncio.sleep(0.01)
    sealed = [segment for segment in log.segments if segment.sealed]
    assert len(sealed) >= 2
    return sealed


async def read_to_the_end(partition: Partition, segment: Segment, step: int) -> None:
    """As the Kafka door reads. Raises PenstockError; fails if it is given what was not written."""
    offset = segment.base
    while offset < segment.next_offset:
        piece = (await Cursor(partition, offset, committed=False).next(step, 0)).data
        assert piece is not None
        data, at = piece.file.read_at(piece.size, piece.position), 0
        while at < len(data):
            header = decode_header(data, at)
            assert header.base_offset == offset, "a reader was given rot"
            assert crc_matches(memoryview(data)[at : at + header.size], header), "a reader was given rot"
            offset, at = header.last_offset + 1, at + header.size


def flip(segment: Segment, position: int) -> bool:
    """On the disk, and nothing of the segment is in memory then; False if the file system keeps it there."""
    fd = os.open(segment.path, os.O_RDWR)
    try:
        (byte,) = os.pread(fd, 1, position)
        os.pwrite(fd, bytes([byte ^ 0x10]), position)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    file = LocalDisk().open(segment.path)
    try:
        return not file.resident(1, position)
    finally:
        file.forget_cached(0)
        file.close()


@pytest.mark.parametrize("step", [64 << 10, 1 << 20])
async def test_no_reader_is_given_rot(step: int, tmp_path: Path) -> None:
    coin = random.Random(step)
    disk = LocalDisk()
    directory = DataDirectory(disk, str(tmp_path))
    directory.open()
    store = await EmbeddedStore.open(f"{directory.metadata_path}/metadata.db")
    engine = make_engine(disk, directory, store)
    await engine.start()
    try:
        topic = await engine.create_topic("t", 1, {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"})
        (partition,) = topic.partitions
        for segment in await write(partition, coin):
            position = coin.randrange(segment.size // 2, segment.size)
            if not flip(segment, position):
                pytest.skip("the file system does not tell what is in memory")
            with pytest.raises(PenstockError, match=segment.path) as refused:
                await read_to_the_end(partition, segment, step)
            assert refused.value.code is Code.CORRUPT_LOG
            flip(segment, position)
            await read_to_the_end(partition, segment, step)
    finally:
        await engine.stop()
        await store.close()
        directory.release()
        disk.close()
