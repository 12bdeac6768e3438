"""Forward 0: a broker that does not lead has the one that does publish a batch; what is asked, and the answer to it.

For brokers only, and never advertised: whoever is not a known guest of the internal listener finds no such API. So who
publishes is taken on trust here, from a broker that has checked who it is; a client cannot say it.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from penstock.engine.engine import Engine
from penstock.engine.forwarding import MOST_WAITING_BYTES as MOST_SENT_BYTES
from penstock.engine.forwarding import Forwarded, Outcome
from penstock.engine.publishing import parse_durability
from penstock.errors import Code, PenstockError
from penstock.net.connection import Connection, Part, PeerError
from penstock.protocols.internal import forwarding_codec
from penstock.protocols.internal.acquaintance import Acquaintances, OwnWords, not_answered
from penstock.protocols.internal.forwarding_codec import Request
from penstock.protocols.internal.late_answers import Body, LateAnswers
from penstock.protocols.internal.peer import Peer, PeerGone
from penstock.protocols.kafka_wire.api import Api

API = Api(forwarding_codec.KEY, "forward", forwarding_codec.VERSION, forwarding_codec.VERSION)
MOST_WAITING_BYTES: Final = 2 * MOST_SENT_BYTES
"""Of batches of one connection: whatever a broker may send, and again as much of which it waits for nothing more."""
_PATIENCE_S: Final = 10.0
_GRACE_S: Final = 5.0


# --- who leads


class Batches:
    """Those of one connection that are not published yet: what one waits for holds up no other partition's."""

    def __init__(self, engine: Engine, connection: Connection) -> None:
        self._engine = engine
        self._late = LateAnswers(connection, API.name)
        self._bytes = 0
        self.close = self._late.close

    def begin(self, body: memoryview, correlation_id: int) -> Coroutine[Any, Any, list[Part]]:
        """Have a batch published, and answered out of turn; in its turn it gets nothing. Raises `PeerError`."""
        request = forwarding_codec.decode(body)
        size = len(body)
        if self._bytes and self._bytes + size > MOST_WAITING_BYTES:
            return self._late.begin(correlation_id, _refuse(self._bytes))
        self._bytes += size
        return self._late.begin(correlation_id, self._answer(request, size))

    async def _answer(self, request: Request | None, size: int) -> Body:
        try:
            if request is None:
                answer = forwarding_codec.encode_versions()
            else:
                answer = forwarding_codec.encode_answer(await _publish(self._engine, request))
        finally:
            self._bytes -= size
        return [answer], len(answer)


async def _refuse(waiting_bytes: int) -> Body:
    error = PenstockError(Code.NOT_AVAILABLE, f"{waiting_bytes} bytes of other brokers wait here; send again later")
    answer = forwarding_codec.encode_answer(Outcome(None, error))
    return [answer], len(answer)


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
