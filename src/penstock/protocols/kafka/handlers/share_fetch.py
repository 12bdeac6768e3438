"""ShareFetch 1-2: records for a member of a share group, which are its own until it says what became of them (KIP-932).

A request first acknowledges, then fetches all partitions of the member's share session: it opens, changes and closes
that session, too. What was fetched leaves as file ranges, and nobody else gets it until its locks end. Where nothing is
ready the request waits for new records, and for such as are given back; how a partition is taken from is in
`share_taking`.

Acquire modes (KIP-1206): batch_optimized gives the last batch whole, record_limit (version 2) not one record too many.
KIP-74: the first batch of an answer is sent even when it is larger than the limits.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from penstock.engine.acting.acting import Acting
from penstock.engine.partition import Partition
from penstock.errors import Code, PenstockError
from penstock.net.connection import Answer
from penstock.protocols.kafka import (
    leader_hints,
    share_acks,
    share_codec,
    share_layout,
    share_places,
    share_requests,
)
from penstock.protocols.kafka.handlers import Context
from penstock.protocols.kafka.share_acks import Settled
from penstock.protocols.kafka.share_codec import RECORD_LIMIT, Row, ShareFetchRequest
from penstock.protocols.kafka.share_places import Refusal
from penstock.protocols.kafka.share_requests import Gone
from penstock.protocols.kafka.share_sessions import (
    CLOSING,
    MAX_ERRORS,
    OPENING,
    Membership,
    Peer,
    Place,
    SessionRefusal,
    ShareSession,
)
from penstock.protocols.kafka.share_taking import Taken, Taking
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.codec import encode_response_head

API = Api(78, "share_fetch", 1, 2)

_LONGEST_WAIT_MS: Final = 5 * 60 * 1000
_LARGEST_ANSWER: Final = 64 << 20
_AT_ONCE: Final = 100
"""Partitions that are looked at before others have their turn of the loop: some milliseconds."""
_LOADING: Final = (Code.COORDINATOR_LOADING, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_AVAILABLE)
_LOADING_S: Final = 0.05
"""Between two looks at a partition whose ledger is being loaded."""
_NOTHING: Final = Taken([], 0)


class ShareFetch:
    """One request under way."""

    __slots__ = (
        "_acting",
        "_answer",
        "_context",
        "_correlation_id",
        "_deadline",
        "_given",
        "_is_full",
        "_is_hurried",
        "_is_urgent",
        "_moved",
        "_news",
        "_peer",
        "_refused",
        "_request",
        "_seen",
        "_watched",
    )

    def __init__(
        self,
        context: Context,
        acting: Acting,
        request: ShareFetchRequest,
        correlation_id: int,
        answer: Answer,
        peer: Peer,
    ) -> None:
        self._context = context
        self._acting = acting
        self._request = request
        self._correlation_id = correlation_id
        self._answer = answer
        self._peer = peer
        self._moved = asyncio.Event()
        self._deadline = 0.0
        self._is_hurried = False
        self._is_urgent = False
        """Whether the client has to be told of an error, and so should not wait."""
        self._is_full = False
        """Whether more was ready than fits."""
        self._news: dict[Place, None] = {}
        """What may be otherwise than when it was last looked at."""
        self._watched: dict[Place, tuple[Partition, partial[None]]] = {}
        self._seen: set[Place] = set()
        """Where nothing is wrong."""
        self._refused: dict[Place, Refusal] = {}
        self._given: dict[Place, Taken] = {}

    def hurry(self) -> None:
        """Answer with what there is: another request waits for this one, or the connection is gone."""
        self._is_hurried = True
        self._moved.set()

    async def run(self) -> None:
        request = self._request
        wait_ms = min(max(request.max_wait_ms, 0), _LONGEST_WAIT_MS)
        self._deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        membership = share_requests.membership_of(self._acting, request.group, request.member)
        if not isinstance(membership, int) and self._is_contradictory():
            membership = errors.INVALID_REQUEST
        if isinstance(membership, int):
            self._send((), membership)
            return
        async with self._context.shares.turn(membership, self.hurry):
            try:
                await self._serve(membership)
            except SessionRefusal as refusal:
                if refusal.code == errors.SHARE_SESSION_LIMIT_REACHED:
                    await self._wait()
                self._send((), refusal.code)
            except Gone:
                self._answer.skip()

    def _is_contradictory(self) -> bool:
        """Who keeps records for longer wants none, and a session that begins has none to acknowledge."""
        request = self._request
        if request.renews and any((request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records)):
            return True
        return request.epoch == OPENING and any(batches for _, batches in request.wanted)

    async def _serve(self, membership: Membership) -> None:
        request, shares, acting = self._request, self._context.shares, self._acting
        if request.epoch == OPENING:
            session = await shares.open(membership, self._peer, acting.subject)
        else:
            session = shares.sessions.accept(membership, request.epoch, acting.subject)
        acks = share_acks.gather_acks(request.wanted)
        if request.epoch == CLOSING:
            settled = await share_acks.settle(acting, membership, acks, renews=request.renews)
            self._answer_with(session, [], settled)
            await shares.end(session)
            return
        shares.ended(shares.sessions.update(session, (place for place, _ in request.wanted), request.forgotten))
        settled = await share_acks.settle(acting, membership, acks, renews=request.renews)
        places = session.rotated(request.epoch)
        if request.max_records <= 0 or request.max_bytes <= 0:
            await self._look_for_errors(session, places)
        else:
            try:
                await self._fetch(session, places)
            finally:
                self._unwatch(membership.group)
        self._answer_with(session, places, settled)
        if len(self._refused) > MAX_ERRORS:
            await shares.end(session)

    # --- looking

    async def _look_for_errors(self, session: ShareSession, places: Iterable[Place]) -> None:
        """For who wants no records: what is well is not told, as it was not fetched."""
        for number, place in enumerate(places):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            self._find(session, place)
        self._seen.clear()

    async def _fetch(self, session: ShareSession, places: list[Place]) -> None:
        """Take what is ready until it is enough, or time is up."""
        request = self._request
        taking = Taking(self._acting, session, whole_batches=request.acquire_mode != RECORD_LIMIT)
        self._news = dict.fromkeys(places)
        while not session.is_over:
            is_last = self._is_late() or request.min_bytes <= 0
            self._moved.clear()
            await self._take(session, taking, await self._look_for_ready(session, taking))
            if is_last or self._is_urgent or self._is_enough():
                return
            if not self._news:
                await self._wait()

    def _is_enough(self) -> bool:
        request, given = self._request, self._given.values()
        if self._is_full:
            return True
        return bool(given) and (self._left_records() <= 0 or sum(taken.size for taken in given) >= request.min_bytes)

    def _left_records(self) -> int:
        return self._request.max_records - sum(
            part.last - part.first + 1 for taken in self._given.values() for part in taken.parts
        )

    def _is_late(self) -> bool:
        return self._is_hurried or self._deadline <= asyncio.get_running_loop().time()

    async def _wait(self) -> None:
        """Until something moves or somebody else wants to go on, or time is up."""
        if self._is_hurried:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._deadline):
                await self._moved.wait()

    def _find(self, session: ShareSession, place: Place) -> Partition | None:
        try:
            partition = share_places.find(self._acting, place)
        except (PenstockError, OSError) as error:
            self._refuse(session, place, error)
            return None
        self._seen.add(place)
        self._refused.pop(place, None)
        return partition

    def _refuse(self, session: ShareSession, place: Place, error: PenstockError | OSError) -> None:
        if isinstance(error, PenstockError) and error.code in _LOADING:
            asyncio.get_running_loop().call_later(_LOADING_S, self._woken, place)
            return
        refusal = share_places.refusal(self._acting, place, error)
        self._refused[place] = refusal
        self._seen.discard(place)
        self._is_urgent = self._is_urgent or session.is_news(place, refusal.code)

    async def _look_for_ready(self, session: ShareSession, taking: Taking) -> dict[Place, Partition]:
        """Where something may be taken, among what may be otherwise than when it was looked at before."""
        ready: dict[Place, Partition] = {}
        news, self._news = self._news, {}
        for number, place in enumerate(news):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            partition = self._find(session, place)
            if partition is None:
                continue
            try:
                is_ready = await taking.is_ready(partition)
                self._watch(session.membership.group, place, partition)  # no change comes in between
                if is_ready:
                    ready[place] = partition
            except PenstockError as error:
                self._refuse(session, place, error)
        return ready

    async def _take(self, session: ShareSession, taking: Taking, ready: Mapping[Place, Partition]) -> None:
        """Take of each partition in its turn, as long as more is wanted; the bytes are shared evenly."""
        left_bytes = min(self._request.max_bytes, _LARGEST_ANSWER) - sum(taken.size for taken in self._given.values())
        for number, (place, partition) in enumerate(ready.items()):
            most = self._left_records()
            if most <= 0 or left_bytes <= 0:
                self._is_full = True
                return
            share = max(left_bytes // (len(ready) - number), 1)
            try:
                taken = await taking.take(place, partition, most, share, at_least_one=not self._given)
            except (PenstockError, OSError) as error:
                self._refuse(session, place, error)
                continue
            left_bytes -= taken.size
            self._is_full = self._is_full or taken.is_full
            if taken.parts:
                before = self._given.get(place, _NOTHING)
                self._given[place] = Taken(before.parts + taken.parts, before.size + taken.size)

    # --- waiting

    def _watch(self, group: str, place: Place, partition: Partition) -> None:
        """Be told, once, when there may be more in a partition, or when another broker leads it."""
        watched = self._watched.get(place)
        if watched is None or watched[0] is not partition:  # that of a topic that is gone wakes nobody any more
            watched = self._watched[place] = partition, partial(self._woken, place)
        self._acting.queues.watch(partition, group, watched[1])

    def _woken(self, place: Place) -> None:
        self._news[place] = None
        self._moved.set()

    def _unwatch(self, group: str) -> None:
        for watched, wake in self._watched.values():
            with suppress(PenstockError):  # its ledger may be gone
                self._acting.queues.unwatch(watched, group, wake)
        self._watched.clear()

    # --- answering

    def _answer_with(self, session: ShareSession, places: Iterable[Place], settled: Settled) -> None:
        """All that was acknowledged is listed, and of what was fetched what the client does not know yet."""
        rows = []
        for place in dict.fromkeys((*places, *settled)):
            taken, refused, ack = self._given.get(place), self._refused.get(place), settled.get(place)
            code = refused.code if refused is not None and taken is None else errors.NONE
            is_seen = place in self._seen or code != errors.NONE
            is_told = taken is None and code == errors.NONE and not (is_seen and session.must_answer(place))
            if is_seen:
                session.answered(place, code)
            if is_told and place not in settled:
                continue
            leader = next((each.leader for each in (refused, ack) if each is not None and each.leader), None)
            row = Row(place, code, ack.code if ack is not None else errors.NONE, leader)
            rows.append(row if taken is None else self._with_records(row, taken))
        lock_ms = share_requests.lock_ms(self._acting, session.membership, (row.place for row in rows))
        self._send(rows, errors.NONE, lock_ms)

    def _with_records(self, row: Row, taken: Taken) -> Row:
        is_limit = self._request.acquire_mode == RECORD_LIMIT
        layout = share_layout.lay_out(taken.parts, None if is_limit else self._request.batch_size)
        return row._replace(slices=layout.slices, acquired=layout.acquired)

    def _send(self, rows: Iterable[Row], code: int, lock_ms: int = 0) -> None:
        listed = list(rows)
        endpoints = leader_hints.endpoints(self._context, (row.leader for row in listed))
        parts, size = share_codec.encode_fetch(listed, code, lock_ms, endpoints)
        first = parts[0]
        assert isinstance(first, bytes)
        parts[0] = encode_response_head(self._correlation_id, size, flexible=True) + first
        self._answer.send(parts)
