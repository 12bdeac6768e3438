"""Single messages in: what all connections bring in one turn of the event loop becomes one batch for each partition.

So a door whose protocol sends message by message costs the log a batch, not a message. A message waits for the end of
the turn and for nothing else; who wants it safe is told when its batch is. One message that the topic does not take
harms no other: a batch that is refused for what is in it is published again, without those at fault or in halves.

What another broker leads goes there by `forwarding`, one batch of each partition at a time; while it is under way, what
comes gathers into the next ones. Messages for a partition keep their order when its leader changes, too.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from struct import error as StructError  # noqa: N812
from typing import Final, NamedTuple

from penstock.engine.access import ANONYMOUS, Subject
from penstock.engine.forwarding import Forwarding, verdict
from penstock.engine.partition import Partition
from penstock.engine.publishing import Durability, Publication, Publishing
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.ports.clock import Clock
from penstock.records.batch import HEADER_BYTES
from penstock.records.build import NewRecord, build_batch
from penstock.tasks import Tasks

log_ = get_logger("gathering")
Told = Callable[[int, PenstockError | None], None]
"""Called once with the offset of a message, or with -1 and why it has none that is known."""
MOST_LANE_BYTES: Final = 8 << 20
"""Of messages for one partition that wait to be sent to another broker."""
MOST_WAITING_BYTES: Final = 64 << 20
"""The same for all partitions."""
_MOST_BYTES: Final = 1 << 20
_MOST_RECORDS: Final = 10_000
_MOST_SUBJECTS: Final = 500
_RECORD_BYTES: Final = 40
"""What a record takes besides its key, value and headers, at most."""
_NO_PRODUCER: Final = -1
_AT_FAULT: Final = frozenset(
    {Code.INVALID_BATCH, Code.INVALID_TIMESTAMP, Code.BATCH_TOO_LARGE, Code.CORRUPT_BATCH, Code.UNSUPPORTED_CODEC}
)
"""Refusals for what is in a batch."""
_AT_FAULT_ELSEWHERE: Final = _AT_FAULT | {Code.NOT_AUTHORISED}
"""Who may was asked before they were gathered, of this broker's rules; the leader may have newer ones."""


