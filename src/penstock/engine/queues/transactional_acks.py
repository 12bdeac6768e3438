"""Acknowledging messages in a producer's transaction: they are settled if, and only if, what it wrote can be read.

Clients send the offsets of a group in a transaction to the group's coordinator. If the group is a queue that was made
as one, the metadata beside an offset has receipts in place of what applications note there. The coordinator of the
group has no part in it: each partition's leader gets its receipts, as the ledger is beside the records, and

1. has the coordinator of the transaction add the ledger's partition to it, which is safe before anything is written,
2. appends to the ledger, as a batch of the transaction, what is acknowledged (`pending.py`).

The end of the transaction then reaches the ledger as it reaches every other partition, by a marker; so there is one
decision, and whoever leads when it comes goes by it.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, Protocol

from penstock.engine.coordination.shard import InTransaction
from penstock.engine.groups.offsets import MAX_METADATA_CHARS, Results, Spot
from penstock.engine.partition import Partition
from penstock.engine.queues.queues import Queues
from penstock.engine.queues.receipts import RECEIPT_CHARS, parse_receipt
from penstock.engine.queues.verdicts import Ack
from penstock.engine.topics import Topics
from penstock.engine.transactions.transaction import ProducerIdentity
from penstock.engine.transactions.transactions import Admissions, Transactions
from penstock.errors import Code, PenstockError

BETWEEN: Final = ","
MORE: Final = "+"
_AROUND: Final = " \t\r\n\0"
"""What does not count around receipts: confluent-kafka sends a string of C, with its end."""
_MOST_MORE: Final = 100_000
"""Messages behind the one that a receipt is of."""
_AT_ONCE: Final = 50
"""Partitions."""
_TRIES: Final = 4
_FIRST_PAUSE_S: Final = 0.05
_PASSING: Final = frozenset(
    {Code.NOT_LEADER, Code.NOT_COORDINATOR, Code.COORDINATOR_LOADING, Code.COORDINATOR_NOT_AVAILABLE}
)
"""Somebody else leads, or will; nothing is wrong with asking again."""


class AckRequest(NamedTuple):
    """Attributes:
    receipts: of messages of each partition, as text.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group: str
    receipts: Mapping[Spot, str]


def parse_acks(text: str, spot: Spot) -> list[Ack]:
    """Receipts of one partition, with commas between them; `+9` behind one is for the next 9 messages of its lease.

    Raises:
        PenstockError: OFFSET_METADATA_TOO_LARGE, INVALID_REQUEST.
    """
    where = f"{spot[0]}-{spot[1]}"
    if len(text) > MAX_METADATA_CHARS:
        raise PenstockError(
            Code.OFFSET_METADATA_TOO_LARGE,
            f"{len(text)} characters of receipts for {where}; allowed: {MAX_METADATA_CHARS}",
            help="send offsets to the transaction several times, or say RECEIPT+N for neighbours of one lease",
        )
    if not text.strip(_AROUND):
        raise PenstockError(
            Code.INVALID_REQUEST,
            f"no receipts for {where}: an offset alone acknowledges nothing of a queue",
            help="put the receipts of what is acknowledged into the offset's metadata, with commas between them",
        )
    found = sorted(_ack(word.strip(_AROUND), spot) for word in text.split(BETWEEN))
    return list(_joined(found))


def _ack(word: str, spot: Spot) -> Ack:
    receipt, mark, more = word.partition(MORE)
    partition, offset, lease_id = parse_receipt(receipt)
    if partition != spot[1]:
        raise PenstockError(
            Code.INVALID_REQUEST, f"receipt {receipt!r} is of partition {partition}, and came with {spot[0]}-{spot[1]}"
        )
    if not mark:
        return Ack(offset, offset, lease_id)
    if not (more.isdecimal() and len(more) <= len(str(_MOST_MORE)) and int(more) <= _MOST_MORE):
        raise PenstockError(
            Code.INVALID_REQUEST, f"receipt {word[:60]!r}: behind {MORE!r} comes a number, at most {_MOST_MORE}"
        )
    return Ack(offset, offset + int(more), lease_id)


def _joined(acks: list[Ack]) -> Iterator[Ack]:
    """Neighbours of one lease together."""
    open_ = acks[0]
    for ack in acks[1:]:
        if ack.lease_id == open_.lease_id and ack.first == open_.last + 1:
            open_ = open_._replace(last=ack.last)
            continue
        yield open_
        open_ = ack
    yield open_


def has_receipts(text: str) -> bool:
    """Whether that is what the text is for, right or wrong."""
    try:
        parse_receipt(text.strip(_AROUND)[:RECEIPT_CHARS])
    except PenstockError:
        return False
    return True


