"""Read 0: a broker that does not lead reads from the one that does; what is asked, and the answer to it.

For brokers only, and never advertised; who reads is taken on trust, as in Forward. A question may wait here for
records, and answers to others on the same connection do not wait behind it: each goes out when it is there. What waits
ends with the connection, or when its time is up.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from penstock.engine.elsewhere import LONGEST_WAIT_S, Ends, Given, WantedEnds, WantedRecords
from penstock.engine.engine import Engine
from penstock.errors import Code, PenstockError
from penstock.net.connection import Connection, Part, PeerError
from penstock.protocols.internal import reading_codec
from penstock.protocols.internal.acquaintance import Acquaintances, OwnWords, not_answered
from penstock.protocols.internal.late_answers import Body, LateAnswers
from penstock.protocols.internal.peer import Peer, PeerGone
from penstock.protocols.kafka_wire.api import Api

API = Api(reading_codec.KEY, "read", reading_codec.VERSION, reading_codec.VERSION)
MOST_WAITING: Final = 20_000
"""Questions of one connection: two for each partition of a broker that leads as many as may be. Those whose asker is
gone are among them until their time is up, so that above it the oldest is told to ask again.
"""
_GRACE_S: Final = 5.0
T = TypeVar("T", Given, Ends)


# --- who leads


class Questions:
    """Those of one connection that are not answered yet."""

    def __init__(self, engine: Engine, connection: Connection) -> None:
        self._engine = engine
        self._late = LateAnswers(connection, API.name)
        self.close = self._late.close

    def __len__(self) -> int:
        return len(self._late)

    def begin(self, body: memoryview, correlation_id: int) -> Coroutine[Any, Any, list[Part]]:
        """Have a question answered out of turn; in its turn it gets nothing. Raises `PeerError`."""
        wanted = reading_codec.decode(body)
        if len(self._late) >= MOST_WAITING:
            self._late.give_up_oldest()
        return self._late.begin(correlation_id, self._answer(wanted))

    async def _answer(self, wanted: WantedRecords | WantedEnds | None) -> Body:
        if wanted is None:
            answer = reading_codec.encode_versions()
        else:
            try:
                if isinstance(wanted, WantedRecords):
                    return reading_codec.encode_taken(await self._engine.elsewhere.give(wanted))
                answer = reading_codec.encode_told_ends(await self._engine.elsewhere.give_ends(wanted))
            except asyncio.CancelledError:
                if self._late.is_over:
                    raise
                refusal = PenstockError(Code.NOT_AVAILABLE, f"more than {MOST_WAITING} questions wait; ask again")
                answer = _refuse(wanted, refusal)
            except (PenstockError, OSError) as raised:
                answer = _refuse(wanted, raised if isinstance(raised, PenstockError) else _disk_failed(raised))
        return [answer], len(answer)


def _refuse(wanted: WantedRecords | WantedEnds | None, error: PenstockError) -> bytes:
    about = reading_codec.RECORDS if isinstance(wanted, WantedRecords) else reading_codec.ENDS
    return reading_codec.encode_refusal(about, error)


def _disk_failed(error: OSError) -> PenstockError:
    return PenstockError(Code.STORAGE_FAILED, f"the leader's disk: {error}")


# --- who does not


class AskedReads:
    """See `engine.elsewhere.OtherReaders`.

    Args:
        peer: the connection to a broker; None if there is no such broker now.
    """

    def __init__(self, peer: Callable[[int], Peer | None]) -> None:
        self._peer = peer
        self._known = Acquaintances(
            OwnWords(
                reading_codec.KEY,
                reading_codec.VERSION,
                reading_codec.NEWEST,
                reading_codec.QUESTION,
                reading_codec.decode_versions,
                "gives other brokers nothing to read",
                "read from the broker that leads",
            )
        )

    async def read(self, broker_id: int, wanted: WantedRecords) -> Given:
        wait_s = min(wanted.wait_s, LONGEST_WAIT_S)
        body = reading_codec.encode_records(wanted._replace(wait_s=wait_s))
        return await self._ask(broker_id, body, reading_codec.decode_given, wait_s + _GRACE_S)

    async def ends(self, broker_id: int, wanted: WantedEnds) -> Ends:
        body = reading_codec.encode_ends(wanted)
        return await self._ask(broker_id, body, reading_codec.decode_told_ends, LONGEST_WAIT_S + _GRACE_S)

    async def _ask(
        self, broker_id: int, body: bytes, decode: Callable[[memoryview], T | PenstockError], timeout_s: float
    ) -> T:
        peer = self._peer(broker_id)
        if peer is None:
            raise PenstockError(Code.NOT_AVAILABLE, f"broker {broker_id} is not there now")
        await self._known.meet(broker_id, peer)
        try:
            answer = await peer.request(
                reading_codec.KEY,
                reading_codec.VERSION,
                body,
                flexible=False,
                handle=decode,
                timeout_s=timeout_s,
            )
        except (PeerGone, PeerError) as gone:
            raise not_answered(broker_id, gone) from gone
        if isinstance(answer, PenstockError):
            raise answer
        return answer
