"""What is known of the broker at the other end of a connection: whether it speaks an API of our own.

Before anything else a broker is asked which versions it takes. A release that does not know the API closes the
connection, and nobody has to guess what became of a request.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.errors import Code, PenstockError
from penstock.net.connection import PeerError
from penstock.protocols.internal.peer import Peer, PeerGone

_ASKING_S: Final = 5.0
_UNANSWERED: Final = 3
"""So many questions in a row by which the broker closed the connection: it does not know the API. One may be a cut."""


class OwnWords(NamedTuple):
    """An API of our own.

    Attributes:
        question: asks which versions are taken.
        deed: what a broker that does not know it cannot do, for people.
    """

    key: int
    version: int
    newest: int
    question: bytes
    decode_versions: Callable[[memoryview], int]
    deed: str
    way_out: str


@dataclass(slots=True)
class _Met:
    peer: Peer
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    speaks_it: bool = False
    unanswered: int = 0


class Acquaintances:
    """Those that one API is spoken with."""

    def __init__(self, words: OwnWords) -> None:
        self._words = words
        self._met: dict[int, _Met] = {}

    async def meet(self, broker_id: int, peer: Peer) -> None:
        """Make sure that the broker speaks the API. Raises PenstockError; nothing else has left then."""
        met = self._met.get(broker_id)
        if met is None or met.peer is not peer:  # it has started anew, perhaps as another release
            met = self._met[broker_id] = _Met(peer)
        if met.speaks_it:
            return
        async with met.turn:
            if not met.speaks_it:
                await self._ask(broker_id, met)

    async def _ask(self, broker_id: int, met: _Met) -> None:
        words = self._words
        try:
            newest = await met.peer.request(
                words.key,
                words.version,
                words.question,
                flexible=False,
                handle=words.decode_versions,
                timeout_s=_ASKING_S,
            )
        except PeerGone as gone:
            met.unanswered = met.unanswered + 1 if gone.closed else 0
            if met.unanswered >= _UNANSWERED:
                raise self._does_not_know(broker_id, met.peer, str(gone)) from gone
            raise not_answered(broker_id, gone) from gone
        except PeerError as error:
            raise self._does_not_know(broker_id, met.peer, str(error)) from error
        if newest < words.newest:
            raise self._does_not_know(broker_id, met.peer, f"it takes version {newest}")
        met.speaks_it = True

    def _does_not_know(self, broker_id: int, peer: Peer, why: str) -> PenstockError:
        return PenstockError(
            Code.UNSUPPORTED_VERSION,
            f"broker {broker_id} at {peer.name} {self._words.deed}: {why}",
            help=f"bring it to this release, or {self._words.way_out}",
        )


def not_answered(broker_id: int, error: Exception) -> PenstockError:
    return PenstockError(Code.NOT_AVAILABLE, f"broker {broker_id} does not answer: {error}")
