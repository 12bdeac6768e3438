"""Publish through any broker: a batch goes to whoever leads its partition, and is there once however often it is sent.

Where this broker leads, it publishes here, as every door does. Elsewhere the log of the partition is the memory of what
came already: the batch gets a producer id and a sequence on the way, and goes to the leader of the hour again and again
until an answer arrives. The producer's state is replicated with the data, so a new leader knows a duplicate, too.

Each partition has a lane here: a producer id of its own, its next sequence, and a lock, which lets batches by one at a
time, in their order. Why nothing is there twice: a batch has one pair of id and sequence from its first sending on, the
log takes a pair once, and a pair is used for another batch only if the leader has refused the first at its first
sending, so that no copy of it is on its way. As soon as one sending may have worked,

    appended, or a duplicate  ->  told, with the offsets of the first
    any refusal               ->  says nothing of the sending before it: again, until the deadline
    the deadline              ->  OUTCOME_UNKNOWN; the lane gives its producer id up and takes another

The last line is simpler to prove than settling the sequence first: whatever comes late has an id that no other batch
has. It may then stand behind batches that were published after it. An id costs nothing.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from penstock.engine.access import ANONYMOUS, BROKERS, Access, Kind, Operation, Resource, Subject
from penstock.engine.partition import Partition
from penstock.engine.producer_ids import ProducerIds
from penstock.engine.publishing import Durability, Publication, Publishing
from penstock.engine.topics import Topics
from penstock.errors import Code, PenstockError
from penstock.records.batch import HEADER_BYTES, TRANSACTIONAL, check_produced, decode_header
from penstock.records.stamp import stamp_producer
from penstock.storage.log.log import Appended

MOST_WAITING_BYTES: Final = 64 << 20
_MOST_LANES: Final = 10_000
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5
_LAST_SEQUENCE: Final = 0x7FFFFFFF
_NO_PRODUCER: Final = -1
# Refusals by which nothing was appended, and another try may do: somebody else leads, or will.
_ELSEWHERE: Final = frozenset(
    {
        Code.NOT_LEADER,
        Code.NOT_AVAILABLE,
        Code.UNKNOWN_TOPIC,  # known here, so it will be there
        Code.UNKNOWN_TOPIC_ID,
        Code.COORDINATOR_LOADING,  # there is no producer id now
        Code.OUT_OF_ORDER_SEQUENCE,  # a batch before it was lost, which its publisher did not want safe
    }
)


class Forwarded(NamedTuple):
    """A batch on its way to the broker that leads its partition. Its header has the id by which it is known again."""

    topic_id: UUID
    partition_index: int
    durability: Durability
    timeout_s: float
    """What is left of it."""
    subjects: Sequence[Subject]
    """Who publishes: several, if their messages were gathered."""
    batch: bytes


class Outcome(NamedTuple):
    """What came of one sending: `appended`, and no error; or an error.

    `is_open`: the batch may be there all the same, or may yet be.
    """

    appended: Appended | None
    error: PenstockError | None = None
    is_open: bool = False


class OtherBrokers(Protocol):
    async def publish(self, broker_id: int, forwarded: Forwarded, leaves: Callable[[], None]) -> Outcome:
        """Have another broker publish a batch, as its `Forwarding.take` does.

        Args:
            leaves: called right before the batch leaves; from then on nobody knows until there is an answer.

        Raises:
            PenstockError: nothing has left.
        """
        ...


class NoOtherBrokers:
    """A broker on its own has none."""

    async def publish(self, broker_id: int, forwarded: Forwarded, leaves: Callable[[], None]) -> Outcome:
        raise PenstockError(Code.NOT_AVAILABLE, f"broker {broker_id} is not known here")


@dataclass(slots=True)
class _Lane:
    """What goes from here to one partition."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    producer_id: int = _NO_PRODUCER
    sequence: int = 0

    def retire(self) -> None:
        """Never use this producer id again."""
        self.producer_id, self.sequence = _NO_PRODUCER, 0


@dataclass(slots=True)
class _Asked:
    """A batch to be forwarded, and what is known of it."""

    partition: Partition
    batch: bytes
    count: int
    durability: Durability
    deadline: float
    subjects: Sequence[Subject]
    is_open: bool = False
    """Whether a sending may have worked."""
    last: PenstockError | None = None

    def leaves(self) -> None:
        self.is_open = True


