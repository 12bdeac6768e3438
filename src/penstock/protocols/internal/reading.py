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
from penstock.observe.logs import get_logger
from penstock.protocols.internal import reading_codec
from penstock.protocols.internal.acquaintance import Acquaintances, OwnWords, not_answered
from penstock.protocols.internal.peer import Peer, PeerGone
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.codec import encode_response_head

log_ = get_logger("kafka")
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
        self._connection = connection
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_over = False

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, body: memoryview, correlation_id: int) -> Coroutine[Any, Any, list[Part]]:
        """Have a question answered out of turn; in its turn it gets nothing. Raises `PeerError`."""
        wanted = reading_codec.decode(body)
        if len(self._tasks) >= MOST_WAITING:
            next(iter(self._tasks)).cancel()
        task = asyncio.get_running_loop().create_task(self._serve(wanted, correlation_id))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return _nothing()

    def close(self) -> None:
        self._is_over = True
        for task in list(self._tasks):
            task.cancel()

    async def _serve(self, wanted: WantedRecords | WantedEnds | None, correlation_id: int) -> None:
        try:
            parts, size = await self._answer(wanted)
        except asyncio.CancelledError:
            if self._is_over:
                raise
            refusal = PenstockError(Code.NOT_AVAILABLE, f"more than {MOST_WAITING} questions wait; ask again")
            answer = _refuse(wanted, refusal)
            parts, size = [answer], len(answer)
        except Exception:  # noqa: BLE001 - a bug of ours must cost this connection only
            log_.limited("bug").exception("request failed", api=API.name, peer=self._connection.peer)
            self._connection.abort()
            return
        self._connection.send_late([encode_response_head(correlation_id, size, flexible=False), *parts])

    async def _answer(self, wanted: WantedRecords | WantedEnds | None) -> tuple[list[Part], int]:
        if wanted is None:
            answer = reading_codec.encode_versions()
        else:
            try:
                if isinstance(wanted, WantedRecords):
                    return reading_codec.encode_taken(await self._engine.elsewhere.give(wanted))
                answer = reading_codec.encode_told_ends(await self._engine.elsewhere.give_ends(wanted))
            except (PenstockError, OSError) as raised:
                answer = _refuse(wanted, raised if isinstance(raised, PenstockError) else _disk_failed(raised))
        return [answer], len(answer)


def _refuse(wanted: WantedRecords | WantedEnds | None, error: PenstockError) -> bytes:
    about = reading_codec.RECORDS if isinstance(wanted, WantedRecords) else reading_codec.ENDS
    return reading_codec.encode_refusal(about, error)


async def _nothing() -> list[Part]:
    return []


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
