"""Data directories with queues, of every format of ledgers so far, still open: each message is where it was."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.golden.make_queues import (
    ACK,
    GROUPS,
    MESSAGES,
    TRANSACTION,
    StoppedClock,
    hold_letters,
    letters,
    make_engine,
    whereabouts,
)

from penstock.cluster.metadata.embedded import EmbeddedStore
from penstock.engine.engine import Engine
from penstock.engine.queues.answers import Want
from penstock.engine.queues.verdicts import Change, Receipt
from penstock.engine.queues.window import LEASED, READY, SETTLED
from penstock.engine.transactions.requests import EndRequest
from penstock.engine.transactions.transaction import BUMPED_AT_END
from penstock.errors import Code, PenstockError, StartupError
from penstock.ports.metadata import MetadataStore
from penstock.storage.data_directory import DataDirectory
from penstock.storage.local_disk import LocalDisk
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock, run_virtual

GOLDEN = sorted((Path(__file__).parents[3] / "golden").glob("queues-v*"))
CORRUPT = Code.CORRUPT_LOG
_STEP = 23
"""Of so many bytes one is flipped; no power of two, so that each field has its turn in one batch or another."""


def expected_of(golden: Path) -> dict[str, Any]:
    """As it was written, but for the leases of a share consumer: these ended with its session."""
    told: dict[str, Any] = json.loads((golden / "expected.json").read_text())
    for place in told["whereabouts"]["jobs:shared"]:
        place[0] = READY if place[0] == LEASED else place[0]
    return told


IN_TRANSACTIONS = [each for each in GOLDEN if "pending" in expected_of(each)]


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Engine]:
    disk = LocalDisk()
    directory = DataDirectory(disk, str(path))
    directory.open()
    store = await EmbeddedStore.open(f"{directory.metadata_path}/metadata.db")
    engine = make_engine(disk, directory, store, StoppedClock())
    try:
        yield engine
    finally:
        await engine.stop()
        await store.close()
        directory.release()
        disk.close()


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
@pytest.mark.parametrize("ending", ["stopped", "killed", "killed before it kept a snapshot"])
async def test_opens_whole(golden: Path, ending: str, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(golden / "data", path)
    if ending != "stopped":
        (path / "clean-shutdown").unlink()
    if ending == "killed before it kept a snapshot":
        for snapshot in path.glob("logs/*~queue/0/snapshot"):
            snapshot.unlink()
    expected = expected_of(golden)
    async with opened(path) as engine:
        let_go = hold_letters(engine)
        await engine.start()
        assert await whereabouts(engine) == expected["whereabouts"]
        assert await letters(engine) == expected["letters"]
        for topic, lease_id in expected["leases"].items():
            partition = engine.topics.partition(topic, 0)
            await engine.queues.settle(partition, topic, Receipt(lease_id), [Change(5, 7, ACK)])
            assert (await engine.queues.lease(partition, Want(topic, "new", 100))).ranges[-1].last == MESSAGES - 1
        let_go()
        buried = [[topic, 0, offset, "rejected"] for topic in expected["leases"] for offset in (3, 8)]
        async with asyncio.timeout(30):
            while len(await letters(engine)) < len(expected["letters"]) + len(buried):  # noqa: ASYNC110 - they are read
                await asyncio.sleep(0.01)
        assert await letters(engine) == sorted([*expected["letters"], *buried], key=str)


@pytest.mark.parametrize("golden", IN_TRANSACTIONS, ids=lambda path: path.name)
@pytest.mark.parametrize("committed", [True, False])
async def test_a_transaction_that_was_open_ends(golden: Path, committed: bool, tmp_path: Path) -> None:
    """What was acknowledged in it is so, or is in its lease again."""
    path = tmp_path / "data"
    shutil.copytree(golden / "data", path)
    expected = expected_of(golden)
    pending: dict[str, int] = expected["pending"]
    async with opened(path) as engine:
        hold_letters(engine)
        await engine.start()
        places = {topic: engine.topics.partition(topic, 0) for topic in pending}
        for topic, offset in pending.items():
            assert (await engine.queues.whereabouts(places[topic], topic, offset)).is_pending
        producer_id, epoch = expected["producer"]
        await engine.transactions.end(EndRequest(TRANSACTION, producer_id, epoch, committed, BUMPED_AT_END))
        for topic, offset in pending.items():
            async with asyncio.timeout(30):
                while (await engine.queues.whereabouts(places[topic], topic, offset)).is_pending:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            place = await engine.queues.whereabouts(places[topic], topic, offset)
            assert place.state == (SETTLED if committed else LEASED)


def test_there_is_a_golden_directory() -> None:
    assert GOLDEN
    assert IN_TRANSACTIONS


class Golden:
    """The directory on a simulated disk, to be opened again and again in no time."""

    def __init__(self, path: Path) -> None:
        self.expected = expected_of(path)["whereabouts"]
        self.disk = FaultyDisk(max_delay_s=0.0)
        self.disk.make_dirs("data")
        self.entries: dict[str, bytes] = {}
        for file in sorted((path / "data").rglob("*")):
            name = f"data/{file.relative_to(path / 'data')}"
            if file.is_dir():
                self.disk.make_dirs(name)
            elif "metadata.db" not in name:
                self.disk.open(name, create=True).write_at(file.read_bytes(), 0)

    async def store(self) -> MetadataStore:
        store = MemoryStore()
        await store.transact(put=self.entries)
        return store


async def read_entries(golden: Path, path: Path) -> dict[str, bytes]:
    shutil.copytree(golden / "data" / "meta", path)
    store = await EmbeddedStore.open(f"{path}/metadata.db")
    try:
        return {entry.key: entry.value for entry in await store.list("")}
    finally:
        await store.close()


async def look(golden: Golden, disk: FaultyDisk) -> str:
    """Whether a damaged directory is refused, and in what words, or its ledger is, or all is where it was."""
    directory = DataDirectory(disk, "data")
    directory.open()
    engine = make_engine(disk, directory, await golden.store(), VirtualClock())
    hold_letters(engine)
    try:
        await engine.start()
        found = await whereabouts(engine)
    except StartupError as refused:
        return f"refused: {refused}"
    except PenstockError:
        offline = [engine.topics.partition(topic, 0).attached[0].offline for topic in GROUPS]
        return "refused: " + " ".join(str(each) for each in offline if each is not None and each.code is CORRUPT)
    else:
        return "the same" if found == golden.expected else "another state"
    finally:
        await engine.abandon()


@pytest.mark.parametrize(
    ("golden", "ending"),
    [(GOLDEN[0], "stopped"), *((path, "killed") for path in GOLDEN)],
    ids=lambda each: each if isinstance(each, str) else each.name,
)
def test_a_flipped_bit_of_a_ledger_is_found_or_harmless(golden: Path, ending: str, tmp_path: Path) -> None:
    """Never is another state taken for the one that was written."""
    held = Golden(golden)
    held.entries = asyncio.run(read_entries(golden, tmp_path / "meta"))
    if ending == "killed":
        held.disk.unlink("data/clean-shutdown")
    paths = [f"data/logs/{topic}~queue/0/{name}" for topic in GROUPS for name in _names(held.disk, topic)]

    async def main() -> dict[tuple[str, str], int]:
        counts: dict[tuple[str, str], int] = {}
        for path in paths:
            for position in range(len(path) % _STEP, held.disk.open(path).size(), _STEP):
                disk = held.disk.backup()
                disk.flip_byte(path, position, 1 << position % 8)
                verdict = await look(held, disk)
                if verdict != "the same":
                    assert verdict.startswith("refused: ") and "~queue" in verdict, f"{path} at {position}: {verdict}"
                key = path.rpartition("/")[2].rpartition(".")[2], verdict.partition(":")[0]
                counts[key] = counts.get(key, 0) + 1
        return counts

    counts = run_virtual(main, 1)
    assert counts["log", "refused"] > 50, counts
    assert {verdict for kind, verdict in counts if kind not in ("log", "meta")} == {"the same"}, counts


def _names(disk: FaultyDisk, topic: str) -> list[str]:
    return sorted(disk.list_dir(f"data/logs/{topic}~queue/0"))
