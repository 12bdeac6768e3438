"""Looks at what was appended, so that a queue can give out what is first instead of what came first.

Records are looked at once they are committed, and leased no sooner. A batch that carries none of our headers is passed
over as a whole, unless it is compressed or a queue goes by keys. What another leader had looked at is looked at again:
whatever the oldest queue has not settled.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from penstock.engine.coordination.outcome import NOTHING, Outcome
from penstock.engine.coordination.shard import Shard
from penstock.engine.looking import look_until
from penstock.engine.partition import Partition
from penstock.engine.queues.headers import DELAY_MS, DELIVER_AT, PRIORITY, TENANT, read_value
from penstock.engine.queues.machine import LedgerMachine
from penstock.engine.queues.rulebook import Rulebook
from penstock.engine.queues.sorting.marks import Marks, Said
from penstock.engine.steady_clock import SteadyClock
from penstock.errors import PenstockError
from penstock.observe.logs import get_logger
from penstock.records.batch import LARGEST_OPENED_BYTES, decode_header
from penstock.records.compression import Codec, CompressionError
from penstock.records.record import RecordError, iterate_batch
from penstock.tasks import Tasks

log_ = get_logger("queues")
_READ_BYTES: Final = 256 * 1024
_ON_LOOP_BYTES: Final = 16 * 1024
_PATIENCE_S: Final = 0.05
_NAMES: Final = frozenset((PRIORITY, TENANT, DELIVER_AT, DELAY_MS))
_PREFIX: Final = b"penstock-"


class Looked(NamedTuple):
    """What was found in some batches.

    Attributes:
        published_ms: when the last record in them was, at the latest.
    """

    last: int
    said: list[Said]
    published_ms: int


class Indexer:
    """Of one broker.

    Args:
        clock: that ledgers go by, or what is due would be so by another time.
    """

    def __init__(self, rulebook: Rulebook, clock: SteadyClock, tasks: Tasks) -> None:
        self._rulebook = rulebook
        self._clock = clock
        self._tasks = tasks
        self._running: dict[Partition, asyncio.Event] = {}
        self._wakes: dict[Partition, Callable[[], None]] = {}
        self._given: dict[Partition, Mapping[str, object]] = {}
        """What the queues of a topic went by when its records were looked at."""

    def led(self, shard: Shard[LedgerMachine], data: Partition) -> None:
        """Look at what is there, and whatever comes, while this broker leads."""
        if self._rulebook.known(data.topic):
            self._look_soon(shard, data)

    async def ready(self, shard: Shard[LedgerMachine], machine: LedgerMachine, data: Partition) -> None:
        """Return when all that is there was looked at, or soon."""
        given = self._rulebook.sorting_of(data.topic)
        if self._given.get(data) != given:
            machine.sorting.marks = None
        marks = machine.sorting.marks
        if marks is not None and marks.end >= data.high_watermark:
            return
        event = self._look_soon(shard, data)
        if event is not None:
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await event.wait()
            except TimeoutError:
                return

    def _look_soon(self, shard: Shard[LedgerMachine], data: Partition) -> asyncio.Event | None:
        event = self._running.get(data)
        if event is None and data.led is not None:
            event = self._running[data] = asyncio.Event()
            self._tasks.spawn(self._run(shard, data, event), f"look at {data.name}")
        return event

    async def _run(self, shard: Shard[LedgerMachine], data: Partition, event: asyncio.Event) -> None:
        try:
            machine = await shard.machine()
            await self._catch_up(shard, machine, data)
        except (PenstockError, OSError) as error:
            log_.limited("look").info("records are not looked at now", partition=data.name, error=str(error))
            return
        finally:
            self._running.pop(data, None)
            event.set()
        loaded = shard.loaded
        if data.led is None or loaded is None:
            self._wakes.pop(data, None)
            self._given.pop(data, None)
            return
        self._watch(shard, data)
        if loaded.sorting.marks is None or loaded.sorting.marks.end < data.high_watermark:
            self._look_soon(shard, data)  # it came before the watch, or this broker leads anew

    def _watch(self, shard: Shard[LedgerMachine], data: Partition) -> None:
        """Go on when there is more."""
        wake = self._wakes.get(data)
        if wake is None:

            def wake() -> None:
                if data.led is not None and shard.loaded is not None:
                    self._look_soon(shard, data)

            self._wakes[data] = wake
        data.unwatch(wake)
        data.watch(wake)

    async def _catch_up(self, shard: Shard[LedgerMachine], machine: LedgerMachine, data: Partition) -> None:
        sorting = machine.sorting
        while shard.loaded is machine:
            marks = sorting.marks
            if marks is None:
                marks = self._begin(machine, data)
            if marks.end >= data.high_watermark:
                break
            by_key = any(rules.is_fifo for rules in self._rulebook.all_of(data.topic).values())
            looked = await self._look(data, marks.end, by_key)
            if sorting.marks is marks:
                shard.step(_mark(looked))
                await shard.turn_ended()
            await asyncio.sleep(0)
        sorting.trim(machine.groups)

    def _begin(self, machine: LedgerMachine, data: Partition) -> Marks:
        self._given[data] = self._rulebook.sorting_of(data.topic)
        known = self._rulebook.known(data.topic)
        starts = [group.window.start for group in machine.groups if group.name in known]
        new_from = machine.sorting.counted_to
        begin = max(min(starts, default=data.log_start), 0)
        return machine.look_from(begin, data.high_watermark if new_from is None else new_from)

    async def _look(self, data: Partition, offset: int, by_key: bool) -> Looked:
        at = max(offset, data.log_start)
        end = data.high_watermark
        if at >= end:
            return Looked(end - 1, [], 0)
        found = await look_until(data, at, _READ_BYTES, committed=False)
        if found.data is None:
            return Looked(end - 1, [], 0)
        disk, now, piece = data.leading().shelf.disk, self._clock.now_ms(), found.data
        if piece.size <= _ON_LOOP_BYTES:
            looked = look_through(piece.file.read_at(piece.size, piece.position), now, by_key)
        else:
            looked = await disk.run(lambda: look_through(piece.file.read_at(piece.size, piece.position), now, by_key))
        return looked


def _mark(looked: Looked) -> Callable[[LedgerMachine, int], Outcome]:
    def step(machine: LedgerMachine, now: int) -> Outcome:
        machine.looked(now, looked.last, looked.said, looked.published_ms)
        return NOTHING

    return step


def look_through(batches: bytes, now: int, by_key: bool) -> Looked:
    """What the records of whole batches say. What cannot be read says nothing: whoever gets it finds that out."""
    said: list[Said] = []
    position, last, published_ms = 0, -1, 0
    while position < len(batches):
        header = decode_header(batches, position)
        last, published_ms = header.last_offset, max(published_ms, header.max_timestamp)
        begin, position = position, position + header.size
        is_plain = header.codec == Codec.NONE and batches.find(_PREFIX, begin, position) < 0
        if header.is_control or (is_plain and not by_key):
            continue
        try:
            _look_at(batches[begin:position], now, by_key, said)
        except (RecordError, CompressionError):
            continue
    return Looked(last, said, min(published_ms, now))


def _look_at(batch: bytes, now: int, by_key: bool, said: list[Said]) -> None:
    for offset, timestamp, record in iterate_batch(batch, LARGEST_OPENED_BYTES):
        key = record.key if by_key else None
        found = {name: value for name, value in record.headers if name in _NAMES}
        if not found:
            if key is not None:
                said.append(Said(offset, key=key))
            continue
        read: dict[str, Any] = {name: read_value(name, value) for name, value in found.items()}
        due_ms, delay_ms = read.get(DELIVER_AT), read.get(DELAY_MS)
        if delay_ms is not None:
            due_ms = max(due_ms or 0, min(timestamp, now) + delay_ms)
        said.append(Said(offset, read.get(PRIORITY), read.get(TENANT), key, due_ms))
