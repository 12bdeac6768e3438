"""What only the leader of a partition does: append, count its followers, say how far everything is committed.

With one replica the in-sync set is this broker, and the high watermark is what its log promises.
"""

from collections.abc import Collection
from typing import NamedTuple

from penstock.engine.coordination.internal_topics import INTERNAL_TOPICS
from penstock.engine.intake import check_records, check_timestamp
from penstock.engine.leadership import UNKNOWN, Leadership
from penstock.engine.replica import Replica, nothing
from penstock.engine.topic_config import TimestampType
from penstock.engine.waiters import Told
from penstock.errors import Code, PenstockError
from penstock.records.batch import (
    NO_TIMESTAMP,
    Header,
    check_produced,
    decode_header,
    patch_append_time,
)
from penstock.records.control import NO_COORDINATOR, Marker, build_marker
from penstock.storage.log.log import Appended, Log
from penstock.storage.log.producers import Producer
from penstock.storage.log.reading import read_slice
from penstock.storage.log.segment import FileSlice

NO_OFFSET = -1
_MOST_GUARDS = 10_000
_CUT_OFF_S = 3.0
"""Followers ask twice a second at least."""


class EpochEnd(NamedTuple):
    epoch: int
    end_offset: int


class KnownProducer(NamedTuple):
    producer_id: int
    state: Producer
    transaction_start: int
    """`NO_OFFSET` if none is open."""


