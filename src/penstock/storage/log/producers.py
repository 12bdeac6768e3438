"""Idempotent producers (KIP-98): for each, the last five batches, so that a retry is recognised and a gap refused.

A batch of producer P with epoch E and sequences [first, last] is
  a duplicate    if it equals one of the last five of the same epoch: answered with that one's offset;
  next in line   if `first` follows the last sequence, or there is none of E yet and `first` is 0, or P is unknown;
  out of order   otherwise;  fenced, if E is older than the one on record.
"""

from collections import deque
from collections.abc import Container, Iterator
from typing import NamedTuple

from penstock.errors import Code, PenstockError
from penstock.records.batch import LOG_APPEND_TIME, Header
from penstock.records.control import decode_coordinator_epoch

KEPT_BATCHES = 5
EXPIRY_MS = 7 * 24 * 3600 * 1000
_SEQUENCES = 0x7FFFFFFF
_BEYOND_COORDINATORS = 1 << 30
"""No coordinator has come so far: an epoch rises when one starts. Earlier releases took any that a client named."""


class SentBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int
    """Log-append time of the batch, or -1."""


class Producer:
    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "seen_ms")

    def __init__(self, epoch: int, seen_ms: int, batches: list[SentBatch] | None = None) -> None:
        self.epoch = epoch
        self.seen_ms = seen_ms
        self.last_timestamp = seen_ms
        """Of the records it sent last; after a restart, when it sent them."""
        self.batches: deque[SentBatch] = deque(batches or [], KEPT_BATCHES)
        self.coordinator_epoch = -1
        """Of the last marker in this epoch: who decided the last transaction. A marker of an earlier one comes late."""

    def begin(self, epoch: int) -> None:
        """Sequences begin at 0 again. Whoever decides on this epoch knows all that was decided on earlier ones."""
        self.epoch = epoch
        self.batches.clear()
        self.coordinator_epoch = -1


class Producers:
    """The producers of one log. `check` before the append, `note` after it, no await in between."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, producer_id: int) -> Producer | None:
        return self._by_id.get(producer_id)

    def items(self) -> Iterator[tuple[int, Producer]]:
        return iter(self._by_id.items())

    def check(self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int) -> SentBatch | None:
        """None if the batch is next in line, the batch on record if it is a duplicate.

        Raises:
            PenstockError: INVALID_PRODUCER_EPOCH or OUT_OF_ORDER_SEQUENCE.
        """
        producer = self._by_id.get(producer_id)
        if producer is None:
            return None
        if epoch < producer.epoch:
            raise PenstockError(
                Code.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} is fenced: epoch {epoch} is older than {producer.epoch}",
            )
        if epoch > producer.epoch:
            if first_sequence != 0:
                raise PenstockError(
                    Code.OUT_OF_ORDER_SEQUENCE,
                    f"producer {producer_id} begins epoch {epoch} with sequence {first_sequence}, not 0",
                )
            return None
        for sent in producer.batches:
            if sent.first_sequence == first_sequence and sent.last_sequence == last_sequence:
                return sent
        expected = (producer.batches[-1].last_sequence + 1) & _SEQUENCES if producer.batches else 0
        if first_sequence != expected:
            raise PenstockError(
                Code.OUT_OF_ORDER_SEQUENCE,
                f"producer {producer_id} sent sequence {first_sequence}, expected {expected}",
            )
        return None

    def note(self, producer_id: int, epoch: int, sent: SentBatch, now_ms: int, last_timestamp: int) -> None:
        producer = self._by_id.get(producer_id)
        if producer is None:
            producer = self._by_id[producer_id] = Producer(epoch, now_ms)
        elif producer.epoch != epoch:
            producer.begin(epoch)
        producer.seen_ms = now_ms
        producer.last_timestamp = last_timestamp
        producer.batches.append(sent)

    def note_epoch(self, producer_id: int, epoch: int, now_ms: int, coordinator_epoch: int = -1) -> None:
        """A batch without sequences: a marker, or offsets. With a new epoch sequences begin at 0 again (KIP-890)."""
        producer = self._by_id.get(producer_id)
        if producer is None:
            producer = self._by_id[producer_id] = Producer(epoch, now_ms)
        elif epoch > producer.epoch:
            producer.begin(epoch)
        producer.seen_ms = now_ms
        if producer.coordinator_epoch < coordinator_epoch < _BEYOND_COORDINATORS:
            producer.coordinator_epoch = coordinator_epoch

    def note_batch(self, header: Header, batch: bytes | memoryview, now_ms: int) -> None:
        """Take in a batch that is in the log already: copied from a leader, or found at a start."""
        if header.producer_id < 0:
            return
        if header.base_sequence < 0:
            coordinator_epoch = decode_coordinator_epoch(batch) if header.is_control else -1
            self.note_epoch(header.producer_id, header.producer_epoch, now_ms, coordinator_epoch)
            return
        stamp = header.max_timestamp if header.attributes & LOG_APPEND_TIME else -1
        sent = SentBatch(header.base_sequence, header.last_sequence, header.base_offset, header.last_offset, stamp)
        self.note(header.producer_id, header.producer_epoch, sent, now_ms, header.max_timestamp)

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        """Whether a marker comes in time.

        Raises:
            PenstockError: INVALID_PRODUCER_EPOCH for an epoch that is over; COORDINATOR_FENCED for a coordinator whose
                successor has written in the same one: this marker would end a later transaction than the one it was
                meant for. In a later epoch it cannot: who came after its coordinator knows of that epoch.
        """
        producer = self._by_id.get(producer_id)
        if producer is None:
            return
        if epoch < producer.epoch:
            raise PenstockError(
                Code.INVALID_PRODUCER_EPOCH,
                f"a marker of producer {producer_id} has epoch {epoch}, older than {producer.epoch}",
            )
        if epoch == producer.epoch and 0 <= coordinator_epoch < producer.coordinator_epoch:
            raise PenstockError(
                Code.COORDINATOR_FENCED,
                f"a marker of producer {producer_id} is from coordinator epoch {coordinator_epoch}; that of epoch "
                f"{producer.coordinator_epoch} has written already",
            )

    def expire(self, now_ms: int, keep: Container[int] = ()) -> int:
        """Forget producers silent for longer than `EXPIRY_MS`, but those in `keep`; returns how many."""
        silent = [
            producer_id
            for producer_id, producer in self._by_id.items()
            if now_ms - producer.seen_ms > EXPIRY_MS and producer_id not in keep
        ]
        for producer_id in silent:
            del self._by_id[producer_id]
        return len(silent)

    def dump(self) -> list[list[object]]:
        return [
            [pid, p.epoch, p.seen_ms, [list(sent) for sent in p.batches], p.coordinator_epoch]
            for pid, p in self._by_id.items()
        ]

    @classmethod
    def restore(cls, rows: list[list[object]]) -> "Producers":
        producers = cls()
        for producer_id, epoch, seen_ms, batches, *rest in rows:
            assert isinstance(producer_id, int) and isinstance(epoch, int) and isinstance(seen_ms, int)
            assert isinstance(batches, list)
            producer = Producer(epoch, seen_ms, [SentBatch(*sent) for sent in batches])
            if rest and isinstance(rest[0], int) and rest[0] < _BEYOND_COORDINATORS:  # older files end before it
                producer.coordinator_epoch = rest[0]
            producers._by_id[producer_id] = producer
        return producers
