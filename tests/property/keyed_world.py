"""A compacted topic under power cuts: keyed records and transactions, and what readers of committed records may see.

Clients write plain records and transactions; the broker compacts meanwhile. What they know outlives it: which records
were acknowledged, which transactions were asked to commit or to abort, and whether that was answered.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.simulated_broker import HUGE, Stored, append, read_next

from penstock.engine.partition import Partition
from penstock.errors import Code, PenstockError
from penstock.records.build import build_batch
from penstock.records.control import Marker, decode_marker
from penstock.records.record import iterate_batch

SETTINGS = {
    "flush": "commit",
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.0",
}
_KEYS = (b"a", b"b", b"c", b"d")
_CLOSED = (Code.NOT_AVAILABLE, Code.UNKNOWN_TOPIC)


class KeyedViolation(AssertionError):
    """A promise to writers or readers of a compacted topic was broken."""


@dataclass(slots=True)
class Transaction:
    producer_id: int
    records: dict[int, tuple[bytes, bytes | None]] = field(default_factory=dict)
    """Acknowledged ones, by offset."""
    asked: Marker | None = None
    answered: bool = False


@dataclass(slots=True)
class KeyedHistory:
    sent: set[tuple[bytes, bytes | None]] = field(default_factory=set)
    hidden: set[bytes] = field(default_factory=set)
    """Values that nobody may see: of transactions that were aborted, or never ended."""
    plain: dict[int, tuple[bytes, bytes | None]] = field(default_factory=dict)
    """Acknowledged records without a transaction."""
    transactions: list[Transaction] = field(default_factory=list)
    count: int = 0
    compacted_lives: int = 0

    def next_record(self, random: Random) -> tuple[bytes, bytes | None]:
        self.count += 1
        key = random.choice(_KEYS)
        value = None if random.random() < 0.1 else b"%d/" % self.count + b"." * random.choice((10, 100, 400))
        self.sent.add((key, value))
        return key, value

    # --- clients

    async def put(self, partition: Partition, random: Random) -> None:
        record = self.next_record(random)
        done = append(partition, self._batch(partition, record))
        await _acknowledged(partition, done.last_offset)
        self.plain[done.base_offset] = record

    async def transact(
        self, partition: Partition, producer_id: int, random: Random, batches: int, marker: Marker | None
    ) -> None:
        """Write a transaction and end it; None leaves it open."""
        transaction = Transaction(producer_id)
        self.transactions.append(transaction)
        for sequence in range(batches):
            key, value = self.next_record(random)
            value = value or b"%d/not null" % self.count
            self.sent.add((key, value))
            if marker is not Marker.COMMIT:
                self.hidden.add(value)
            fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
            done = append(partition, self._batch(partition, (key, value), **fields))
            await _acknowledged(partition, done.last_offset)
            transaction.records[done.base_offset] = (key, value)
            await asyncio.sleep(random.choice((0, 0, 0.003)))
        if marker is not None:
            await self.end(partition, transaction, marker)

    async def end(self, partition: Partition, transaction: Transaction, marker: Marker) -> None:
        transaction.asked = marker
        done = partition.append_marker(transaction.producer_id, 0, marker, 0)
        await _acknowledged(partition, done.last_offset)
        transaction.answered = True

    async def end_the_open(self, partition: Partition) -> None:
        """What a coordinator does after a restart: what was asked for is asked for again, the rest is aborted."""
        for transaction in self.transactions:
            if not transaction.answered:
                if transaction.asked is not Marker.COMMIT:
                    self.hidden.update(value for _, value in transaction.records.values() if value is not None)
                await self.end(partition, transaction, transaction.asked or Marker.ABORT)

    async def work(
        self, partition: Partition, random: Random, new_producer_id: Callable[[], Awaitable[int]], rounds: int
    ) -> None:
        try:
            await self.end_the_open(partition)
            for _ in range(rounds):
                if random.random() < 0.5:
                    await self.put(partition, random)
                else:
                    marker = random.choice((Marker.COMMIT, Marker.ABORT))
                    await self.transact(partition, await new_producer_id(), random, random.randint(1, 3), marker)
                await asyncio.sleep(random.choice((0, 0.001, 0.02)))
        except PenstockError as error:
            if error.code not in _CLOSED:
                raise

    @staticmethod
    def _batch(partition: Partition, record: tuple[bytes, bytes | None], **fields: Any) -> bytearray:
        now_ms = partition._clock.now_ms()
        return bytearray(build_batch([(*record, [], now_ms)], transactional=bool(fields), **fields))

    # --- what must hold

    async def check(self, partition: Partition) -> None:
        log = partition.opened()
        where = f"{log.name} ({log.log_start} to {log.end_offset}, gaps to {log.state.gaps_to})"
        self.compacted_lives += log.state.gaps_to > 0
        stored = await read_raw(partition)
        self._check_stable_offset(partition, stored, where)
        raw = {(at, each.key, each.value) for batch in stored for at, _, each in iterate_batch(batch.data, HUGE)}
        seen = await read_committed(partition)
        self._check_seen(seen, where)
        acknowledged = self.plain | {
            offset: record
            for transaction in self.transactions
            for offset, record in transaction.records.items()
            if transaction.asked is Marker.COMMIT and transaction.answered
        }
        latest: dict[bytes, tuple[int, bytes | None]] = {}
        for offset in sorted(seen):
            latest[seen[offset][0]] = offset, seen[offset][1]
        for offset in sorted(acknowledged):
            key, value = acknowledged[offset]
            found, what = latest.get(key, (-1, None))
            if offset >= partition.stable_offset:  # behind a transaction still open: there, but not to be seen yet
                found, what = (offset, value) if (offset, key, value) in raw else (-1, None)
            if found < offset or (found == offset and what != value):
                raise KeyedViolation(f"{where}: {key!r} was {value!r} at {offset}, is {what!r} at {found}")

    def _check_seen(self, seen: dict[int, tuple[bytes, bytes | None]], where: str) -> None:
        for offset, record in seen.items():
            if record[1] in self.hidden:
                raise KeyedViolation(f"{where}: {record} at {offset} was never committed")
            known = self.plain.get(offset, record)
            if record not in self.sent or known != record:
                raise KeyedViolation(f"{where}: {record} at {offset}, not {known}")

    def _check_stable_offset(self, partition: Partition, stored: list[Stored], where: str) -> None:
        opened: dict[int, int] = {}
        for header, data in stored:
            if header.is_control and decode_marker(data) is not None:
                opened.pop(header.producer_id, None)
            elif header.is_transactional:
                opened.setdefault(header.producer_id, header.base_offset)
        expected = min(opened.values(), default=partition.high_watermark)
        if partition.stable_offset != expected:
            raise KeyedViolation(f"{where}: last stable offset {partition.stable_offset}, by the batches {expected}")
        for transaction in self.transactions:
            if transaction.answered and transaction.producer_id in opened:
                raise KeyedViolation(f"{where}: {transaction} has no marker any more")
            if transaction.asked is None and transaction.records and transaction.producer_id not in opened:
                raise KeyedViolation(f"{where}: {transaction} was ended by nobody")


async def _acknowledged(partition: Partition, last_offset: int) -> None:
    """Return when an `acks=all` is answered; whoever waits may be cancelled, and the answer then goes nowhere."""
    done = asyncio.Event()
    partition.when_safe(last_offset, lambda _: done.set())
    await done.wait()


async def read_raw(partition: Partition) -> list[Stored]:
    """Every batch up to the high watermark; offsets may be missing."""
    batches: list[Stored] = []
    offset = partition.opened().log_start
    while offset < partition.high_watermark:
        some, _ = await read_next(partition, offset, 2000, committed=False)
        if not some:
            break
        batches += some
        offset = some[-1].header.last_offset + 1
    return batches


async def read_committed(partition: Partition) -> dict[int, tuple[bytes, bytes | None]]:
    """Key and value at each offset that a client with isolation.level=read_committed shows."""
    seen: dict[int, tuple[bytes, bytes | None]] = {}
    offset = partition.opened().log_start
    while offset < partition.stable_offset:
        some, aborted = await read_next(partition, offset, 2000, committed=True)
        if not some:
            break
        for header, data in some:
            hidden = header.is_transactional and any(
                row[0] == header.producer_id and row[1] <= header.base_offset <= row[2] for row in aborted
            )
            if not header.is_control and not hidden:
                seen.update({at: (each.key or b"", each.value) for at, _, each in iterate_batch(data, HUGE)})
        offset = some[-1].header.last_offset + 1
    return seen