class OtherLeaders(Protocol):
    async def acknowledge(self, broker_id: int, request: AckRequest) -> Results:
        """As `TransactionalAcks.take` of another broker. Raises PenstockError, NOT_AVAILABLE if there was no answer."""
        ...


class NobodyElse:
    """A broker on its own leads all partitions."""

    async def acknowledge(self, broker_id: int, request: AckRequest) -> Results:
        raise PenstockError(Code.NOT_AVAILABLE, f"broker {broker_id} is not known here")


def _nobody_else() -> None:
    return None


class TransactionalAcks:
    """Of one broker.

    Attributes:
        other_leaders, check_all_know: replaced by those of a cluster, before the start. The latter raises PenstockError
        INVALID_REQUEST while there may be brokers that know nothing of this.
    """

    def __init__(self, queues: Queues, topics: Topics, transactions: Transactions) -> None:
        self._queues = queues
        self._topics = topics
        self._transactions = transactions
        self.other_leaders: OtherLeaders = NobodyElse()
        self.check_all_know: Callable[[], None] = _nobody_else

    def is_ack(self, spot: Spot, group: str, metadata: str, *, by_member: bool) -> bool:
        """Whether an offset that is sent for a group is about a queue, and no offset of a stream.

        Args:
            by_member: a member of a consumer group of that name sends it, which reads the topic as a stream.
        """
        return self._queues.rulebook.is_known(spot[0], group) and (not by_member or has_receipts(metadata))

    # --- whoever is asked

    async def acknowledge(self, request: AckRequest) -> Results:
        """Have each partition's leader take its receipts, wherever that is: what came of each partition.

        Raises:
            PenstockError: INVALID_REQUEST for the whole of it.
        """
        self.check_all_know()
        results: dict[Spot, PenstockError | None] = {}
        left = dict(request.receipts)
        pause_s = _FIRST_PAUSE_S
        for number in range(_TRIES):
            if number:
                await asyncio.sleep(pause_s)
                pause_s *= 2
            by_leader: dict[int | None, dict[Spot, str]] = {}
            for spot, text in left.items():
                by_leader.setdefault(self._leader(spot), {})[spot] = text
            asked = [self._ask(leader, request._replace(receipts=some)) for leader, some in by_leader.items()]
            for told in await asyncio.gather(*asked):
                results |= told
            left = {spot: text for spot, text in left.items() if (error := results[spot]) and error.code in _PASSING}
            if not left:
                break
        return results

    def _leader(self, spot: Spot) -> int | None:
        """None for this broker, which is also to say what is wrong with it."""
        try:
            partition = self._topics.partition(*spot)
        except PenstockError:
            return None
        return partition.state.leader if partition.is_elsewhere else None

    async def _ask(self, leader: int | None, request: AckRequest) -> Results:
        if leader is None:
            return await self.take(request)
        try:
            return await self.other_leaders.acknowledge(leader, request)
        except PenstockError as error:
            return dict.fromkeys(request.receipts, error.kept())

    # --- who leads

    async def take(self, request: AckRequest) -> Results:
        """In the partitions that are led here: what came of each."""
        results: dict[Spot, PenstockError | None] = {}
        wanted: dict[Spot, tuple[Partition, list[Ack]]] = {}
        for spot, text in request.receipts.items():
            try:
                acks = parse_acks(text, spot)
                wanted[spot] = await self._queues.ledger_of(self._topics.partition(*spot)), acks
            except PenstockError as error:
                results[spot] = error.kept()
        if wanted:
            identity = ProducerIdentity(request.producer_id, request.producer_epoch)
            places = tuple((ledger.topic, ledger.index) for ledger, _ in wanted.values())
            admission = self._transactions.admission(request.transactional_id, identity, places, add=True)
            rest = iter(wanted.items())
            while some := list(islice(rest, _AT_ONCE)):
                settled = await asyncio.gather(*(self._settle(admission, request, spot, *each) for spot, each in some))
                results |= zip((spot for spot, _ in some), settled, strict=True)
        return results

    async def _settle(
        self, admission: Admissions, request: AckRequest, spot: Spot, ledger: Partition, acks: list[Ack]
    ) -> PenstockError | None:
        place = ledger.topic, ledger.index
        producer = InTransaction(request.producer_id, request.producer_epoch)
        try:
            await admission.known(place)
            partition = self._topics.partition(*spot)
            await self._queues.settle_in(partition, request.group, producer, acks, partial(admission.check, place))
        except PenstockError as error:
            return error.kept()
        return None
