"""Transactions, as one subject may use them. The transactional id comes first, then groups and topics."""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from penstock.engine.access import THE_CLUSTER, Kind, Operation
from penstock.engine.partition import Partition
from penstock.engine.publishing import InTransaction
from penstock.engine.transactions.requests import (
    AddPartitions,
    EndRequest,
    TransactionDescription,
    TransactionListing,
)
from penstock.engine.transactions.transaction import ProducerIdentity, TopicPartition
from penstock.errors import PenstockError
from penstock.storage.attached_names import split_name

if TYPE_CHECKING:
    from penstock.engine.acting.acting import Verdicts
    from penstock.engine.engine import Engine


class ActingTransactions:
    """All verbs raise PenstockError, first of all `NotAuthorised`."""

    __slots__ = ("_producer_ids", "_rights", "_transactions")

    def __init__(self, engine: "Engine", rights: "Verdicts") -> None:
        self._transactions = engine.transactions
        self._producer_ids = engine.producer_ids
        self._rights = rights

    def check(self, operation: Operation, transactional_id: str) -> None:
        self._rights.check(operation, Kind.TRANSACTIONAL_ID, transactional_id)

    async def coordinator(self, transactional_id: str) -> Partition:
        """The partition that the id lives in; whoever leads it coordinates its transactions."""
        self.check(Operation.DESCRIBE, transactional_id)
        return (await self._transactions.shards.of(transactional_id)).partition

    async def take_producer_id(self) -> int:
        """For a producer without transactions. Who may write to any topic may have one (KIP-679)."""
        if not self._rights.may_any(Operation.WRITE, Kind.TOPIC):
            self._rights.check_cluster(Operation.IDEMPOTENT_WRITE)
        return await self._producer_ids.take()

    async def init(
        self, transactional_id: str, timeout_ms: int, producer_id: int = -1, producer_epoch: int = -1
    ) -> ProducerIdentity:
        self.check(Operation.WRITE, transactional_id)
        return await self._transactions.init(transactional_id, timeout_ms, producer_id, producer_epoch)

    def to_write(self, transactional_id: str, *, adds: bool) -> InTransaction:
        """A transaction to publish in; see `InTransaction`."""
        self.check(Operation.WRITE, transactional_id)
        return InTransaction(transactional_id, adds)

    async def add_partitions(self, request: AddPartitions) -> Mapping[TopicPartition, PenstockError | None]:
        self.check(Operation.WRITE, request.transactional_id)
        for topic, _ in request.partitions:
            self._rights.check(Operation.WRITE, Kind.TOPIC, topic)
        return await self._transactions.add_partitions(request)

    def is_attached(self, name: str) -> bool:
        """Whether it names what is attached to partitions; such a thing has a part in transactions as brokers say."""
        return split_name(name) is not None

    async def add_offsets(
        self, transactional_id: str, producer_id: int, epoch: int, group_id: str, *, verify_only: bool = False
    ) -> Callable[[], None]:
        self.check(Operation.WRITE, transactional_id)
        self._rights.check(Operation.READ, Kind.GROUP, group_id)
        return await self._transactions.add_offsets(
            transactional_id, producer_id, epoch, group_id, verify_only=verify_only
        )

    async def end(self, request: EndRequest) -> ProducerIdentity:
        self.check(Operation.WRITE, request.transactional_id)
        return await self._transactions.end(request)

    async def describe(self, transactional_id: str) -> TransactionDescription:
        """Topics that must not be seen are left out, and what no client knows: logs attached to partitions."""
        self.check(Operation.DESCRIBE, transactional_id)
        found = await self._transactions.describe(transactional_id)
        named = [each for each in found.partitions if split_name(each.topic) is None]
        shown = [each for each in named if self._rights.may(Operation.DESCRIBE, Kind.TOPIC, each.topic)]
        return found if len(shown) == len(found.partitions) else found._replace(partitions=tuple(shown))

    async def list(
        self, states: Collection[str], producer_ids: Collection[int], duration_ms: int, pattern: str | None
    ) -> list[TransactionListing]:
        """Those that may be described."""
        listed = await self._transactions.list(states, producer_ids, duration_ms, pattern)
        may = self._rights.may
        return [each for each in listed if may(Operation.DESCRIBE, Kind.TRANSACTIONAL_ID, each.transactional_id)]

    # --- markers

    async def write_marker(
        self,
        topic: str,
        index: int,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        committed: bool,
        *,
        bumped: bool = False,
    ) -> None:
        """What only a broker may ask."""
        self._rights.check_cluster(Operation.CLUSTER_ACTION)
        await self._transactions.write_marker(
            topic, index, producer_id, producer_epoch, coordinator_epoch, committed, bumped=bumped
        )

    async def abort_open(self, topic: str, index: int, producer_id: int, producer_epoch: int) -> None:
        """What an operator may ask."""
        if not self._rights.may(Operation.CLUSTER_ACTION, Kind.CLUSTER, THE_CLUSTER.name):
            self._rights.check_cluster(Operation.ALTER)
        await self._transactions.abort_open(topic, index, producer_id, producer_epoch)
