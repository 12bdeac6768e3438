"""TxnOffsetCommit 0-5: offsets a group is to have if a transaction commits.

Versions 0-4 come after AddOffsetsToTxn, which is verified: offsets that came after the end would never be decided.
From 5 on (KIP-890) there was none, and the group's offsets are added to the transaction here.
"""

from penstock.engine.access import Operation
from penstock.engine.groups.offsets import NewOffset, Spot, TransactionalCommit
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import transaction_errors
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(28, "txn_offset_commit", 0, 5)
_KNOWS_LOADING = 2
_ADDS_OFFSETS = 5


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    answer = LongAnswer(context, API, version, "topics", "partitions")
    codes, offsets = await _offsets(caller, request, answer)
    if offsets:
        try:
            codes |= await _commit(caller, request, version, offsets)
        except PenstockError as error:
            codes |= dict.fromkeys(offsets, _code(error, version))
    topics = [
        {
            "name": topic.name,
            "partitions": [
                await answer.row(
                    {"partition_index": row.partition_index, "error_code": codes[topic.name, row.partition_index]}
                )
                for row in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    return {"throttle_time": 0, "topics": topics}


async def _offsets(
    caller: Caller, request: Message, answer: LongAnswer
) -> tuple[dict[Spot, int], dict[Spot, NewOffset]]:
    """Codes of partitions that do not exist or may not be read, and the offsets of the others."""
    codes, offsets = {}, {}
    for topic in request.topics:
        for row in topic.partitions:
            await answer.count_row()
            partition = topic.name, row.partition_index
            try:
                caller.acting.transactions.check(Operation.WRITE, request.transactional_id)
                caller.acting.groups.check(Operation.READ, request.group_id)
                caller.acting.topics.partition(*partition, Operation.READ)
            except PenstockError as error:
                codes[partition] = errors.kafka_code(error)
                continue
            offsets[partition] = NewOffset(
                row.committed_offset, row.get("committed_leader_epoch", -1), row.committed_metadata or ""
            )
    return codes, offsets


async def _commit(caller: Caller, request: Message, version: int, offsets: dict[Spot, NewOffset]) -> dict[Spot, int]:
    check = await caller.acting.transactions.add_offsets(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.group_id,
        verify_only=version < _ADDS_OFFSETS,
    )
    results = await caller.acting.groups.commit_in_transaction(
        TransactionalCommit(
            group_id=request.group_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            member_id=request.get("member_id", ""),
            generation=request.get("generation_id", -1),
            group_instance_id=request.get("group_instance_id"),
            offsets=offsets,
        ),
        check,
    )
    return {partition: errors.NONE if error is None else _code(error, version) for partition, error in results.items()}


def _code(error: PenstockError, version: int) -> int:
    if error.code is Code.NOT_AVAILABLE:  # of a coordinator elsewhere; no word of this API
        error = PenstockError(Code.COORDINATOR_LOADING, str(error))
    if error.code is Code.COORDINATOR_LOADING and version < _KNOWS_LOADING:
        return errors.COORDINATOR_NOT_AVAILABLE  # clients of that time fail for good at the other
    return transaction_errors.kafka_code(error, version, fenced_since=3, abortable_since=4)
