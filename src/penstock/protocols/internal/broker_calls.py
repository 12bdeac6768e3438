"""What transactions ask of other brokers, with Kafka's own requests between brokers (KIP-890)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from penstock.engine.groups.offsets import Results
from penstock.engine.queues.transactional_acks import AckRequest
from penstock.engine.transactions.requests import AddPartitions, MarkersDue
from penstock.engine.transactions.transaction import BUMPED_AT_END, TopicPartition
from penstock.errors import Code, PenstockError
from penstock.net.connection import PeerError
from penstock.protocols.internal.peer import Peer, PeerGone
from penstock.protocols.internal.requests import ADD_PARTITIONS_TO_TXN, TXN_OFFSET_COMMIT, WRITE_TXN_MARKERS
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.broker_words import code_of
from penstock.protocols.kafka_wire.messages import Message


async def _call(peer: Peer | None, broker_id: int, api: Api, fields: Mapping[str, Any]) -> Message:
    """Raises PenstockError NOT_AVAILABLE; it may be done all the same."""
    if peer is None:
        raise PenstockError(Code.NOT_AVAILABLE, f"broker {broker_id} is not there now")
    try:
        return await peer.call(api, api.newest, fields)
    except (PeerGone, PeerError) as error:
        raise PenstockError(Code.NOT_AVAILABLE, f"broker {broker_id} does not answer: {error}") from error


class GivenAcks:
    """See `engine.queues.transactional_acks.OtherLeaders`.

    Args:
        peer: the connection to a broker; None if there is no such broker now. A leader may have to wait for the end of
            a transaction, so markers must not have to wait behind it.
    """

    def __init__(self, peer: Callable[[int], Peer | None]) -> None:
        self._peer = peer

    async def acknowledge(self, broker_id: int, request: AckRequest) -> Results:
        topics: dict[str, list[Mapping[str, Any]]] = {}
        for (name, index), receipts in request.receipts.items():
            row = {"partition_index": index, "committed_offset": 0, "committed_metadata": receipts}
            topics.setdefault(name, []).append(row)
        fields = {
            "transactional_id": request.transactional_id,
            "group_id": request.group,
            "producer_id": request.producer_id,
            "producer_epoch": request.producer_epoch,
            "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
        }
        answer = await _call(self._peer(broker_id), broker_id, TXN_OFFSET_COMMIT, fields)
        codes = {
            (topic.name, row.partition_index): code_of(row.error_code, row.get("word", ""))
            for topic in answer.topics
            for row in topic.partitions
        }
        return {spot: _error(codes.get(spot, Code.NOT_AVAILABLE), f"broker {broker_id}") for spot in request.receipts}


class BrokerCalls:
    """See `engine.transactions.other_brokers.OtherBrokers`.

    Args:
        peer: the connection to a broker; None if there is no such broker now.
        is_gone: whether a topic is gone, looked up in the metadata store itself.
    """

    def __init__(self, peer: Callable[[int], Peer | None], is_gone: Callable[[str], Awaitable[bool]]) -> None:
        self._peer = peer
        self._is_gone = is_gone

    async def is_gone(self, topic: str) -> bool:
        return await self._is_gone(topic)

    async def add_partitions(
        self, broker_id: int, request: AddPartitions
    ) -> Mapping[TopicPartition, PenstockError | None]:
        transaction = {
            "transactional_id": request.transactional_id,
            "producer_id": request.producer_id,
            "producer_epoch": request.producer_epoch,
            "verify_only": request.verify_only,
            "topics": [{"name": name, "partitions": rows} for name, rows in _by_topic(request.partitions).items()],
        }
        answer = await _call(self._peer(broker_id), broker_id, ADD_PARTITIONS_TO_TXN, {"transactions": [transaction]})
        codes = {
            (topic.name, row.partition_index): code_of(row.partition_error_code, row.get("word", ""))
            for result in answer.results_by_transaction
            for topic in result.topic_results
            for row in topic.results_by_partition
        }
        what = f"the coordinator of {request.transactional_id!r} on broker {broker_id}"
        return {place: _error(codes.get(place, Code.NOT_AVAILABLE), what) for place in request.partitions}

    async def write_markers(
        self, broker_id: int, due: MarkersDue, places: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, PenstockError | None]:
        marker = {
            "producer_id": due.producer_id,
            "producer_epoch": due.producer_epoch,
            "transaction_result": due.committed,
            "topics": [{"name": name, "partition_indexes": rows} for name, rows in _by_topic(places).items()],
            "coordinator_epoch": due.coordinator_epoch,
            "transaction_version": BUMPED_AT_END if due.bumped else 0,
        }
        answer = await _call(self._peer(broker_id), broker_id, WRITE_TXN_MARKERS, {"markers": [marker]})
        codes = {
            (topic.name, row.partition_index): code_of(row.error_code, row.get("word", ""))
            for written in answer.markers
            for topic in written.topics
            for row in topic.partitions
        }
        return {place: _error(codes.get(place, Code.NOT_AVAILABLE), f"broker {broker_id}") for place in places}


def _by_topic(places: Sequence[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for name, index in places:
        topics.setdefault(name, []).append(index)
    return topics


def _error(code: Code | None, what: str) -> PenstockError | None:
    return None if code is None else PenstockError(code, f"{what} refuses: {code.value}")
