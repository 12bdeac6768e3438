"""CopySegment 0: a sealed segment for a follower that is far behind, card and bytes as they are.

For brokers only, and never advertised. What is lent lies wholly below the high watermark, so it is never taken back.
Asking for it says nothing of what the follower has: only its fetches count.
"""

from uuid import UUID

from penstock.engine.partition import Partition
from penstock.errors import Code, PenstockError
from penstock.net.connection import Part
from penstock.protocols.kafka import broker_words, errors, segment_codec
from penstock.protocols.kafka.codec import encode_response_head
from penstock.protocols.kafka.handlers import Api, Context
from penstock.protocols.kafka.segment_codec import CopyRequest
from penstock.storage.log.lending import find_segment, keep_open, lend

API = Api(segment_codec.KEY, "copy_segment", segment_codec.VERSION, segment_codec.VERSION)


async def handle(context: Context, request: CopyRequest, correlation_id: int) -> list[Part]:
    """The parts of the answer, its header included."""
    data: Part | None = None
    try:
        head, data = await _lend(context, request)
    except FileNotFoundError:  # retention was quicker
        head = segment_codec.encode_answer(errors.NONE)
    except PenstockError as error:
        head = segment_codec.encode_refusal(errors.kafka_code(error), broker_words.word_of(error))
    except OSError:
        head = segment_codec.encode_answer(errors.KAFKA_STORAGE_ERROR)
    size = len(head) + (data[2] if isinstance(data, tuple) else 0)
    head = encode_response_head(correlation_id, size, flexible=False) + head
    return [head] if data is None else [head, data]


async def _lend(context: Context, request: CopyRequest) -> tuple[bytes, Part | None]:
    wanted = request.wanted
    partition = context.engine.topics.partition_by_id(UUID(bytes=wanted.topic_id), wanted.partition_index)
    _check(partition, request)
    log = partition.leading()
    least = wanted.least_bytes if wanted.position == 0 else 0
    segment = find_segment(log, wanted.offset, partition.high_watermark, least)
    if segment is None or segment.base != wanted.offset:
        return segment_codec.encode_answer(errors.NONE, -1 if segment is None else segment.base), None
    loan = await log.shelf.disk.run(lend, log, segment, wanted.position, wanted.max_bytes)
    file, position, size, _ = loan.data
    keep_open(log, segment, file)
    head = segment_codec.encode_answer(errors.NONE, segment.base, segment.next_offset, segment.size, loan.card)
    return head, (file, position, size) if size else None


def _check(partition: Partition, request: CopyRequest) -> None:
    """Whether this broker leads in the very epoch the follower names, and it is one. Raises PenstockError."""
    partition.check_replica_epoch(request.wanted.leader_epoch)
    follower = partition.leadership.follower(request.replica_id)
    if follower is None or request.incarnation < follower.incarnation:
        raise PenstockError(Code.NOT_ALLOWED, f"broker {request.replica_id} has no replica of {partition.name}")
