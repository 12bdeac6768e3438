"""TxnOffsetCommit 0-5: offsets a group is to have if a transaction commits.

Versions 0-4 come after AddOffsetsToTxn, which is verified: offsets that came after the end would never be decided.
From 5 on (KIP-890) there was none, and the group's offsets are added to the transaction here.

If the group is a queue that was made as one, an offset's metadata has receipts of messages, which are acknowledged if
the transaction commits (`engine.queues.transactional_acks`); the offset itself says nothing then. A receipt that is not
good any more aborts the transaction: clients are told so in a way that they go on after. Which it was is in the log.
A broker that coordinates a group asks with this request of those that lead the partitions.
"""

from typing import Final

from penstock.engine.access import Operation
from penstock.engine.groups.offsets import NewOffset, Results, Spot, TransactionalCommit
from penstock.engine.queues.transactional_acks import AckRequest
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.protocols.kafka import transaction_errors
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import broker_words, errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(28, "txn_offset_commit", 0, 5)
_KNOWS_LOADING = 2
_KNOWS_ABORTABLE = 4
_ADDS_OFFSETS = 5
_ABORTS: Final = frozenset({Code.STALE_RECEIPT, Code.INVALID_REQUEST, Code.UNKNOWN_QUEUE})
log_ = get_logger("queues")


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    if caller.is_broker:
        return await _take(request, caller)
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
    commit = TransactionalCommit(
        group_id=request.group_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        member_id=request.get("member_id", ""),
        generation=request.get("generation_id", -1),
        group_instance_id=request.get("group_instance_id"),
        offsets=offsets,
    )
    receipts = _receipts(caller, commit)
    codes = {}
    if receipts:
        try:
            told = await caller.acting.queues.acknowledge(_ack_request(request, receipts))
        except PenstockError as error:
            told = dict.fromkeys(receipts, error)
        codes = {spot: errors.NONE if error is None else _ack_code(error, version) for spot, error in told.items()}
        commit = commit._replace(offsets={spot: new for spot, new in offsets.items() if spot not in receipts})
    if not commit.offsets:
        return codes
    results = await caller.acting.groups.commit_in_transaction(commit, check)
    return codes | {spot: errors.NONE if error is None else _code(error, version) for spot, error in results.items()}


def _receipts(caller: Caller, commit: TransactionalCommit) -> dict[Spot, str]:
    """Of those partitions of which the group is a queue."""
    is_ack, by_member = caller.acting.queues.is_ack, commit.generation >= 0
    return {
        spot: new.metadata
        for spot, new in commit.offsets.items()
        if is_ack(spot, commit.group_id, new.metadata, by_member=by_member)
    }


def _ack_request(request: Message, receipts: dict[Spot, str]) -> AckRequest:
    return AckRequest(request.transactional_id, request.producer_id, request.producer_epoch, request.group_id, receipts)


def _ack_code(error: PenstockError, version: int) -> int:
    """No client expects such errors here. These are the ones by which all of them abort, and then go on."""
    if error.code not in _ABORTS:
        return _code(error, version)
    log_.limited("ack in a transaction").warning(
        "an acknowledgement in a transaction is refused", error=str(error), help=error.help
    )
    code = Code.TRANSACTION_ABORTABLE if version >= _KNOWS_ABORTABLE else Code.ILLEGAL_GENERATION
    return errors.KAFKA_CODES[code]


async def _take(request: Message, caller: Caller) -> Fields:
    """What the broker that coordinates the group has looked at is to be done by who leads, which is this one."""
    receipts = {
        (topic.name, row.partition_index): row.committed_metadata or ""
        for topic in request.topics
        for row in topic.partitions
    }
    try:
        told: Results = await caller.acting.queues.take_acks(_ack_request(request, receipts))
    except PenstockError as error:
        told = dict.fromkeys(receipts, error)
    rows: dict[str, list[Fields]] = {}
    for (name, index), refused in told.items():
        code = errors.NONE if refused is None else errors.kafka_code(refused)
        word = "" if refused is None else broker_words.word_of(refused)
        rows.setdefault(name, []).append({"partition_index": index, "error_code": code, "word": word})
    return {"throttle_time": 0, "topics": [{"name": name, "partitions": each} for name, each in rows.items()]}


def _code(error: PenstockError, version: int) -> int:
    if error.code in (Code.NOT_AVAILABLE, Code.NOT_LEADER):  # of other brokers; no words of this API
        error = PenstockError(Code.COORDINATOR_LOADING, str(error))
    if error.code is Code.COORDINATOR_LOADING and version < _KNOWS_LOADING:
        return errors.COORDINATOR_NOT_AVAILABLE  # clients of that time fail for good at the other
    return transaction_errors.kafka_code(error, version, fenced_since=3, abortable_since=4)
