"""Data directories written by every disk format so far still open, whole, and go on being written."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from tests.golden.make import START_MS, make_engine

from penstock.cluster.metadata.embedded import EmbeddedStore
from penstock.engine.engine import Engine
from penstock.engine.partition import Partition
from penstock.engine.reading import Cursor
from penstock.records.build import NewRecord, build_batch
from penstock.storage.data_directory import DataDirectory
from penstock.storage.kept_ends import load_ends
from penstock.storage.local_disk import LocalDisk

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("v*"))


async def read_all(partition: Partition) -> list[list[object]]:
    log = partition.opened()
    offset = log.log_start
    found: list[list[object]] = []
    while offset < partition.high_watermark:
        for each in await Cursor(partition, offset, committed=False).records(1, 0):
            found.append([each.offset, (each.key or b"").decode(), (each.value or b"").decode()])
            offset = each.offset + 1
    return found


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
@pytest.mark.parametrize("marked_clean", [True, False])
async def test_opens_whole(golden: Path, marked_clean: bool, tmp_path: Path) -> None:
    shutil.copytree(golden / "data", tmp_path / "data")
    if not marked_clean:
        (tmp_path / "data" / "clean-shutdown").unlink()
    expected = json.loads((golden / "expected.json").read_text())
    disk = LocalDisk()
    directory = DataDirectory(disk, str(tmp_path / "data"))
    directory.open()
    store = await EmbeddedStore.open(f"{directory.metadata_path}/metadata.db")
    engine = make_engine(disk, directory, store)
    await engine.start()
    try:
        assert engine.cluster_id == expected["cluster_id"]
        assert {topic.name: str(topic.topic_id) for topic in engine.topics} == expected["topics"]
        assert await engine.producer_ids.take() >= expected["producer_ids_below"]
        for name, told in expected["partitions"].items():
            await check_partition(engine, name, told)
    finally:
        await engine.stop()
        await store.close()
        directory.release()
        disk.close()
    ends = load_ends(disk, directory.metadata_path)  # a directory that has none is given it
    assert ends == {topic.topic_id: [205] * len(topic.partitions) for topic in engine.topics}


async def check_partition(engine: Engine, name: str, told: dict[str, object]) -> None:
    topic, _, index = name.rpartition("-")
    partition = engine.topics.partition(topic, int(index))
    records: list[list[object]] = told["records"]  # type: ignore[assignment]
    start = 17 if name == "plain-0" else 0
    assert await read_all(partition) == [row for row in records if int(row[0]) >= start]  # type: ignore[call-overload]
    assert partition.opened().log_start == start
    found = await engine.find_offset_by_time(partition, START_MS + 20, committed=False)
    assert found is not None
    assert found.offset == 100
    # the producer goes on where it was, and its last batch is still known as a duplicate
    for sequence, expected_offset in ((195, 195), (200, 200)):
        batch = bytearray(
            build_batch(
                [NewRecord(b"k", b"v", (), START_MS)] * 5,
                producer_id=int(told["producer_id"]),  # type: ignore[call-overload]
                producer_epoch=0,
                base_sequence=sequence,
            )
        )
        done = partition.append(memoryview(batch))
        assert done.base_offset == expected_offset
    async with asyncio.timeout(30):
        while partition.high_watermark < 205:  # noqa: ASYNC110 - a commit round is under way
            await asyncio.sleep(0)


def test_there_is_a_golden_directory() -> None:
    assert GOLDEN
