"""AddPartitionsToTxn 0-5: partitions a transaction is about to write to.

Clients send one transaction (0-3). From 4 on brokers send many to one another, each to be added or only to be looked
up; a partition that is not in its transaction is TRANSACTION_ABORTABLE to 5 and INVALID_TXN_STATE to 4. If one
partition does not exist none is added, and the others are OPERATION_NOT_ATTEMPTED. Clients may not name the internal
topics: what they hold of a transaction is added by AddOffsetsToTxn. Brokers also name logs attached to partitions,
which they have looked up.
"""

from collections.abc import Mapping
from typing import Any

from penstock.engine.access import Operation
from penstock.engine.coordination.internal_topics import INTERNAL_TOPICS
from penstock.engine.transactions.requests import AddPartitions
from penstock.engine.transactions.transaction import TopicPartition
from penstock.errors import PenstockError
from penstock.protocols.kafka import transaction_errors
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import broker_words, errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(24, "add_partitions_to_txn", 0, 5)
_CLUSTER_AUTHORIZATION_FAILED = 31
_BETWEEN_BROKERS = 4
_OPERATION_NOT_ATTEMPTED = 55
_TOPIC_AUTHORIZATION_FAILED = 29


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    if version >= _BETWEEN_BROKERS and not _may_ask_for_others(context, caller):
        return {"throttle_time": 0, "error_code": _CLUSTER_AUTHORIZATION_FAILED, "results_by_transaction": []}
    if version >= _BETWEEN_BROKERS:
        answer = LongAnswer(context, API, version, "results_by_transaction", "topic_results", "results_by_partition")
        return {
            "throttle_time": 0,
            "error_code": errors.NONE,
            "results_by_transaction": [
                {
                    "transactional_id": transaction.transactional_id,
                    "topic_results": await _add(
                        AddPartitions(
                            transaction.transactional_id,
                            transaction.producer_id,
                            transaction.producer_epoch,
                            _partitions(transaction.topics),
                            transaction.verify_only,
                        ),
                        version,
                        caller,
                        answer,
                    ),
                }
                for transaction in request.transactions
            ],
        }
    asked = AddPartitions(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        _partitions(request.v3_and_below_topics),
    )
    answer = LongAnswer(context, API, version, "results_by_topic_v3_and_below", "results_by_partition")
    return {"throttle_time": 0, "results_by_topic_v3_and_below": await _add(asked, version, caller, answer)}


def _may_ask_for_others(context: Context, caller: Caller) -> bool:
    """Brokers may; on a broker of its own so may who may do anything that brokers do: nobody else is there."""
    if context.cluster:
        return caller.is_broker
    return caller.acting.rights.may_cluster(Operation.CLUSTER_ACTION)


def _partitions(topics: Any) -> tuple[TopicPartition, ...]:
    return tuple(dict.fromkeys((topic.name, index) for topic in topics for index in topic.partitions))


async def _add(asked: AddPartitions, version: int, caller: Caller, answer: LongAnswer) -> list[Fields]:
    try:
        caller.acting.transactions.check(Operation.WRITE, asked.transactional_id)
    except PenstockError as error:
        return await _results(dict.fromkeys(asked.partitions, _code_and_text(error, version, caller)), answer)
    refused = _refused(asked, caller)
    if refused:
        codes = {partition: refused.get(partition, _OPERATION_NOT_ATTEMPTED) for partition in asked.partitions}
        return await _results({partition: (code, "") for partition, code in codes.items()}, answer)
    try:
        results = await caller.acting.transactions.add_partitions(asked)
    except PenstockError as error:
        return await _results(dict.fromkeys(asked.partitions, _code_and_text(error, version, caller)), answer)
    told = {partition: _code_and_text(error, version, caller) for partition, error in results.items()}
    return await _results(told, answer)


def _refused(asked: AddPartitions, caller: Caller) -> dict[TopicPartition, int]:
    codes = {}
    for topic, index in asked.partitions:
        if topic in INTERNAL_TOPICS and not caller.is_broker:
            codes[topic, index] = _TOPIC_AUTHORIZATION_FAILED
            continue
        if caller.is_broker and caller.acting.transactions.is_attached(topic):
            continue
        try:
            caller.acting.topics.partition(topic, index, Operation.WRITE)
        except PenstockError as error:
            codes[topic, index] = errors.kafka_code(error)
    return codes


def _code_and_text(error: PenstockError | None, version: int, caller: Caller) -> tuple[int, str]:
    """Kafka's code, and to a broker the word for it (`broker_words`)."""
    if error is None:
        return errors.NONE, ""
    code = transaction_errors.kafka_code(error, version, fenced_since=2, abortable_since=5)
    return code, broker_words.word_of(error) if caller.is_broker else ""


async def _results(told: Mapping[TopicPartition, tuple[int, str]], answer: LongAnswer) -> list[Fields]:
    topics: dict[str, list[bytes]] = {}
    for (topic, index), (code, word) in told.items():
        row = await answer.row({"partition_index": index, "partition_error_code": code, "word": word})
        topics.setdefault(topic, []).append(row)
    return [{"name": name, "results_by_partition": rows} for name, rows in topics.items()]