class Message(NamedTuple):
    """To be published; without a timestamp it gets the broker's."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


class _Heap:
    """The messages of one turn for one partition, equally safe."""

    __slots__ = (
        "deadline",
        "durability",
        "others",
        "partition",
        "records",
        "size_bytes",
        "subject",
        "subjects",
        "timer",
        "told",
    )

    def __init__(self, partition: Partition, durability: Durability, deadline: float, subject: Subject) -> None:
        self.partition = partition
        self.durability = durability
        self.deadline = deadline
        self.subject = subject
        """Of the first message."""
        self.others: dict[Subject, None] = {}
        self.subjects: list[Subject] = []
        """Of each message."""
        self.records: list[NewRecord] = []
        self.told: list[Told] = []
        self.size_bytes = HEADER_BYTES
        self.timer: asyncio.TimerHandle | None = None

    def has_room(self, size_bytes: int, count: int, subjects: int) -> bool:
        """For so much more, in one batch."""
        return (
            self.size_bytes + size_bytes <= min(_MOST_BYTES, self.partition.config.max_message_bytes)
            and len(self.records) + count <= _MOST_RECORDS
            and len(self.others) + subjects <= _MOST_SUBJECTS
        )

    def add(self, record: NewRecord, told: Told, subject: Subject, size_bytes: int) -> None:
        self.records.append(record)
        self.told.append(told)
        self.subjects.append(subject)
        self.size_bytes += size_bytes
        if subject is not self.subject and subject != self.subject:
            self.others[subject] = None

    def some(self, which: Iterable[int]) -> "_Heap":
        """A heap of some of its messages, in this order."""
        places = list(which)
        made = _Heap(self.partition, self.durability, self.deadline, self.subjects[places[0]])
        for at in places:
            record = self.records[at]
            made.add(record, self.told[at], self.subjects[at], _size_of(record))
        return made

    def take_in(self, later: "_Heap") -> None:
        """Those of a later turn, behind its own."""
        self.records += later.records
        self.told += later.told
        self.subjects += later.subjects
        self.size_bytes += later.size_bytes - HEADER_BYTES
        self.others |= later.others
        if later.subject != self.subject:
            self.others[later.subject] = None


class _Lane:
    """What goes from here to one partition that another broker leads: one batch at a time, in order."""

    __slots__ = ("queue", "size_bytes")

    def __init__(self) -> None:
        self.queue: deque[_Heap] = deque()
        self.size_bytes = 0
        """Of those that wait."""


class Gatherer:
    """Of one broker, for all of its doors."""

    def __init__(self, publishing: Publishing, forwarding: Forwarding, clock: Clock, tasks: Tasks) -> None:
        self._publishing = publishing
        self._forwarding = forwarding
        self._clock = clock
        self._tasks = tasks
        self._heaps: dict[tuple[Partition, Durability], _Heap] = {}
        self._full: list[_Heap] = []
        """Heaps that take no more, in the order of their messages."""
        self._is_scheduled = False
        self._lanes: dict[Partition, _Lane] = {}
        """Of those to which something is under way."""
        self._waiting_bytes = 0

    def put(
        self,
        partition: Partition,
        message: Message,
        durability: Durability,
        told: Told,
        timeout_s: float = 30.0,
        subject: Subject = ANONYMOUS,
    ) -> None:
        """Publish a message at the end of this turn of the loop; `told` is called later, never from within.

        Args:
            timeout_s: for other brokers to have it; of messages in one batch, the first one's counts.
            subject: who publishes; another broker that leads asks whether it may.
        """
        size_bytes = _size_of(message)
        heap = self._heaps.get((partition, durability))
        if heap is not None and not heap.has_room(size_bytes, 1, 1):
            self._full.append(self._heaps.pop((partition, durability)))
            heap = None
        if heap is None:
            deadline = asyncio.get_running_loop().time() + timeout_s
            heap = self._heaps[partition, durability] = _Heap(partition, durability, deadline, subject)
        timestamp_ms = self._clock.now_ms() if message.timestamp_ms is None else message.timestamp_ms
        heap.add(NewRecord(message.key, message.value, message.headers, timestamp_ms), told, subject, size_bytes)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._publish_all)

    def _publish_all(self) -> None:
        self._is_scheduled = False
        heaps = [*self._full, *self._heaps.values()]
        self._full, self._heaps = [], {}
        for heap in heaps:
            try:
                if heap.partition in self._lanes or not _is_here(heap.partition):
                    self._send_on(heap)
                else:
                    self._publish(heap)
            except Exception:  # noqa: BLE001 - a bug of ours must cost these messages only
                self._broke_off(heap)

    def _broke_off(self, heap: _Heap) -> None:
        name = heap.partition.name
        log_.limited("bug").exception("messages could not be published", partition=name)
        text = f"messages for {name} may be there or not: publishing them failed"
        self._tell(heap, -1, PenstockError(Code.OUTCOME_UNKNOWN, text, help="look for them before you send them again"))

    def _divide(self, heap: _Heap, error: PenstockError) -> list[_Heap]:
        """Nothing of the batch was appended: tell those that are at fault, as far as they are known, and keep the
        others; else two halves, to find out.
        """
        at_fault = {at for at in error.records if at < len(heap.records)}
        if at_fault:
            self._tell(heap.some(sorted(at_fault)), -1, error.kept())
            others = [at for at in range(len(heap.records)) if at not in at_fault]
            return [heap.some(others)] if others else []
        middle = len(heap.records) // 2
        return [heap.some(range(middle)), heap.some(range(middle, len(heap.records)))]

    def _tell(self, heap: _Heap, first: int, error: PenstockError | None) -> None:
        for at, told in enumerate(heap.told):
            try:
                told(first + at if error is None and first >= 0 else -1, error)
            except Exception:  # noqa: BLE001 - a bug of ours must cost this publisher only
                log_.limited("bug").exception("publisher could not be told", partition=heap.partition.name)

    # --- here

    def _publish(self, heap: _Heap) -> None:
        def done(publication: Publication) -> None:
            (published,) = publication.batches
            error, appended = published.error, published.appended
            if error is not None and error.code in _AT_FAULT and len(heap.records) > 1:
                for part in self._divide(heap, error):
                    self._publish(part)
            elif error is not None and error.code is Code.NOT_LEADER and appended is None:
                self._send_on(heap)  # another broker leads by now, or will
            elif error is not None:
                is_open = appended is not None or error.code is Code.TIMED_OUT
                self._tell(heap, -1, verdict(heap.partition, error, is_open=is_open))
            else:
                self._tell(heap, appended.base_offset if appended is not None else -1, None)

        left_s = heap.deadline - asyncio.get_running_loop().time()

        def check(partition: Partition) -> None:
            self._forwarding.check(partition, (heap.subject, *heap.others))

        publication = self._publishing.begin(heap.durability, left_s, done, check=check)
        try:
            batch = _build(heap)
        except PenstockError as error:
            publication.refuse(heap.partition, error)
        else:
            if publication.add(heap.partition, memoryview(bytearray(batch))).appended is not None:
                heap.records = []  # the log has them; until they are safe they take no memory
        publication.wait()

    # --- elsewhere

    def _send_on(self, heap: _Heap) -> None:
        """Have a batch go to the broker that leads, behind those that are under way or wait; with the last of them, if
        there is room.
        """
        lane = self._lanes.get(heap.partition)
        waiting = lane.size_bytes if lane is not None else 0
        is_full = waiting and waiting + heap.size_bytes > MOST_LANE_BYTES
        if is_full or (self._waiting_bytes and self._waiting_bytes + heap.size_bytes > MOST_WAITING_BYTES):
            text = (
                f"{waiting} bytes for {heap.partition.name}, and {self._waiting_bytes} in all, wait for other brokers "
                "already"
            )
            self._tell(heap, -1, PenstockError(Code.NOT_AVAILABLE, text, help="send again later"))
            return
        if lane is None:
            lane = self._lanes[heap.partition] = _Lane()
            self._tasks.spawn(self._run(heap.partition, lane), f"publish to {heap.partition.name} elsewhere")
        lane.size_bytes += heap.size_bytes
        self._waiting_bytes += heap.size_bytes
        last = lane.queue[-1] if lane.queue else None
        subjects = len(heap.others) + 1
        if (
            last is not None
            and last.durability == heap.durability
            and last.has_room(heap.size_bytes, len(heap.records), subjects)
        ):
            self._waiting_bytes -= HEADER_BYTES
            lane.size_bytes -= HEADER_BYTES
            last.take_in(heap)
            return
        heap.timer = asyncio.get_running_loop().call_at(heap.deadline, self._expire, lane, heap)
        lane.queue.append(heap)

    def _take_out(self, lane: _Lane, heap: _Heap) -> None:
        lane.size_bytes -= heap.size_bytes
        self._waiting_bytes -= heap.size_bytes
        if heap.timer is not None:
            heap.timer.cancel()

    def _expire(self, lane: _Lane, heap: _Heap) -> None:
        lane.queue.remove(heap)
        self._take_out(lane, heap)
        text = f"messages for {heap.partition.name} waited too long for those before them"
        self._tell(heap, -1, PenstockError(Code.TIMED_OUT, text))

    async def _run(self, partition: Partition, lane: _Lane) -> None:
        try:
            while lane.queue:
                heap = lane.queue.popleft()
                self._take_out(lane, heap)
                await self._forward(lane, heap)
        finally:
            del self._lanes[partition]
            for heap in lane.queue:  # the broker stops
                self._take_out(lane, heap)
                self._tell(heap, -1, PenstockError(Code.NOT_AVAILABLE, "this broker stops; nothing was sent"))

    async def _forward(self, lane: _Lane, heap: _Heap) -> None:
        left_s = heap.deadline - asyncio.get_running_loop().time()
        try:
            batch = _build(heap)
            appended = await self._forwarding.publish(
                heap.partition, batch, heap.durability, left_s, heap.subject, others=tuple(heap.others)
            )
        except PenstockError as error:
            if error.code in _AT_FAULT_ELSEWHERE and len(heap.records) > 1:
                parts = self._divide(heap, error)
                lane.queue.extendleft(reversed(parts))
                lane.size_bytes += sum(each.size_bytes for each in parts)
                self._waiting_bytes += sum(each.size_bytes for each in parts)
            else:
                self._tell(heap, -1, error.kept())
        except Exception:  # noqa: BLE001 - a bug of ours must cost these messages only
            self._broke_off(heap)
        except asyncio.CancelledError:
            self._tell(heap, -1, PenstockError(Code.OUTCOME_UNKNOWN, "this broker stops; messages may be there"))
            raise
        else:
            self._tell(heap, appended.base_offset, None)


def _is_here(partition: Partition) -> bool:
    """Whether this broker leads it, or can say best why nothing can be published to it; or has led it, and what came
    before still waits to be opened here.
    """
    is_known_here = partition.offline is not None and not partition.is_elsewhere
    return partition.led is not None or is_known_here or _NO_PRODUCER in partition.waiting_producers


def _build(heap: _Heap) -> bytes:
    """Raises PenstockError: a time beyond 64 bits, a header's name that is no text."""
    try:
        return build_batch(heap.records)
    except (ValueError, TypeError, AttributeError, StructError) as error:
        raise PenstockError(Code.INVALID_BATCH, f"no record can be made of it: {error}") from error


def _size_of(message: Message | NewRecord) -> int:
    """No less than what it takes in a batch."""
    size = _RECORD_BYTES + len(message.key or b"") + len(message.value or b"")
    return size + sum(20 + 3 * len(name) + len(value or b"") for name, value in message.headers)
