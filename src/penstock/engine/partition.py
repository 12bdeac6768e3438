"""One partition on this broker: what may be appended, what may be read, how far the high watermark is.

This broker leads it, follows its leader, or has nothing to do with it but knows who has. Clients are served by the
leader alone. With one replica the in-sync set is this broker, and the high watermark is what its log promises.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple
from uuid import UUID

from penstock.compiled import is_compiled
from penstock.engine.coordination.internal_topics import INTERNAL_TOPICS
from penstock.engine.leadership import UNKNOWN, Leadership
from penstock.engine.partition_state import NOBODY, PartitionState
from penstock.engine.topic_config import TimestampType, TopicConfig
from penstock.engine.waiters import AckWait, Waiters
from penstock.errors import Code, PenstockError
from penstock.ports.clock import Clock
from penstock.records.batch import (
    CODEC_MASK,
    NO_TIMESTAMP,
    Header,
    check_produced,
    decode_header,
    patch_append_time,
)
from penstock.records.control import NO_COORDINATOR, Marker, build_marker
from penstock.records.rewrite import check_records, check_uncompressed
from penstock.storage.log.log import Appended, Log
from penstock.storage.log.segment import FileSlice
from penstock.storage.log.transactions import AbortedTransaction

ACKS_ALL = -1
# What one request has looked at on the event loop, half a millisecond's work; the rest goes through the opener, which
# costs two changes of threads for each batch.
MOST_RECORDS_AT_ONCE = 100_000 if is_compiled() else 1_000
MOST_BYTES_AT_ONCE = 256 * 1024  # of compressed batches
MOST_OPENED_AT_ONCE = 512 * 1024
_MOST_GUARDS = 10_000
_CUT_OFF_S = 3.0
"""Followers ask twice a second at least."""


class EpochEnd(NamedTuple):
    epoch: int
    end_offset: int


class Partition:
    """The only writer of its log.

    `log` is this broker's replica, if it has one; `led` is the same while this broker leads, and None otherwise.
    """

    __slots__ = (
        "_clock",
        "_joining",
        "_leadership",
        "_node_id",
        "config",
        "guards",
        "high_watermark",
        "index",
        "is_cut_off",
        "is_damaged",
        "leader_epoch",
        "led",
        "log",
        "may_decide_alone",
        "offline",
        "on_followers_moved",
        "state",
        "steps",
        "topic",
        "topic_id",
        "waiters",
        "waiting_producers",
    )

    def __init__(
        self,
        topic: str,
        topic_id: UUID,
        index: int,
        state: PartitionState,
        config: TopicConfig,
        clock: Clock,
        node_id: int,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.state = state
        self.leader_epoch = state.leader_epoch
        """Of `state`; of the leadership, while this broker leads."""
        self.config = config
        self.log: Log | None = None
        self.led: Log | None = None
        self.offline: PenstockError | None = None
        """Why this partition cannot be used, while the others can."""
        self.is_cut_off = False
        """Whether this broker leads, as far as it knows, but can commit nothing; another may have been elected."""
        self.is_damaged = False
        """Whether this replica lacks what it should have, so that it may only be made anew from another one."""
        self.steps = 0
        """Appends and reads here since the start: the broker's work is shared out among partitions by it."""
        self.waiting_producers: set[int] = set()
        """Producers with a batch that is being opened, or waits for something; see `opener`."""
        self.guards: dict[int, object] = {}
        """By producer: stands for a transaction that is being looked up elsewhere; gone when a marker comes."""
        self.high_watermark = 0
        self.waiters = Waiters()
        self.may_decide_alone: Callable[[], bool] = _always
        """Whether this broker may commit by itself what others have replicas of; not if it may have been replaced."""
        self.on_followers_moved: Callable[[], None] = _nothing
        """Called when a follower that is not in sync could be."""
        self._clock = clock
        self._node_id = node_id
        self._leadership: Leadership | None = None
        self._joining: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.index}"

    # --- roles

    def use(self, log: Log) -> None:
        """Have this log, all of which is committed, and lead: for a broker on its own."""
        self.log = log
        self.high_watermark = log.visible_end
        self.lead(self.state)

    def hold(self, log: Log, high_watermark: int) -> None:
        """Have this log, of which so much is known to be committed."""
        self.log = log
        self.high_watermark = max(self.high_watermark, min(high_watermark, log.end_offset), log.log_start)
        self._note_committed(log)

    def hold_nothing(self) -> None:
        """This replica is made anew: nothing of what it had counts."""
        self.offline, self.is_damaged = None, False
        self.high_watermark = 0

    def lead(self, state: PartitionState) -> None:
        """Lead from now on. The epoch must have been noted in the log, durably: it begins at the log's end."""
        log = self.opened()
        self.state, self.leader_epoch = state, state.leader_epoch
        self._joining = ()
        self._leadership = Leadership(self._node_id, log.end_offset)
        self._use_members()
        log.follows, log.out_of_room, self.is_cut_off = False, False, False
        log.on_visible = self._advance
        log.on_start_moved = self.waiters.wake_readers
        self.led = log
        self._note_committed(log)
        self._advance()
        self.waiters.wake_readers()  # those of an earlier epoch

    def follow(self, state: PartitionState) -> None:
        """Lead no more, or not yet: another broker does, or nobody."""
        was_led = self.led is not None
        self.led, self._leadership, self._joining, self.is_cut_off = None, None, (), False
        self.state, self.leader_epoch = state, state.leader_epoch
        if self.log is not None:
            self.log.follows = True
            self.log.on_visible = self.log.on_appended = self.log.on_start_moved = _nothing
        if was_led:
            self.guards.clear()
            self.waiters.abandon(self._not_led())

    def use_state(self, state: PartitionState) -> None:
        """Others are in sync than before, in the same epoch."""
        self.state = state
        if self._leadership is not None:
            self._joining = ()
            self._use_members()
            self._advance()

    def let_join(self, members: Collection[int]) -> None:
        """From now on these count as in sync: a change that says so is on its way. `use_state` ends it."""
        self._joining = tuple({*self._joining, *members})  # an earlier change may have been made, too
        self._use_members()

    def _use_members(self) -> None:
        assert self._leadership is not None and self.log is not None
        state = self.state
        self.log.on_appended = self.waiters.appended if len(state.replicas) > 1 else _nothing
        least = self.config.least_in_sync(state.width)
        waiting = (*state.elr, *state.last)
        self._leadership.use(state.replicas, state.isr, self._joining, waiting, least, self._clock.monotonic())

    @property
    def is_moving_here(self) -> bool:
        """Whether this replica is made because the partition moves here, and not in sync yet."""
        state = self.state
        return self._node_id in state.target and self._node_id not in (*state.isr, *state.origin)

    @property
    def is_elsewhere(self) -> bool:
        """Whether another broker leads it."""
        return self.led is None and self.state.leader not in (NOBODY, self._node_id)

    @property
    def leadership(self) -> Leadership:
        """What this broker knows as the leader. Raises PenstockError NOT_LEADER."""
        if self._leadership is None:
            raise self._not_led()
        return self._leadership

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

    def settle(self, wait: AckWait) -> None:
        """Arrive at `wait` when it is; fail when this broker leads no more."""
        if not self.is_settled:
            self.waiters.add_ack(self.leadership.epoch_start - 1, wait)

    def leading(self) -> Log:
        """The log, for what only the leader may do. Raises PenstockError NOT_LEADER, or why it is not available."""
        if self.led is None:
            raise self._not_led()
        return self.led

    def _not_led(self) -> PenstockError:
        if self.offline is not None:
            return self.offline
        who = (
            f"broker {self.state.leader} leads it"
            if self.state.leader not in (NOBODY, self._node_id)
            else "nobody leads it now"
        )
        return PenstockError(Code.NOT_LEADER, f"{self.name} is not led here: {who} (epoch {self.state.leader_epoch})")

    def use_config(self, config: TopicConfig) -> None:
        """Go by other settings from now on."""
        self.config = config
        if self.log is not None:
            self.log.use_options(config.log)
        if self._leadership is not None:
            self._use_members()
            self._advance()  # with flush=commit no more, nobody waits for a sync

    def opened(self) -> Log:
        """This broker's replica, whoever leads. Raises PenstockError when there is none."""
        if self.log is None:
            raise (
                self._not_led()
                if self._node_id not in self.state.replicas
                else (self.offline or PenstockError(Code.NOT_AVAILABLE, f"{self.name} is not open yet"))
            )
        return self.log

    @property
    def stable_offset(self) -> int:
        """Where a read_committed reader stops: the first offset that belongs to a transaction not yet decided."""
        log = self.led
        if log is None or log.first_unstable < 0:
            return self.high_watermark
        return min(log.first_unstable, self.high_watermark)

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

    def check_in_sync(self) -> None:
        """Whether what is appended now could be acknowledged to who wants it safe. Raises NOT_ENOUGH_REPLICAS."""
        leadership = self._leadership
        if self.is_cut_off:
            raise self._cut_off()
        if leadership is not None and not leadership.enough:
            state = self.state
            least = self.config.least_in_sync(state.width)
            raise PenstockError(
                Code.NOT_ENOUGH_REPLICAS,
                f"{self.name} has {len(state.isr)} of {len(state.replicas)} replicas in sync; {least} are needed",
            )

    # --- hot path

    def append(self, batch: memoryview, *, zstd_allowed: bool = True) -> Appended:
        """Check a client's batch and append it; it must be writable, and is patched in place.

        Not for a batch that has to be opened in a thread, or to wait: those go through the engine's `opener`.

        Raises:
            PenstockError: per partition; nothing was appended.
        """
        header = self.check(batch, zstd_allowed=zstd_allowed)
        self.look(batch, header)
        return self.append_checked(batch, header)

    def must_wait(self, header: Header) -> bool:
        """Whether a batch has to wait its turn behind one of the same producer."""
        return header.producer_id in self.waiting_producers

    def check(self, batch: memoryview, *, zstd_allowed: bool = True) -> Header:
        """Whether a client's batch may be appended, as far as its header tells. Raises PenstockError."""
        if len(batch) > self.config.max_message_bytes:
            raise self._too_large(batch)
        if self.topic in INTERNAL_TOPICS:
            raise PenstockError(Code.INVALID_TOPIC, f"topic {self.topic!r} is written by the broker only")
        return check_produced(batch, zstd_allowed=zstd_allowed)

    def look(self, batch: memoryview, header: Header, most_bytes: int = MOST_BYTES_AT_ONCE) -> bool:
        """Look at the records of a batch; False leaves that to the engine's opener, because it may take long.

        Args:
            most_bytes: of a compressed batch that is opened here.

        Raises:
            PenstockError: as `check_records`.
        """
        config = self.config
        if config.opens_batches:
            return False
        codec = header.attributes & CODEC_MASK
        if codec not in config.checked:
            return True
        if header.record_count > MOST_RECORDS_AT_ONCE:
            return False
        if not codec:
            check_uncompressed(batch, header)
            return True
        if len(batch) > most_bytes:
            return False
        try:
            check_records(batch, header, limit=MOST_OPENED_AT_ONCE)
        except PenstockError as error:
            if error.code is Code.BATCH_TOO_LARGE:
                return False
            raise
        return True

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
        log = self.led if self.led is not None else self.leading()
        self.steps += 1
        limit = self.stable_offset if committed else self.high_watermark
        return log.read(offset, limit, max_bytes, at_least_one, warmed)

    def aborted_in(self, offset: int, data: FileSlice) -> list[AbortedTransaction]:
        """See `Log.aborted_in`."""
        return self.leading().aborted_in(offset, data, self.stable_offset)

    def look_again(self) -> None:
        """Called now and then: the lease may hold again, or followers may be silent while it does not."""
        self._advance()
        leadership = self._leadership
        since = self._clock.monotonic() - _CUT_OFF_S
        self.is_cut_off = leadership is not None and not self.may_decide_alone() and leadership.is_deaf(since)
        if self.is_cut_off:  # clients look for another leader, and do not wait here
            self.waiters.fail_acks(self._cut_off())
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

    def _note_committed(self, log: Log) -> None:
        log.committed_end = self.high_watermark
        if log.first_unstable >= 0:
            log.settle_transactions(self.high_watermark)

    # --- replicas

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
        return log.read(offset, log.end_offset, max_bytes, at_least_one, warmed, everything=True)

    def told_committed(self, high_watermark: int) -> None:
        """The leader says how far everything is committed; this follower goes by it when it leads next."""
        log = self.log
        if log is None or self.led is not None:
            return
        known = min(high_watermark, log.visible_end)
        if known > self.high_watermark:
            self.high_watermark = known
            self._note_committed(log)

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


def _always() -> bool:
    return True


def _nothing() -> None:
    return None
