"""Produce 3-13 (advertised from 0): each partition's batch straight from the network buffer into the log.

Hot path. Everything up to the append happens before this function returns, because the frame's view dies then; only
batches that are opened in a thread are copied and appended later. `acks=all` answers when all of it is safe, or not in
time; `acks=1` when it is appended; `acks=0` never, and an error closes the connection, unless it comes when the batch
is appended later. See `engine.publishing`.

Version notes: 7 zstd; 8 error texts; 9 flexible; 10 leader hints (KIP-951); 11 knows TRANSACTION_ABORTABLE; 12 adds
partitions to a transaction by writing to them, older ones are checked with the coordinator (KIP-890); 13 topic ids
instead of names.
"""

from uuid import UUID

from penstock.engine.access import Kind, Operation
from penstock.engine.acting.acting import Acting
from penstock.engine.acting.topics import ActingTopics
from penstock.engine.partition import Partition
from penstock.engine.publishing import ALL, LEADER, NONE, Publication, Published
from penstock.errors import Code, PenstockError
from penstock.net.connection import Answer, PeerError
from penstock.protocols.kafka import leader_hints
from penstock.protocols.kafka.handlers import Context
from penstock.protocols.kafka.produce_codec import FLEXIBLE_FROM, IDS_FROM, Produced, Result, decode, encode
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.codec import encode_response_head
from penstock.records.batch import CODEC_MASK, CONTROL, HEADER_BYTES, TRANSACTIONAL
from penstock.records.compression import Codec

API = Api(0, "produce", 3, 13)
_ZSTD_FROM = 7
_ABORTABLE_FROM = 11
_ADDS_FROM = 12
_NAME_BYTES = 250  # one more than a name may have, so what is cut to it is unknown all the same
_DURABILITIES = {-1: ALL, 0: NONE, 1: LEADER}
_ATTRIBUTES_AT = 22  # the lower byte, which has the codec
_PRODUCER_ID_AT = 43
_NEGATIVE = 0x80
_EMPTY = memoryview(b"")

Rows = list[tuple[bytes, list[tuple[int, Published]]]]
"""By topic, as the client named it: each partition's index and batch."""


def handle(
    context: Context,
    acting: Acting,
    frame: memoryview,
    position: int,
    version: int,
    correlation_id: int,
    answer: Answer,
) -> None:
    """Publish everything, then answer when `acks` allows. Raises `PeerError`."""
    request = decode(frame, position, version)
    acks = request.acks
    is_held = False

    def reply(publication: Publication) -> None:
        if is_held:
            answer.release()
        if acks:
            try:
                body = encode(_results(rows, version), version, context)
            except Exception:
                answer.abort()  # a bug of ours, which the publication logs
                raise
            answer.send((encode_response_head(correlation_id, len(body), flexible=version >= FLEXIBLE_FROM) + body,))

    transaction, refusal = None, None
    if request.transactional_id is not None:
        try:
            transactional_id = request.transactional_id.decode("utf-8", "replace")
            transaction = acting.transactions.to_write(transactional_id, adds=version >= _ADDS_FROM)
        except PenstockError as error:
            refusal = error.kept()
    publication = acting.begin(_DURABILITIES.get(acks, NONE), request.timeout_ms / 1000, reply, transaction)
    rows = _add_all(acting, publication, request, version, refusal)
    has_failed = any(each.error is not None for each in publication.batches)
    if acks == 0:
        answer.skip()
    has_deferred = publication.wait()
    if acks == 0 and has_failed:
        raise PeerError("an acks=0 produce failed")
    if has_deferred and acting.is_crowded and not publication.is_over:
        is_held = True
        answer.hold()


def _add_all(
    acting: Acting, publication: Publication, request: Produced, version: int, refusal: PenstockError | None
) -> Rows:
    """Args:
    refusal: of all there is, if there is one.
    """
    rows: Rows = []
    for topic, partitions in request.topics:
        added: list[tuple[int, Published]] = []
        for index, batch in partitions:
            partition: Partition | None = None
            try:
                if refusal is not None:
                    raise refusal
                partition = _find(acting.topics, topic, index, version)
                if request.transactional_id is None and batch is not None and _is_transactional(batch):
                    raise acting.rights.refuse(Operation.WRITE, Kind.TRANSACTIONAL_ID, "")
                if request.acks not in _DURABILITIES:
                    raise PenstockError(Code.INVALID_DURABILITY, "acks must be -1, 0 or 1")
                if version < _ZSTD_FROM and batch is not None:
                    _check_codec(batch)
            except PenstockError as error:
                added.append((index, publication.refuse(partition, error)))
            else:
                added.append((index, publication.add(partition, batch if batch is not None else _EMPTY)))
        rows.append((topic, added))
    return rows


def _find(topics: ActingTopics, topic: bytes, index: int, version: int) -> Partition:
    if version >= IDS_FROM:
        return topics.partition_by_id(UUID(bytes=topic), index, Operation.WRITE)
    return topics.partition(topic[:_NAME_BYTES].decode("utf-8", "replace"), index, Operation.WRITE)


def _is_transactional(batch: memoryview) -> bool:
    """By the batch's own word: who does not say in whose transaction cannot be asked for the right to it.

    What no producer may send is left to be refused as such: a control batch, one without a producer's id.
    """
    if len(batch) < HEADER_BYTES or batch[_ATTRIBUTES_AT] & (TRANSACTIONAL | CONTROL) != TRANSACTIONAL:
        return False
    return batch[_PRODUCER_ID_AT] < _NEGATIVE


def _check_codec(batch: memoryview) -> None:
    """Old versions know no zstd: their consumers could not read it."""
    if len(batch) >= HEADER_BYTES and batch[_ATTRIBUTES_AT] & CODEC_MASK == Codec.ZSTD:
        raise PenstockError(Code.UNSUPPORTED_CODEC, f"zstd needs Produce version {_ZSTD_FROM} or later")


def _results(rows: Rows, version: int) -> list[tuple[bytes, list[Result]]]:
    return [(topic, [_result(index, published, version) for index, published in added]) for topic, added in rows]


def _result(index: int, published: Published, version: int) -> Result:
    error = published.error
    if error is None:
        appended = published.appended
        assert appended is not None  # everything has come to its end
        return Result(index, errors.NONE, appended.base_offset, appended.timestamp, published.log_start, None)
    error = _for_producer(error, version)
    leader = leader_hints.hint(published.partition, error)
    return Result(index, errors.kafka_code(error), -1, -1, -1, errors.describe(error), error.records, leader)


def _for_producer(error: PenstockError, version: int) -> PenstockError:
    """What a coordinator said, in words that a producer of this version knows."""
    code = error.code
    if code is Code.PRODUCER_FENCED:
        code = Code.INVALID_PRODUCER_EPOCH
    elif code is Code.TRANSACTION_ABORTABLE and version < _ABORTABLE_FROM:
        code = Code.INVALID_TRANSACTION_STATE
    elif code in (Code.COORDINATOR_NOT_AVAILABLE, Code.COORDINATOR_LOADING, Code.NOT_COORDINATOR) or (
        code is Code.CONCURRENT_TRANSACTIONS and version < _ADDS_FROM
    ):
        code = Code.NOT_AVAILABLE
    return error if code is error.code else PenstockError(code, str(error), help=error.help)
