"""CopySegment 0: a sealed segment for a follower that is far behind, card and bytes as they are.

For brokers only, and never advertised. See `engine.segment_copies`.
"""

from collections.abc import Coroutine
from typing import Any
from uuid import UUID

from penstock.engine.engine import Engine
from penstock.engine.segment_copies import check_follower, read_segment
from penstock.errors import PenstockError
from penstock.net.connection import Part
from penstock.protocols.internal import segment_codec
from penstock.protocols.internal.segment_codec import CopyRequest
from penstock.protocols.kafka_wire import broker_words, errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.codec import encode_response_head

API = Api(segment_codec.KEY, "copy_segment", segment_codec.VERSION, segment_codec.VERSION)


def begin(engine: Engine, body: memoryview, correlation_id: int) -> Coroutine[Any, Any, list[Part]]:
    """The parts of the answer, its header included. Reads the request at once; raises `PeerError`."""
    return _answer(engine, segment_codec.decode(body), correlation_id)


async def _answer(engine: Engine, request: CopyRequest, correlation_id: int) -> list[Part]:
    data: Part | None = None
    try:
        head, data = await _read(engine, request)
    except FileNotFoundError:  # retention was quicker
        head = segment_codec.encode_answer(errors.NONE)
    except PenstockError as error:
        head = segment_codec.encode_refusal(errors.kafka_code(error), broker_words.word_of(error))
    except OSError:
        head = segment_codec.encode_answer(errors.KAFKA_STORAGE_ERROR)
    size = len(head) + (data[2] if isinstance(data, tuple) else 0)
    head = encode_response_head(correlation_id, size, flexible=False) + head
    return [head] if data is None else [head, data]


async def _read(engine: Engine, request: CopyRequest) -> tuple[bytes, Part | None]:
    wanted = request.wanted
    partition = engine.topics.replica_by_id(UUID(bytes=wanted.topic_id), wanted.partition_index)
    check_follower(partition, request.replica_id, request.incarnation, wanted.leader_epoch)
    found = await read_segment(partition, wanted.offset, wanted.position, wanted.max_bytes, wanted.least_bytes)
    if found.data is None:
        return segment_codec.encode_answer(errors.NONE, found.base), None
    file, position, size, _ = found.data
    head = segment_codec.encode_answer(errors.NONE, found.base, found.next_offset, found.size_bytes, found.card)
    return head, (file, position, size) if size else None
