"""ShareAcknowledge 1-2: what has become of records that a member of a share group has (KIP-932).

It counts in the member's share session, which only ShareFetch opens. The answer goes out when what was acknowledged is
durable. Version 2 can keep records for longer (KIP-1222).
"""

from collections.abc import Iterable

from penstock.engine.acting.acting import Acting
from penstock.net.connection import Answer
from penstock.protocols.kafka import leader_hints, share_acks, share_codec, share_requests
from penstock.protocols.kafka.handlers import Context
from penstock.protocols.kafka.share_codec import Row, ShareAcknowledgeRequest
from penstock.protocols.kafka.share_sessions import CLOSING, Membership, SessionRefusal
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.codec import encode_response_head

API = Api(79, "share_acknowledge", 1, 2)


class ShareAcknowledge:
    """One request under way."""

    __slots__ = ("_acting", "_answer", "_context", "_correlation_id", "_request", "_version")

    def __init__(
        self,
        context: Context,
        acting: Acting,
        request: ShareAcknowledgeRequest,
        version: int,
        correlation_id: int,
        answer: Answer,
    ) -> None:
        self._context = context
        self._acting = acting
        self._request = request
        self._version = version
        self._correlation_id = correlation_id
        self._answer = answer

    def hurry(self) -> None:
        """It waits for nothing but its turn and the disks."""

    async def run(self) -> None:
        membership = share_requests.membership_of(self._acting, self._request.group, self._request.member)
        if isinstance(membership, int):
            self._send((), membership)
            return
        async with self._context.shares.turn(membership, self.hurry):
            try:
                await self._serve(membership)
            except SessionRefusal as refusal:
                self._send((), refusal.code)

    async def _serve(self, membership: Membership) -> None:
        request, shares = self._request, self._context.shares
        session = shares.sessions.accept(membership, request.epoch, self._acting.subject)
        acks = share_acks.gather_acks(request.acked)
        settled = await share_acks.settle(self._acting, membership, acks, renews=request.renews)
        rows = []
        for place in dict.fromkeys(place for place, _ in request.acked):
            refusal = settled.get(place)
            rows.append(Row(place, errors.NONE) if refusal is None else Row(place, refusal.code, leader=refusal.leader))
        lock_ms = share_requests.lock_ms(self._acting, membership, settled)
        self._send(rows, errors.NONE, lock_ms)
        if request.epoch == CLOSING:
            await shares.end(session)

    def _send(self, rows: Iterable[Row], code: int, lock_ms: int = 0) -> None:
        listed = list(rows)
        endpoints = leader_hints.endpoints(self._context, (row.leader for row in listed))
        body = share_codec.encode_acknowledge(listed, self._version, code, lock_ms, endpoints)
        head = encode_response_head(self._correlation_id, len(body), flexible=True)
        self._answer.send((head + body,))
