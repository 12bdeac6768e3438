"""A leader behind connections between brokers: the follower's `Source` with Kafka's own Fetch and its sessions.

Segments come on a connection of their own: answers keep their order, and a fetch may wait at the leader for long.
"""

from collections.abc import Callable, Iterable

from penstock.cluster.replication.source import FetchedRow, LeaderGone, Position, SegmentPart, SegmentWanted
from penstock.errors import Code, PenstockError
from penstock.net.connection import PeerError
from penstock.protocols.internal import replica_fetch_codec, segment_codec
from penstock.protocols.internal.peer import Peer, PeerGone
from penstock.protocols.internal.replica_fetch_codec import next_epoch
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.broker_words import code_of

_REFUSED_TWICE = 2
_GRACE_S = 10.0


class BrokerSource:
    """Args:
    peer: for fetches.
    bulk: for segments.
    incarnation: which start of this broker it is, when it asks.
    """

    def __init__(self, peer: Peer, bulk: Peer, node_id: int, incarnation: Callable[[], int]) -> None:
        self._peer = peer
        self._bulk = bulk
        self._node_id = node_id
        self._incarnation = incarnation
        self._session_id, self._session_epoch = 0, 0
        self._sent: dict[tuple[bytes, int], Position] = {}

    async def fetch(
        self,
        positions: Iterable[Position],
        handle: Callable[[FetchedRow, Code | None], None],
        *,
        max_wait_ms: int,
        max_bytes: int,
    ) -> None:
        wanted = {(position.topic_id, position.partition_index): position for position in positions}
        changed = [position for key, position in wanted.items() if self._sent.get(key) != position]
        forgotten = [key for key in self._sent if key not in wanted]
        body = replica_fetch_codec.encode(
            changed,
            replica_id=self._node_id,
            replica_epoch=self._incarnation(),
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            forgotten=forgotten,
        )
        self._sent = wanted

        def take(view: memoryview) -> None:
            fetched = replica_fetch_codec.decode(view)
            if fetched.code != errors.NONE:
                self._forget_session()
                return
            self._session_id = fetched.session_id
            self._session_epoch = next_epoch(self._session_epoch) if fetched.session_id else 0
            if not fetched.session_id:
                self._sent = {}
            for row in fetched.rows:
                handle(row, code_of(row.code, row.word))

        try:
            await self._peer.request(
                replica_fetch_codec.KEY,
                replica_fetch_codec.VERSION,
                body,
                flexible=True,
                handle=take,
                timeout_s=max_wait_ms / 1000 + _GRACE_S,
            )
        except (PeerGone, PeerError) as error:
            self._forget_session()
            raise LeaderGone(str(error), refused=self._peer.refusals >= _REFUSED_TWICE) from error

    def _forget_session(self) -> None:
        self._session_id, self._session_epoch = 0, 0
        self._sent = {}

    async def copy_segment(self, wanted: SegmentWanted) -> SegmentPart:
        try:
            answered = await self._bulk.request(
                segment_codec.KEY,
                segment_codec.VERSION,
                segment_codec.encode(wanted, self._node_id, self._incarnation()),
                flexible=False,
                handle=segment_codec.decode_answer,
                timeout_s=_GRACE_S,
            )
        except (PeerGone, PeerError) as error:
            raise LeaderGone(str(error), refused=False) from error
        code = code_of(answered.code, answered.word)
        if code is not None:
            raise PenstockError(code, f"the leader refuses a segment from offset {wanted.offset} on: {code.value}")
        return answered.part

    def close(self) -> None:
        self._peer.close()
        self._bulk.close()
