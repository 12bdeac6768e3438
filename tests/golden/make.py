"""`python -m tests.golden.make DIRECTORY`: writes a small data directory and what is in it, for later versions to open.

Run once per disk format version and committed; never made again for an old format.
"""

import asyncio
import json
import random
import sys
from pathlib import Path
from uuid import UUID

from penstock.cluster.metadata.embedded import EmbeddedStore
from penstock.engine.engine import Engine
from penstock.engine.settings import EngineSettings, Ports
from penstock.observe.stats import Stats
from penstock.records.build import NewRecord, build_batch
from penstock.server.system_clock import SystemClock
from penstock.storage.data_directory import DataDirectory
from penstock.storage.local_disk import LocalDisk

START_MS = 1_700_000_000_000


def make_engine(disk: LocalDisk, directory: DataDirectory, store: EmbeddedStore) -> Engine:
    def fail(error: BaseException) -> None:
        raise AssertionError(error)

    return Engine(
        Ports(disk, SystemClock(), random.Random(1), store), directory, Stats(), fail, EngineSettings(upkeep_ms=10)
    )


async def write(path: Path) -> dict[str, object]:
    disk = LocalDisk()
    directory = DataDirectory(disk, str(path))
    directory.open()
    store = await EmbeddedStore.open(f"{directory.metadata_path}/metadata.db")
    engine = make_engine(disk, directory, store)
    await engine.start()
    told: dict[str, object] = {}
    settings = {"segment.bytes": "2048", "retention.ms": "-1"}
    for name, codec in (("plain", 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)):
        topic = await engine.create_topic(name, 2, settings)
        for partition in topic.partitions:
            producer_id = await engine.producer_ids.take()
            records = []
            log = partition.opened()
            for number in range(40):
                rows = [
                    NewRecord(b"k%d" % index, b"v%d-%d" % (number, index), (("h", b"1"),), START_MS + number)
                    for index in range(5)
                ]
                batch = bytearray(
                    build_batch(rows, codec=codec, producer_id=producer_id, producer_epoch=0, base_sequence=number * 5)
                )
                done = partition.append(memoryview(batch))
                records += [[done.base_offset + i, row.key.decode(), row.value.decode()] for i, row in enumerate(rows)]
                while partition.high_watermark <= done.last_offset or log.unsealed:  # noqa: ASYNC110 - a tool
                    await asyncio.sleep(0.001)
            told[f"{name}-{partition.index}"] = {"producer_id": producer_id, "records": records}
    await engine.delete_records(engine.topics.partition("plain", 0), 17)
    gone = await engine.create_topic("gone", 1)
    await engine.delete_topic(gone)
    next_id = await engine.producer_ids.take()
    await engine.stop()
    await store.close()
    directory.release()
    disk.close()
    ids = {topic.name: str(UUID(int=topic.topic_id.int)) for topic in engine.topics}
    return {"topics": ids, "partitions": told, "producer_ids_below": next_id + 1, "cluster_id": engine.cluster_id}


def main() -> None:
    target = Path(sys.argv[1])
    expected = asyncio.run(write(target / "data"))
    (target / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
