"""An engine on a simulated disk, for tests of storage and engine: one life of a broker, and how to read its logs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

from penstock.engine.engine import Engine
from penstock.engine.partition import Partition
from penstock.engine.reading import AbortedTransaction, Cursor
from penstock.engine.safety import until_safe
from penstock.engine.settings import EngineSettings, Ports
from penstock.observe.stats import Stats
from penstock.ports.disk import Disk
from penstock.ports.metadata import MetadataStore
from penstock.records.batch import HEADER_BYTES, Header, crc_matches, decode_header
from penstock.records.build import build_batch
from penstock.records.record import iterate_batch
from penstock.storage.data_directory import DataDirectory
from penstock.storage.log.log import Appended
from penstock.testing.virtual_clock import VirtualClock, run_virtual

HUGE = 1 << 30
BATCH_LIMIT = 1 << 24


class Broker:
    """One life of a broker without its network."""

    def __init__(
        self,
        disk: Disk,
        store: MetadataStore,
        clock: VirtualClock,
        *,
        seed: int = 0,
        defaults: Mapping[str, str] | None = None,
        upkeep_ms: int = 50,
        ends_behind_s: float = 10.0,
    ) -> None:
        self.disk: Any = disk
        self.clock = clock
        self.failures: list[BaseException] = []
        self.stats = Stats()
        self.directory = DataDirectory(disk, "data")
        self.engine = Engine(
            Ports(disk, clock, Random(seed), store),
            self.directory,
            self.stats,
            self.failures.append,
            EngineSettings(
                defaults=defaults or {}, default_partitions=1, upkeep_ms=upkeep_ms, ends_behind_s=ends_behind_s
            ),
        )

    async def start(self) -> None:
        await self.disk.run(self.directory.open)
        await self.engine.start()

    async def stop(self) -> None:
        await self.engine.stop()
        self.directory.release()

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self.engine.topics.partition(topic, index)


@asynccontextmanager
async def running(broker: Broker) -> AsyncIterator[Broker]:
    """Started at the beginning, stopped cleanly at the end, and nothing failed meanwhile."""
    await broker.start()
    yield broker
    await broker.stop()
    assert broker.failures == []


def batch_of(values: list[bytes], clock: VirtualClock, **fields: Any) -> bytearray:
    now_ms = clock.now_ms()
    return bytearray(build_batch([(None, value, [], now_ms) for value in values], **fields))


def append(partition: Partition, batch: bytearray) -> Appended:
    return partition.append(memoryview(batch))


async def until_visible(partition: Partition, last_offset: int) -> None:
    """Return when an `acks=all` of a batch ending at `last_offset` would be answered."""
    if partition.high_watermark <= last_offset:
        await until_safe([(partition, last_offset)])


async def produce(partition: Partition, batch: bytearray) -> Appended:
    appended = append(partition, batch)
    await until_visible(partition, appended.last_offset)
    return appended


class Stored(NamedTuple):
    """One batch as a reader gets it."""

    header: Header
    data: bytes

    @property
    def records(self) -> list[tuple[int, bytes]]:
        return [(offset, record.value or b"") for offset, _, record in iterate_batch(self.data, BATCH_LIMIT)]


async def read_some(partition: Partition, offset: int, max_bytes: int = HUGE) -> list[Stored]:
    """What a reader of everything visible gets next."""
    return (await read_next(partition, offset, max_bytes, committed=False))[0]


async def read_next(
    partition: Partition, offset: int, max_bytes: int, *, committed: bool
) -> tuple[list[Stored], Sequence[AbortedTransaction]]:
    """Batches, and what was aborted among them."""
    found = await Cursor(partition, offset, committed=committed).next(max_bytes, 0)
    batches = [] if found.data is None else split(found.data.file.read_at(found.data.size, found.data.position))
    return batches, found.aborted


def split(data: bytes) -> list[Stored]:
    batches, position = [], 0
    while position < len(data):
        assert len(data) - position >= HEADER_BYTES, "a read ends inside a header"
        header = decode_header(data, position)
        batch = data[position : position + header.size]
        assert len(batch) == header.size, "a read ends inside a batch"
        assert crc_matches(memoryview(batch), header), "a read has a damaged batch"
        batches.append(Stored(header, batch))
        position += header.size
    return batches


async def read_all(partition: Partition, offset: int | None = None, max_bytes: int = HUGE) -> list[Stored]:
    """Every batch from `offset` (the log start) to the high watermark; each follows the one before."""
    batches: list[Stored] = []
    position = partition.opened().log_start if offset is None else offset
    while position < partition.high_watermark:
        some = await read_some(partition, position, max_bytes)
        assert some, f"nothing at {position}, below the high watermark {partition.high_watermark}"
        assert some[0].header.base_offset <= position
        for batch in some:
            assert batch.header.base_offset == position or (batch is some[0] and not batches)
            position = batch.header.last_offset + 1
        batches += some
    return batches


async def wait_for(condition: Callable[..., object], limit_s: float = 60.0) -> None:
    """Let virtual time pass until the condition holds."""
    deadline = asyncio.get_running_loop().time() + limit_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition never came true"
        await asyncio.sleep(0.01)


def virtual(function: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Make a test of a coroutine function, run in virtual time."""

    def test() -> None:
        run_virtual(function, 7)

    test.__name__ = function.__name__
    test.__doc__ = function.__doc__
    return test


@contextmanager
def small_blocks(block_bytes: int = 1024, checkpoint_bytes: int = 3000) -> Iterator[None]:
    """Let files of a few KiB have many checksum blocks and checkpoints."""
    places = ("penstock.storage.log.card", "penstock.storage.log.segment", "penstock.storage.log.recovery")
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(patch(f"{place}.BLOCK_BYTES", block_bytes))
        stack.enter_context(patch("penstock.storage.log.upkeep.CHECKPOINT_BYTES", checkpoint_bytes))
        yield