class Forwarding:
    """The verb of one broker.

    Attributes:
        other_brokers: replaced by those of a cluster, before the start.
    """

    def __init__(self, publishing: Publishing, topics: Topics, producer_ids: ProducerIds, access: Access) -> None:
        self._publishing = publishing
        self._topics = topics
        self._producer_ids = producer_ids
        self._access = access
        self.other_brokers: OtherBrokers = NoOtherBrokers()
        self._lanes: dict[tuple[UUID, int], _Lane] = {}
        self._waiting_bytes = 0

    async def publish(
        self,
        partition: Partition,
        batch: bytes,
        durability: Durability,
        timeout_s: float,
        subject: Subject = ANONYMOUS,
        *,
        others: Sequence[Subject] = (),
    ) -> Appended:
        """Publish a batch without a producer id, wherever its partition is led; returns when it is as safe as wanted.

        Args:
            subject: who publishes; the broker that leads asks whether it may.
            others: who else has messages in the batch, and has to be allowed to.

        Raises:
            PenstockError: as on the leader, and nothing was appended; but OUTCOME_UNKNOWN if it may have been, and
                NOT_ENOUGH_REPLICAS_AFTER_APPEND if it was.
        """
        _check_plain(batch)
        subjects = (subject, *others)
        lane = self._lanes.get((partition.topic_id, partition.index))
        began = asyncio.get_running_loop().time()
        if partition.led is not None and (lane is None or not lane.users):  # nothing waits that came before
            outcome = await self.take(partition, bytearray(batch), durability, timeout_s, subjects)
            if outcome.error is None and outcome.appended is not None:
                return outcome.appended
            assert outcome.error is not None
            if outcome.is_open or outcome.error.code is not Code.NOT_LEADER:
                raise verdict(partition, outcome.error, is_open=outcome.is_open)
        count = check_produced(memoryview(batch)).record_count  # before it gets another CRC
        return await self._forward(_Asked(partition, batch, count, durability, began + timeout_s, subjects))

    async def publish_again(
        self, partition: Partition, batch: bytes, durability: Durability, timeout_s: float
    ) -> Appended:
        """Publish a batch of this broker's own that has a producer id and its number, perhaps not for the first time.

        Raises:
            PenstockError: OUT_OF_ORDER_SEQUENCE: neither this batch nor one before it is there; UNKNOWN_TOPIC;
                otherwise it may be there or come to be, and can be sent again.
        """
        count = check_produced(memoryview(batch)).record_count
        deadline = asyncio.get_running_loop().time() + timeout_s
        asked = _Asked(partition, batch, count, durability, deadline, (BROKERS,), is_open=True)
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    outcome = await self._ask_leader(partition, batch, asked)
            except TimeoutError:
                outcome = Outcome(None, PenstockError(Code.TIMED_OUT, f"a batch for {partition.name} waited too long"))
            except PenstockError as error:
                outcome = Outcome(None, error.kept())
            if outcome.error is None and outcome.appended is not None:
                return outcome.appended
            assert outcome.error is not None
            if not outcome.error.retriable or asyncio.get_running_loop().time() + pause_s > deadline:
                raise outcome.error
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            partition = self._topics.partition_by_id(partition.topic_id, partition.index)

    async def take(
        self,
        partition: Partition,
        batch: bytearray,
        durability: Durability,
        timeout_s: float,
        subjects: Sequence[Subject],
    ) -> Outcome:
        """Publish a batch on this broker, for a door of its own or for another broker. It is patched in place."""
        try:
            self.check(partition, subjects)
        except PenstockError as refusal:
            return Outcome(None, refusal.kept())
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: Publication) -> None:
            if not told.done():  # whoever asked may be gone
                told.set_result(None)

        publication = self._publishing.begin(
            durability, timeout_s, done, check=partial(self.check, subjects=subjects), drops=BROKERS not in subjects
        )
        published = publication.add(partition, memoryview(batch))
        publication.wait()
        await told
        error, appended = published.error, published.appended
        if error is None:
            return Outcome(appended)
        # One whose time is up before it was appended waits to be opened, and is appended later.
        return Outcome(appended, error, is_open=appended is not None or error.code is Code.TIMED_OUT)

    def check(self, partition: Partition, subjects: Iterable[Subject]) -> None:
        """Whether all of them may write to it now. Raises PenstockError NOT_AUTHORISED."""
        for subject in subjects:
            self._access.check(subject, Operation.WRITE, Resource(Kind.TOPIC, partition.topic))
            if subject is not BROKERS:
                partition.check_writers()

    # --- to others

    async def _forward(self, asked: _Asked) -> Appended:
        size = len(asked.batch)
        if self._waiting_bytes and self._waiting_bytes + size > MOST_WAITING_BYTES:
            raise PenstockError(
                Code.NOT_AVAILABLE, f"{self._waiting_bytes} bytes wait for other brokers already; send again later"
            )
        lane = self._lane(asked.partition)
        lane.users += 1
        self._waiting_bytes += size
        try:
            async with asyncio.timeout_at(asked.deadline), lane.turn:
                return await self._send(lane, asked)
        except TimeoutError:
            last = asked.last or PenstockError(Code.TIMED_OUT, f"a batch for {asked.partition.name} waited too long")
            raise verdict(asked.partition, last, is_open=asked.is_open) from None
        finally:
            lane.users -= 1
            self._waiting_bytes -= size

    def _lane(self, partition: Partition) -> _Lane:
        key = (partition.topic_id, partition.index)
        lane = self._lanes.get(key)
        if lane is None:
            if len(self._lanes) >= _MOST_LANES:  # an idle one loses nothing but its producer id
                self._lanes = {each: lane for each, lane in self._lanes.items() if lane.users}
            lane = self._lanes[key] = _Lane()
        return lane

    async def _send(self, lane: _Lane, asked: _Asked) -> Appended:
        """Again and again, until it is known what came of it."""
        pause_s = _FIRST_PAUSE_S
        try:
            while True:
                outcome = await self._send_once(lane, asked)
                if outcome.error is None and outcome.appended is not None:
                    lane.sequence = (lane.sequence + asked.count) & _LAST_SEQUENCE
                    asked.is_open = False
                    return outcome.appended
                assert outcome.error is not None
                asked.last = error = outcome.error
                goes_on = error.retriable if asked.is_open else error.code in _ELSEWHERE
                if not goes_on or error.code is Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                    raise verdict(asked.partition, error, is_open=asked.is_open)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            if asked.is_open:
                lane.retire()

    async def _send_once(self, lane: _Lane, asked: _Asked) -> Outcome:
        was_open = asked.is_open
        try:
            partition = self._topics.partition_by_id(asked.partition.topic_id, asked.partition.index)
        except PenstockError as error:  # it was deleted meanwhile
            raise verdict(asked.partition, error, is_open=was_open) from error
        try:
            if lane.producer_id == _NO_PRODUCER:
                lane.producer_id = await self._producer_ids.take()
            outcome = await self._ask_leader(
                partition, stamp_producer(asked.batch, lane.producer_id, lane.sequence), asked
            )
        except PenstockError as error:
            outcome = Outcome(None, error.kept(), asked.is_open)
        asked.is_open = was_open or outcome.is_open
        if outcome.error is not None and outcome.error.code is Code.OUT_OF_ORDER_SEQUENCE and not asked.is_open:
            lane.retire()
        return outcome

    async def _ask_leader(self, partition: Partition, stamped: bytes, asked: _Asked) -> Outcome:
        left_s = asked.deadline - asyncio.get_running_loop().time()
        if not partition.is_elsewhere:  # here, or nobody leads it now, which is said
            asked.leaves()
            return await self.take(partition, bytearray(stamped), asked.durability, left_s, asked.subjects)
        forwarded = Forwarded(partition.topic_id, partition.index, asked.durability, left_s, asked.subjects, stamped)
        return await self.other_brokers.publish(partition.state.leader, forwarded, asked.leaves)


def _check_plain(batch: bytes) -> None:
    """Raises PenstockError for a batch with a producer id: that one would be written over. Others are checked later."""
    if len(batch) < HEADER_BYTES:
        return
    header = decode_header(batch)
    if header.producer_id >= 0 or header.attributes & TRANSACTIONAL:
        raise PenstockError(
            Code.INVALID_REQUEST,
            f"a batch of producer {header.producer_id} cannot go through any broker: it has an order of its own",
            help="publish it without a producer id and outside of transactions, or to the broker that leads",
        )


def verdict(partition: Partition, error: PenstockError, *, is_open: bool) -> PenstockError:
    """What a publisher is told of an error: `is_open` says that its batch may be there all the same."""
    if not is_open or error.code is Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
        return error
    return PenstockError(
        Code.OUTCOME_UNKNOWN,
        f"a batch for {partition.name} may be there or not: {error}",
        help="look for it before you publish it again",
    )
