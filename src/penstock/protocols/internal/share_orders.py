"""ShareOrder 0, both sides: what the coordinator of a share group has done by who leads partitions of it.

For brokers only, and never advertised. All numbers are big endian. Every body begins with what it is about, in a byte;
the first question is which versions the other one answers, as in Forward.

VERSIONS: nothing more. Answer: the newest version.
ORDER: version, deed, state epoch, lengths of the group's id and the member's, number of places, the two ids; of each
place the topic id, partition, offset. Answer: number of places; of each where the group starts and what it lags, the
leader epoch, whether it was known, the error (`error_codec`), if any.
"""

from collections.abc import Callable, Coroutine, Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any, Final
from uuid import UUID

from penstock.engine.engine import Engine
from penstock.engine.queues.share_ledgers import MOST_PLACES, Deed, Order, Place, Standing
from penstock.net.connection import Part, PeerError
from penstock.protocols.internal import error_codec
from penstock.protocols.internal.acquaintance import Acquaintances, OwnWords, not_answered
from penstock.protocols.internal.peer import Peer, PeerGone
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.codec import encode_response_head

KEY: Final = 20005
VERSION: Final = 0
NEWEST: Final = 1
VERSIONS, ORDER = 0, 1
API: Final = Api(KEY, "share_order", VERSION, VERSION)
_QUESTION: Final = bytes((VERSIONS,))
_ORDER = Struct(">BBBiHHI")
_PLACE = Struct(">16siq")
_COUNT = Struct(">I")
_STANDING = Struct(">qqi?")
_TIMEOUT_S: Final = 10.0


# --- on the wire


def encode(order: Order) -> bytes:
    texts = [text.encode(errors="surrogatepass") for text in (order.group, order.member)]
    head = _ORDER.pack(ORDER, NEWEST, order.deed, order.state_epoch, *map(len, texts), len(order.places))
    places = [_PLACE.pack(topic_id.bytes, partition, offset) for topic_id, partition, offset in order.places]
    return b"".join((head, *texts, *places))


def decode(body: memoryview) -> Order | None:
    """None for the question which versions are answered. Raises `PeerError`."""
    if bytes(body) == _QUESTION:
        return None
    try:
        about, version, deed, state_epoch, group_size, member_size, count = _ORDER.unpack_from(body)
    except StructError:
        raise PeerError(f"ShareOrder with {len(body)} bytes that are none") from None
    start = _ORDER.size + group_size + member_size
    is_known = about == ORDER and version <= NEWEST and deed in Deed._value2member_map_
    if not is_known or count > MOST_PLACES or len(body) != start + count * _PLACE.size:
        raise PeerError(f"ShareOrder about {about}, version {version}, for {count} places, of {len(body)} bytes")
    try:
        group = str(body[_ORDER.size : _ORDER.size + group_size], "utf-8", "surrogatepass")
        member = str(body[_ORDER.size + group_size : start], "utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise PeerError("ShareOrder for a group or a member that is no text") from None
    places = tuple(
        Place(UUID(bytes=topic_id), partition, offset)
        for topic_id, partition, offset in _PLACE.iter_unpack(body[start:])
    )
    return Order(Deed(deed), group, state_epoch, member, places)


def encode_answer(standings: Sequence[Standing]) -> bytes:
    parts = [_COUNT.pack(len(standings))]
    for start, lag, leader_epoch, was_known, error in standings:
        parts += (_STANDING.pack(start, lag, leader_epoch, was_known), error_codec.encode(error))
    return b"".join(parts)


def decode_answer(body: memoryview) -> list[Standing]:
    """Raises `PeerError`."""
    try:
        (count,) = _COUNT.unpack_from(body)
        position, found = _COUNT.size, []
        for _ in range(min(count, MOST_PLACES)):
            start, lag, epoch, was_known = _STANDING.unpack_from(body, position)
            error, position = error_codec.decode(body, position + _STANDING.size)
            found.append(Standing(start, lag, epoch, was_known, error))
    except StructError:
        raise PeerError("an answer to ShareOrder is cut short") from None
    if count > MOST_PLACES or position != len(body):
        raise PeerError(f"an answer to ShareOrder for {count} places, of {len(body)} bytes")
    return found


def _decode_versions(body: memoryview) -> int:
    if len(body) != 2 or body[0] != VERSIONS:
        raise PeerError(f"an answer of {len(body)} bytes to which versions of ShareOrder are answered")
    return body[1]


# --- who leads the partitions


def begin(engine: Engine, body: memoryview, correlation_id: int) -> Coroutine[Any, Any, list[Part]]:
    """The parts of the answer, its header included. Reads the request at once; raises `PeerError`."""
    return _answer(engine, decode(body), correlation_id)


async def _answer(engine: Engine, order: Order | None, correlation_id: int) -> list[Part]:
    told = None if order is None else await engine.share_ledgers.carry_out(order)
    answer = bytes((VERSIONS, NEWEST)) if told is None else encode_answer(told)
    return [encode_response_head(correlation_id, len(answer), flexible=False) + answer]


# --- who coordinates the group


class GivenOrders:
    """See `engine.queues.share_ledgers.OtherLeaders`.

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
                "does not change where share groups are",
                "wait until all brokers are of it",
            )
        )

    async def carry_out(self, broker_id: int, order: Order) -> list[Standing]:
        peer = self._peer(broker_id)
        if peer is None:
            raise not_answered(broker_id, PeerGone("it is not there now"))
        await self._known.meet(broker_id, peer)
        try:
            standings = await peer.request(
                KEY, VERSION, encode(order), flexible=False, handle=decode_answer, timeout_s=_TIMEOUT_S
            )
        except (PeerGone, PeerError) as gone:
            raise not_answered(broker_id, gone) from gone
        if len(standings) != len(order.places):
            raise not_answered(broker_id, PeerError(f"it tells of {len(standings)} of {len(order.places)} places"))
        return standings
