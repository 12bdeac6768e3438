"""Forward 0: a broker that does not lead has the one that does publish a batch; what is asked, and the answer to it.

For brokers only, and never advertised: whoever is not a known guest of the internal listener finds no such API. So who
publishes is taken on trust here, from a broker that has checked who it is; a client cannot say it.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from penstock.engine.engine import Engine
from penstock.engine.forwarding import Forwarded, Outcome
from penstock.engine.publishing import parse_durability
from penstock.errors import Code, PenstockError
from penstock.net.connection import Part, PeerError
from penstock.protocols.internal import forwarding_codec
from penstock.protocols.internal.acquaintance import Acquaintances, OwnWords, not_answered
from penstock.protocols.internal.forwarding_codec import Request
from penstock.protocols.internal.peer import Peer, PeerGone
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.codec import encode_response_head

API = Api(forwarding_codec.KEY, "forward", forwarding_codec.VERSION, forwarding_codec.VERSION)
_PATIENCE_S: Final = 10.0
_GRACE_S: Final = 5.0


# --- who leads


def begin(engine: Engine, body: memoryview, correlation_id: int) -> Coroutine[Any, Any, list[Part]]:
    """The parts of the answer, its header included. Reads the request at once; raises `PeerError`."""
    return _answer(engine, forwarding_codec.decode(body), correlation_id)


async def _answer(engine: Engine, request: Request | None, correlation_id: int) -> list[Part]:
    if request is None:
        answer = forwarding_codec.encode_versions()
    else:
        answer = forwarding_codec.encode_answer(await _publish(engine, request))
    return [encode_response_head(correlation_id, len(answer), flexible=False) + answer]


async def _publish(engine: Engine, request: Request) -> Outcome:
    try:
        durability = parse_durability(request.durability)
        partition = engine.topics.partition_by_id(request.topic_id, request.partition_index)
    except PenstockError as error:
        return Outcome(None, error.kept())
    return await engine.forwarding.take(partition, request.batch, durability, request.timeout_s, request.subjects)


# --- who does not


class ForwardedCalls:
    """See `engine.forwarding.OtherBrokers`.

    Args:
        peer: the connection to a broker; None if there is no such broker now.
    """

    def __init__(self, peer: Callable[[int], Peer | None]) -> None:
        self._peer = peer
        self._known = Acquaintances(
            OwnWords(
                forwarding_codec.KEY,
                forwarding_codec.VERSION,
                forwarding_codec.NEWEST,
                forwarding_codec.QUESTION,
                forwarding_codec.decode_versions,
                "takes no batches from other brokers",
                "publish through the broker that leads",
            )
        )

    async def publish(self, broker_id: int, forwarded: Forwarded, leaves: Callable[[], None]) -> Outcome:
        peer = self._peer(broker_id)
        if peer is None:
            raise PenstockError(Code.NOT_AVAILABLE, f"broker {broker_id} is not there now")
        body = forwarding_codec.encode(forwarded)
        await self._known.meet(broker_id, peer)
        leaves()
        try:
            return await peer.request(
                forwarding_codec.KEY,
                forwarding_codec.VERSION,
                body,
                flexible=False,
                handle=forwarding_codec.decode_answer,
                # Whoever publishes stops waiting by itself; this ends a connection by which nothing comes any more.
                timeout_s=max(forwarded.timeout_s, _PATIENCE_S) + _GRACE_S,
            )
        except PeerGone as gone:
            return Outcome(None, not_answered(broker_id, gone), is_open=gone.sent)
        except PeerError as error:
            return Outcome(None, not_answered(broker_id, error), is_open=True)
