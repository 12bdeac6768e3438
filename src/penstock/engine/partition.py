"""One partition as its leader sees it: what may be appended, what may be read, how far the high watermark is."""

from typing import NamedTuple
from uuid import UUID

from penstock.engine.coordination.internal_topics import INTERNAL_TOPICS
from penstock.engine.topic_config import TimestampType, TopicConfig
from penstock.engine.waiters import Waiters
from penstock.errors import Code, PenstockError
from penstock.ports.clock import Clock
from penstock.records.batch import NO_TIMESTAMP, Header, check_produced, decode_header, patch_append_time
from penstock.records.control import Marker, build_marker
from penstock.storage.log.log import Appended, Log
from penstock.storage.log.segment import FileSlice
from penstock.storage.log.transactions import AbortedTransaction

ACKS_ALL = -1


class EpochEnd(NamedTuple):
    epoch: int
    end_offset: int


class Partition:
    """The only writer of its log. With one replica the in-sync set is this broker alone."""

    __slots__ = (
        "_clock",
        "config",
        "high_watermark",
        "index",
        "leader_epoch",
        "log",
        "offline",
        "topic",
        "topic_id",
        "waiters",
        "waiting_producers",
    )

    def __init__(
        self, topic: str, topic_id: UUID, index: int, leader_epoch: int, config: TopicConfig, clock: Clock
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.leader_epoch = leader_epoch
        self.config = config
        self.log: Log | None = None
        self.offline: PenstockError | None = None
        """Why this partition cannot be used, while the others can."""
        self.waiting_producers: set[int] = set()
        """Producers with a batch that is being opened, or waits for something; see `opener`."""
        self.high_watermark = 0
        self.waiters = Waiters()
        self._clock = clock

    def use(self, log: Log) -> None:
        self.log = log
        self.high_watermark = log.visible_end
        log.on_visible = self._advance

    def use_config(self, config: TopicConfig) -> None:
        """Go by other settings from now on."""
        self.config = config
        if self.log is not None:
            self.log.use_options(config.log)
            self._advance()  # with flush=commit no more, nobody waits for a sync

    def opened(self) -> Log:
        """The log. Raises PenstockError when the partition is not available."""
        if self.log is None:
            raise self.offline or PenstockError(Code.NOT_AVAILABLE, f"{self.topic}-{self.index} is not open yet")
        return self.log

    @property
    def stable_offset(self) -> int:
        """Where a read_committed reader stops: the first offset that belongs to a transaction not yet decided."""
        log = self.log
        if log is None or log.first_unstable < 0:
            return self.high_watermark
        return min(log.first_unstable, self.high_watermark)

    def append_own(self, batch: bytearray) -> Appended:
        """Append a batch the broker built itself, as it is. Raises PenstockError."""
        return self.opened().append(memoryview(batch), decode_header(batch), self.leader_epoch)

    def append_marker(self, producer_id: int, producer_epoch: int, marker: Marker, coordinator_epoch: int) -> Appended:
        """Write the marker that ends a producer's transaction here. Raises PenstockError."""
        log = self.opened()
        batch = bytearray(build_marker(producer_id, producer_epoch, marker, coordinator_epoch, self._clock.now_ms()))
        return log.append_marker(memoryview(batch), self.leader_epoch, coordinator_epoch)

    # --- hot path

    def append(self, batch: memoryview, *, zstd_allowed: bool = True) -> Appended:
        """Check a client's batch and append it; it must be writable, and is patched in place.

        Not for a batch that `must_wait`: those go through the engine's `opener`.

        Raises:
            PenstockError: per partition; nothing was appended.
        """
        return self.append_checked(batch, self.check(batch, zstd_allowed=zstd_allowed))

    def must_wait(self, header: Header) -> bool:
        """Whether a batch has to be opened first, or to wait its turn behind one of the same producer."""
        return self.config.opens_batches or header.producer_id in self.waiting_producers

    def check(self, batch: memoryview, *, zstd_allowed: bool = True) -> Header:
        """Whether a client's batch may be appended, as far as one can tell unopened. Raises PenstockError."""
        if len(batch) > self.config.max_message_bytes:
            raise self._too_large(batch)
        if self.topic in INTERNAL_TOPICS:
            raise PenstockError(Code.INVALID_TOPIC, f"topic {self.topic!r} is written by the broker only")
        return check_produced(batch, zstd_allowed=zstd_allowed)

    def is_in_transaction(self, header: Header) -> bool:
        """Whether a transactional batch belongs to a transaction that has begun here, so that nobody needs asking."""
        log = self.log if self.log is not None else self.opened()
        if header.producer_id not in log.active_transactions.open:
            return False
        producer = log.state.producers.get(header.producer_id)
        return producer is not None and producer.epoch == header.producer_epoch

    def append_checked(self, batch: memoryview, header: Header) -> Appended:
        """Stamp a checked batch with its time and append it. Raises PenstockError; nothing was appended then."""
        log = self.log if self.log is not None else self.opened()
        config = self.config
        append_time = -1
        if len(batch) > config.max_message_bytes:  # it may have grown when it was opened
            raise self._too_large(batch)
        if config.timestamp_type is TimestampType.LOG_APPEND_TIME:
            append_time = self._clock.now_ms()
            header = patch_append_time(batch, header, append_time)
        elif header.max_timestamp != NO_TIMESTAMP:
            self._check_timestamp(header)
        return log.append(batch, header, self.leader_epoch, append_time)

    def _too_large(self, batch: memoryview) -> PenstockError:
        allowed = f"{self.topic} takes max.message.bytes={self.config.max_message_bytes}"
        return PenstockError(Code.BATCH_TOO_LARGE, f"record batch of {len(batch)} bytes; {allowed}")

    def _check_timestamp(self, header: Header) -> None:
        now_ms = self._clock.now_ms()
        ahead = header.max_timestamp - now_ms
        if ahead > self.config.timestamp_after_ms or -ahead > self.config.timestamp_before_ms:
            raise PenstockError(
                Code.INVALID_TIMESTAMP,
                f"record time {header.max_timestamp} is {abs(ahead)} ms {'ahead of' if ahead > 0 else 'behind'} the "
                f"broker's clock; see message.timestamp.after.max.ms and .before.max.ms of {self.topic}",
            )

    def read(
        self, offset: int, max_bytes: int, *, committed: bool, at_least_one: bool, warmed: bool = False
    ) -> FileSlice | None:
        """See `Log.read`; stops at the high watermark, or at the last stable offset when `committed`."""
        log = self.log if self.log is not None else self.opened()
        limit = self.stable_offset if committed else self.high_watermark
        return log.read(offset, limit, max_bytes, at_least_one, warmed)

    def aborted_in(self, offset: int, data: FileSlice) -> list[AbortedTransaction]:
        """See `Log.aborted_in`."""
        return self.opened().aborted_in(offset, data, self.stable_offset)

    def _advance(self) -> None:
        if self.log is None:
            return  # deleted while its last round was under way
        visible = self.log.visible_end
        if visible > self.high_watermark:
            self.high_watermark = visible
            if self.log.first_unstable >= 0:
                self.log.settle_transactions(visible)
            self.waiters.advance(visible)

    # --- epochs

    def check_epoch(self, current: int) -> None:
        """KIP-320: the client's idea of the leader epoch. -1 asks for no check."""
        if current in (-1, self.leader_epoch):
            return
        code = Code.FENCED_LEADER_EPOCH if current < self.leader_epoch else Code.UNKNOWN_LEADER_EPOCH
        raise PenstockError(code, f"{self.topic}-{self.index} is in leader epoch {self.leader_epoch}, not {current}")

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        log = self.opened()
        return EpochEnd(*log.state.epochs.end_of(epoch, log.end_offset))
