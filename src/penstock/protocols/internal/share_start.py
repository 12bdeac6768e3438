"""ShareStart 0, both sides: how a partition begins in a share group, asked of the group's coordinator by who leads it.

For brokers only, and never advertised. All numbers are big endian. Every body begins with what it is about, in a byte;
the first question is which versions the other one answers, as in Forward.

VERSIONS: nothing more. Answer: the newest version.
START: version, topic id, partition, length of the group's id, the id. Answer: the error (`error_codec`), if any;
whether the group was ever given the partition; its state epoch; the offset, or -1 where the group's settings say it.
"""

from collections.abc import Callable, Coroutine
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any, Final, NamedTuple
from uuid import UUID

from penstock.engine.engine import Engine
from penstock.engine.groups.share_requests import ShareStart
from penstock.errors import PenstockError
from penstock.net.connection import Part, PeerError
from penstock.protocols.internal import error_codec
from penstock.protocols.internal.acquaintance import Acquaintances, OwnWords, not_answered
from penstock.protocols.internal.peer import Peer, PeerGone
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.codec import encode_response_head

KEY: Final = 20004
VERSION: Final = 0
NEWEST: Final = 1
VERSIONS, START = 0, 1
API: Final = Api(KEY, "share_start", VERSION, VERSION)
_QUESTION: Final = bytes((VERSIONS,))
_START = Struct(">BB16siH")
_ANSWER = Struct(">?iq")
_BY_SETTINGS: Final = -1
_TIMEOUT_S: Final = 5.0


class Wanted(NamedTuple):
    group: str
    topic_id: UUID
    partition: int


# --- on the wire


def encode(wanted: Wanted) -> bytes:
    group = wanted.group.encode(errors="surrogatepass")
    return _START.pack(START, NEWEST, wanted.topic_id.bytes, wanted.partition, len(group)) + group


def decode(body: memoryview) -> Wanted | None:
    """None for the question which versions are answered. Raises `PeerError`."""
    if bytes(body) == _QUESTION:
        return None
    try:
        about, version, topic_id, partition, size = _START.unpack_from(body)
        group = str(body[_START.size :], "utf-8", "surrogatepass")
    except (StructError, UnicodeDecodeError):
        raise PeerError(f"ShareStart with {len(body)} bytes that are none") from None
    if about != START or version > NEWEST or size != len(body) - _START.size:
        raise PeerError(f"ShareStart about {about}, version {version}, of {len(body)} bytes")
    return Wanted(group, UUID(bytes=topic_id), partition)


def encode_answer(start: ShareStart | None, error: PenstockError | None = None) -> bytes:
    offset = _BY_SETTINGS if start is None or start.offset is None else start.offset
    told = _ANSWER.pack(start is not None, 0 if start is None else start.state_epoch, offset)
    return error_codec.encode(error) + told


def decode_answer(body: memoryview) -> ShareStart | PenstockError | None:
    """Raises `PeerError`."""
    error, position = error_codec.decode(body, 0)
    try:
        is_given, state_epoch, offset = _ANSWER.unpack_from(body, position)
    except StructError:
        raise PeerError("an answer to ShareStart is cut short") from None
    if error is not None:
        return error
    return ShareStart(state_epoch, None if offset == _BY_SETTINGS else offset) if is_given else None


def _decode_versions(body: memoryview) -> int:
    if len(body) != 2 or body[0] != VERSIONS:
        raise PeerError(f"an answer of {len(body)} bytes to which versions of ShareStart are answered")
    return body[1]


# --- who coordinates the group


def begin(engine: Engine, body: memoryview, correlation_id: int) -> Coroutine[Any, Any, list[Part]]:
    """The parts of the answer, its header included. Reads the request at once; raises `PeerError`."""
    return _answer(engine, decode(body), correlation_id)


async def _answer(engine: Engine, wanted: Wanted | None, correlation_id: int) -> list[Part]:
    if wanted is None:
        answer = bytes((VERSIONS, NEWEST))
    else:
        try:
            answer = encode_answer(await engine.groups.share_start(*wanted))
        except PenstockError as error:
            answer = encode_answer(None, error)
    return [encode_response_head(correlation_id, len(answer), flexible=False) + answer]


# --- who leads the partition


class AskedStarts:
    """See `engine.queues.sharing.OtherCoordinators`.

    Args:
        peer: the connection to a broker; None if there is no such broker now.
    """

    def __init__(self, peer: Callable[[int], Peer | None]) -> None:
        self._peer = peer
        self._known = Acquaintances(
            OwnWords(
                KEY,
                VERSION,
                NEWEST,
                _QUESTION,
                _decode_versions,
                "does not tell where share groups begin",
                "wait until all brokers are of it",
            )
        )

    async def share_start(self, broker_id: int, group: str, topic_id: UUID, partition: int) -> ShareStart | None:
        peer = self._peer(broker_id)
        if peer is None:
            raise not_answered(broker_id, PeerGone("it is not there now"))
        await self._known.meet(broker_id, peer)
        try:
            answer = await peer.request(
                KEY,
                VERSION,
                encode(Wanted(group, topic_id, partition)),
                flexible=False,
                handle=decode_answer,
                timeout_s=_TIMEOUT_S,
            )
        except (PeerGone, PeerError) as gone:
            raise not_answered(broker_id, gone) from gone
        if isinstance(answer, PenstockError):
            raise answer
        return answer