class Leader(Replica):
    """All of it raises PenstockError NOT_LEADER on a broker that does not lead."""

    __slots__ = ()

    def leading(self) -> Log:
        """The log, for what only the leader may do. Raises PenstockError NOT_LEADER, or why it is not available."""
        if self.led is None:
            raise self._not_led()
        return self.led

    @property
    def leadership(self) -> Leadership:
        """What this broker knows as the leader. Raises PenstockError NOT_LEADER."""
        if self._leadership is None:
            raise self._not_led()
        return self._leadership

    # --- what is committed

    @property
    def is_settled(self) -> bool:
        """Whether everything that was here when this broker became the leader is committed."""
        return self._leadership is not None and self.high_watermark >= self._leadership.epoch_start

    def not_settled(self) -> PenstockError:
        """KIP-207: there may have been more with the leader before."""
        return PenstockError(Code.OFFSET_NOT_AVAILABLE, f"{self.name} has a new leader, not up to date yet")

    @property
    def shown_ends(self) -> tuple[int, int]:
        """The high watermark and the last stable offset, as clients are told; `UNKNOWN` until this `is_settled`.

        A new leader may know of less than the one before has told; all of it lies below the beginning of this epoch. A
        client that sees the end go back takes it for the end: it stops reading there, or says that it has read all.
        """
        leadership, high_watermark = self._leadership, self.high_watermark
        if leadership is None or high_watermark < leadership.epoch_start:
            return UNKNOWN, UNKNOWN
        return high_watermark, self.stable_offset

    @property
    def stable_offset(self) -> int:
        """Where a read_committed reader stops: the first offset that belongs to a transaction not yet decided."""
        log = self.led
        if log is None or log.first_unstable < 0:
            return self.high_watermark
        return min(log.first_unstable, self.high_watermark)

    def when_safe(self, last_offset: int, told: Told, *, patient: bool = False) -> None:
        """Tell when everything up to `last_offset` is where it was promised to be; see `Waiters.when_safe`.

        To be asked right after the append: later offsets of another leader's would pass for those.
        """
        if self.high_watermark > last_offset:
            told(None)
        else:
            self.waiters.when_safe(last_offset, told, patient=patient)

    def check_in_sync(self, copies: int = 0) -> None:
        """Whether what is appended now could be acknowledged to who wants it safe. Raises NOT_ENOUGH_REPLICAS.

        Args:
            copies: how many replicas in sync there have to be, besides what the topic wants.
        """
        leadership = self._leadership
        if self.is_cut_off:
            raise self._cut_off()
        if leadership is not None and (not leadership.enough or copies > len(self.state.isr)):
            state = self.state
            least = max(self.config.least_in_sync(state.width), copies)
            lacking = ", ".join(str(each) for each in state.replicas if each not in state.isr) or "none"
            raise PenstockError(
                Code.NOT_ENOUGH_REPLICAS,
                f"{self.name} has {len(state.isr)} of {len(state.replicas)} replicas in sync; {least} are needed "
                f"(brokers not in sync: {lacking})",
            )

    def look_again(self) -> None:
        """Called now and then: the lease may hold again, or followers may be silent while it does not."""
        for attached in self.attached:
            attached.look_again()
        self._advance()
        leadership = self._leadership
        since = self._clock.monotonic() - _CUT_OFF_S
        self.is_cut_off = leadership is not None and not self.may_decide_alone() and leadership.is_deaf(since)
        if self.is_cut_off:  # clients look for another leader, and do not wait here
            self.waiters.cut_off(self._cut_off())
            self.waiters.wake_readers()

    def _cut_off(self) -> PenstockError:
        return PenstockError(
            Code.NOT_LEADER, f"{self.name}: this broker is cut off from its followers, and another may lead by now"
        )

    def _advance(self) -> None:
        """Move the high watermark as far as everything is where it was promised to be."""
        log, leadership = self.led, self._leadership
        if log is None or leadership is None:
            return  # deleted, or led no more, while its last round was under way
        committed = leadership.committed(log.visible_end)
        if committed <= self.high_watermark or not leadership.enough:
            return
        if leadership.is_alone and not self.may_decide_alone():
            return
        self.high_watermark = committed
        self._note_committed(log)
        self.waiters.advance(committed)

    # --- appending

    def append(self, batch: memoryview) -> Appended:
        """Check a client's batch and append it; it must be writable, and is patched in place.

        Not for a batch that has to be opened in a thread, or to wait: those go through the engine's `opener`.

        Raises:
            PenstockError: per partition; nothing was appended.
        """
        header = self.check(batch)
        check_records(self.config, batch, header)
        return self.append_checked(batch, header)

    def must_wait(self, header: Header) -> bool:
        """Whether a batch has to wait its turn behind one of the same producer, or for duplicates to be looked for."""
        if header.producer_id in self.waiting_producers:
            return True
        return self.once is not None and not header.is_transactional

    def is_there(self, header: Header) -> bool:
        """Whether a batch was appended before. Raises PenstockError if it does not follow its producer's last one."""
        return _is_there(self.leading(), header)

    def check(self, batch: memoryview) -> Header:
        """Whether a client's batch may be appended, as far as its header tells. Raises PenstockError."""
        if len(batch) > self.config.max_message_bytes:
            raise self._too_large(batch)
        if self.topic in INTERNAL_TOPICS:
            raise PenstockError(Code.INVALID_TOPIC, f"topic {self.topic!r} is written by the broker only")
        return check_produced(batch)

    def check_writers(self) -> None:
        """Whether clients may write to it at all. Raises PenstockError INVALID_TOPIC."""
        if self.config.written_by_broker:
            raise PenstockError(
                Code.INVALID_TOPIC,
                f"topic {self.topic!r} is written by the broker only",
                help="move what is in it back to its queue, or alter the topic: written.by=clients",
            )

    def is_in_transaction(self, header: Header) -> bool:
        """Whether a transactional batch belongs to a transaction that has begun here, so that nobody needs asking."""
        log = self.led if self.led is not None else self.leading()
        if header.producer_id not in log.active_transactions.open:
            return False
        producer = log.state.producers.get(header.producer_id)
        return producer is not None and producer.epoch == header.producer_epoch

    def append_checked(self, batch: memoryview, header: Header) -> Appended:
        """Stamp a checked batch with its time and append it. Raises PenstockError; nothing was appended then."""
        log = self.led if self.led is not None else self.leading()
        if self.is_cut_off:
            raise self._cut_off()
        self.steps += 1
        config = self.config
        append_time = -1
        if len(batch) > config.max_message_bytes:  # it may have grown when it was opened
            raise self._too_large(batch)
        if config.timestamp_type is TimestampType.LOG_APPEND_TIME or self.once is not None:
            append_time = self._clock.now_ms()
            header = patch_append_time(batch, header, append_time)
        elif header.max_timestamp != NO_TIMESTAMP:
            check_timestamp(config, self.topic, header.max_timestamp, self._clock.now_ms())
        if self.room is not None and not header.is_control and not _is_there(log, header):
            self.room(header.record_count, len(batch))
        return log.append(batch, header, self.leader_epoch, append_time)

    def _too_large(self, batch: memoryview) -> PenstockError:
        allowed = f"{self.topic} takes max.message.bytes={self.config.max_message_bytes}"
        return PenstockError(Code.BATCH_TOO_LARGE, f"record batch of {len(batch)} bytes; {allowed}")

    def append_own(self, batch: bytearray) -> Appended:
        """Append a batch the broker built itself, as it is. Raises PenstockError."""
        self.check_in_sync()
        return self.leading().append(memoryview(batch), decode_header(batch), self.leader_epoch)

    def append_marker(self, producer_id: int, producer_epoch: int, marker: Marker, coordinator_epoch: int) -> Appended:
        """Write the marker that ends a producer's transaction here. Raises PenstockError."""
        log = self.leading()
        self.check_in_sync()
        batch = bytearray(build_marker(producer_id, producer_epoch, marker, coordinator_epoch, self._clock.now_ms()))
        appended = log.append_marker(memoryview(batch), self.leader_epoch, coordinator_epoch)
        self.guards.pop(producer_id, None)
        return appended

    def append_abort(self, producer_id: int, producer_epoch: int) -> Appended:
        """Abort a producer's transaction here for somebody who is not its coordinator. Raises PenstockError.

        The marker has the epoch that is known here and no coordinator's: in this log, in every copy of it and after a
        restart it fences neither the producer nor its coordinator.
        """
        log = self.leading()
        if producer_id not in log.active_transactions.open:
            raise PenstockError(
                Code.INVALID_TRANSACTION_STATE, f"no transaction of producer {producer_id} is open in {self.name}"
            )
        known = log.state.producers.get(producer_id)
        if known is not None and known.epoch != producer_epoch:
            raise PenstockError(
                Code.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} is in epoch {known.epoch} in {self.name}, not {producer_epoch}",
            )
        return self.append_marker(producer_id, known.epoch if known is not None else 0, Marker.ABORT, NO_COORDINATOR)

    def guard(self, producer_id: int) -> object:
        """Stands for the producer's transaction here until a marker comes, or another broker leads."""
        if producer_id not in self.guards and len(self.guards) >= _MOST_GUARDS:
            del self.guards[next(iter(self.guards))]
        return self.guards.setdefault(producer_id, object())

    # --- followers

    def let_join(self, members: Collection[int]) -> None:
        """From now on these count as in sync: a change that says so is on its way. `use_state` ends it."""
        for each in (self, *self.attached):
            if each._leadership is not None:
                each._joining = tuple({*each._joining, *members})  # an earlier change may have been made, too
                each._use_members()

    def _use_members(self) -> None:
        assert self._leadership is not None and self.log is not None
        state = self.state
        self.log.on_appended = self.waiters.appended if len(state.replicas) > 1 else nothing
        least = self.config.least_in_sync(state.width)
        waiting = (*state.elr, *state.last)
        self._leadership.use(state.replicas, state.isr, self._joining, waiting, least, self._clock.monotonic())

    def replica_fetched(self, broker_id: int, incarnation: int, offset: int) -> None:
        """A follower asks for `offset` in this epoch, so it has everything below. Raises PenstockError."""
        log, leadership = self.leading(), self.leadership
        if offset > log.end_offset:
            raise PenstockError(Code.OFFSET_OUT_OF_RANGE, f"{self.name} ends at {log.end_offset}, not {offset}")
        if not leadership.fetched(broker_id, offset, incarnation, log.end_offset, self._clock.monotonic()):
            raise PenstockError(Code.NOT_ALLOWED, f"broker {broker_id} has no replica of {self.name}")
        if broker_id in self.state.isr or broker_id in self._joining:
            self._advance()
        elif offset >= max(self.high_watermark, leadership.epoch_start):
            self.on_followers_moved()

    def check_beginning(self, broker_id: int, offset: int, last_epoch: int) -> None:
        """Whether an empty replica may go on at `offset`. Raises PenstockError OFFSET_OUT_OF_RANGE: it begins anew.

        It cannot tell by which history it came there. If that was another one, which an operator has given up since, it
        would never have what is below, and would lead without it one day. One that counts came by this one; it may be
        elected at any time, so it must not go back either.
        """
        log, state = self.leading(), self.state
        counts = broker_id in state.isr or broker_id in state.elr or broker_id in self._joining
        if last_epoch < 0 and offset > log.log_start and not counts:
            raise PenstockError(
                Code.OFFSET_OUT_OF_RANGE,
                f"{self.name} begins at {log.log_start}, and so does an empty replica, not at {offset}",
            )

    def replica_read(
        self, offset: int, max_bytes: int, *, at_least_one: bool, warmed: bool = False
    ) -> FileSlice | None:
        """As `read`, for a follower: everything there is, committed or not."""
        log = self.leading()
        self.steps += 1
        return read_slice(log, offset, log.end_offset, max_bytes, at_least_one, warmed, everything=True)

    # --- epochs

    def check_epoch(self, current: int) -> None:
        """KIP-320: the client's idea of the leader epoch. -1 asks for no check. Raises NOT_LEADER too."""
        if self.led is None:
            self.leading()
        if self.is_cut_off:
            raise self._cut_off()
        self._check_epoch(current)

    def _check_epoch(self, current: int) -> None:
        if current in (-1, self.leader_epoch):
            return
        code = Code.FENCED_LEADER_EPOCH if current < self.leader_epoch else Code.UNKNOWN_LEADER_EPOCH
        raise PenstockError(code, f"{self.topic}-{self.index} is in leader epoch {self.leader_epoch}, not {current}")

    def check_replica_epoch(self, current: int) -> None:
        """A follower follows in this very epoch, or what it says and is told is worth nothing (R2, R3)."""
        self.leading()
        if current != self.leader_epoch:
            self._check_epoch(max(current, 0))
            raise PenstockError(Code.FENCED_LEADER_EPOCH, f"{self.name}: a follower must name its epoch, not {current}")

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        log = self.leading()
        return EpochEnd(*log.state.epochs.end_of(epoch, log.end_offset))

    def epoch_at(self, offset: int) -> int:
        """The leader epoch in which the record at an offset was appended; -1 if nobody knows."""
        return self.leading().state.epochs.at(offset)

    # --- the log

    @property
    def log_start(self) -> int:
        """The first offset that clients may read. Raises PenstockError NOT_LEADER, as all of these."""
        return self.leading().log_start

    @property
    def first_offset(self) -> int:
        """The first offset that followers may copy; below the log start while something is about to be removed."""
        return self.leading().first_offset

    @property
    def end_offset(self) -> int:
        return self.leading().end_offset

    @property
    def producer_count(self) -> int:
        return len(self.leading().state.producers)

    def known_producers(self) -> list[KnownProducer]:
        """Every producer that the partition knows, and where its transaction here began."""
        log = self.leading()
        return [
            KnownProducer(producer_id, producer, log.active_transactions.open.get(producer_id, NO_OFFSET))
            for producer_id, producer in log.state.producers.items()
        ]


def _is_there(log: Log, header: Header) -> bool:
    """Whether a batch was appended before. Raises PenstockError if it does not follow what its producer sent last."""
    if header.producer_id < 0 or header.base_sequence < 0:
        return False
    sent = log.state.producers.check(
        header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence
    )
    return sent is not None
