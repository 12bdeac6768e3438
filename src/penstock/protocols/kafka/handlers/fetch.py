"""Fetch 4-18: file ranges up to the high watermark, sent without being read; parked until there is enough or time
is up. A look is at what moved since the last one; rows found earlier are kept, as each is read again when it moves.

Hot path. KIP-74: the first batch of the answer is sent whole even when it is larger than the limits. KIP-227:
sessions. KIP-320: leader epochs; KIP-595: a client whose last epoch parts from ours gets the point where.
KIP-98: read_committed stops at the last stable offset, and is told the aborted transactions among what it gets.
A follower's fetch is the same, but that it gets everything there is, committed or not, waits for anything to be
appended, and by its offsets tells what it has: synced, where that was promised. Consumers read from leaders only.
KIP-207, for fetches too: a new leader that may not know of all that is committed gives what it knows of, and tells no
high watermark and no last stable offset (-1), by which clients would take less for the end than they were told before.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from penstock.engine.access import Operation
from penstock.engine.acting.acting import Acting
from penstock.engine.partition import Partition
from penstock.engine.reading import COLD, READY_BYTES, AbortedTransaction, Slice, look, warm
from penstock.errors import Code, PenstockError
from penstock.net.connection import Answer
from penstock.protocols.kafka import fetch_codec, leader_hints
from penstock.protocols.kafka.fetch_codec import FetchRequest, Row
from penstock.protocols.kafka.fetch_sessions import MAX_ERRORS, FetchSession, Key, Wanted, next_epoch
from penstock.protocols.kafka.handlers import Context
from penstock.protocols.kafka_wire import broker_words, errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.codec import encode_response_head

API = Api(1, "fetch", 4, 18)
_LONGEST_WAIT_MS = 5 * 60 * 1000
_LARGEST_ANSWER = 64 << 20
_NAME_BYTES = 250  # one more than a name may have, so what is cut to it is unknown all the same


class _Looked(NamedTuple):
    """What a look at a partition has found."""

    wanted: Wanted
    partition: Partition | None
    row: Row


class Fetch:
    """One fetch request under way. `cancel` when the client is gone."""

    __slots__ = (
        "_acting",
        "_answer",
        "_context",
        "_correlation_id",
        "_deadline",
        "_failed",
        "_found",
        "_is_urgent",
        "_looked",
        "_news",
        "_noted",
        "_over",
        "_policy",
        "_request",
        "_scheduled",
        "_session",
        "_task",
        "_version",
        "_warmed",
    )

    def __init__(
        self,
        context: Context,
        acting: Acting,
        request: FetchRequest,
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
        self._session = FetchSession(0, version >= fetch_codec.IDS_FROM)
        self._news: dict[Key, Wanted] = {}
        """What may be otherwise than when it was last looked at."""
        self._looked: dict[Key, _Looked] = {}
        """What is to be answered, as of now."""
        self._policy = acting.rights.policy
        """By which that was decided."""
        self._found = 0
        self._is_urgent = False
        self._deadline: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self._noted: set[tuple[bytes, int]] = set()
        """Partitions whose leader knows what a follower has by this request."""
        self._warmed: dict[tuple[bytes, int], int] = {}
        """Partitions whose bytes were fetched from the disk for this request, and how many."""
        self._failed: dict[tuple[bytes, int], PenstockError | OSError] = {}

    def start(self) -> None:
        code = self._open_session()
        if code != errors.NONE:
            self._send([], code)
            return
        request = self._request
        is_follower = request.replica_id >= 0
        self._news = self._session.begin_fetch(is_follower, request.isolation_level, self._moved)
        self._look(last_look=request.max_wait_ms <= 0)

    def cancel(self) -> None:
        self._over = True
        self._unpark()
        if self._task is not None:
            self._task.cancel()

    @property
    def over(self) -> bool:
        return self._over

    # --- sessions

    def _open_session(self) -> int:
        request, sessions = self._request, self._context.fetch_sessions
        by_id = self._version >= fetch_codec.IDS_FROM
        if request.session_epoch in (-1, 0):
            sessions.end(request.session_id, self._acting.subject)
            if request.session_epoch == 0 and request.wanted:
                self._session = sessions.begin(request.wanted, by_id, self._acting.subject)
            else:
                self._session.update(request.wanted, [])
            return errors.NONE
        session = sessions.get(request.session_id, self._acting.subject)
        if session is None:
            return errors.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != request.session_epoch:
            return errors.INVALID_FETCH_SESSION_EPOCH
        if session.uses_ids != by_id:
            return errors.FETCH_SESSION_TOPIC_ID_ERROR
        session.epoch = next_epoch(session.epoch)
        sessions.update(session, request.wanted, request.forgotten)
        self._session = session
        return errors.NONE

    @property
    def _is_full(self) -> bool:
        """Whether every partition is answered, changed or not."""
        return self._request.session_epoch <= 0

    # --- looking

    def _look(self, last_look: bool) -> None:
        """Collect what is there; answer if it is enough or time is up, else fetch from the disk or park.

        Every partition gets a row, the ones that need the disk first an empty one: a client takes a full answer that
        lacks a partition for damage, and asks again for ever.
        """
        request, session = self._request, self._session
        room = min(max(request.max_bytes, 0), _LARGEST_ANSWER)
        cold: tuple[Partition, Wanted] | None = None
        news, self._news = self._news, {}
        if self._acting.rights.policy is not self._policy:
            self._policy = self._acting.rights.policy
            news = {key: looked.wanted for key, looked in self._looked.items()} | news
        for key, wanted in news.items():
            before = self._looked.pop(key, None)
            if before is not None and before.row.data is not None:
                self._found -= before.row.data.size
            partition: Partition | None = None
            try:
                partition = self._partition(wanted)
                row = self._read(partition, wanted, room - self._found, at_least_one=self._found == 0)
                if row is None:
                    cold = cold or (partition, wanted)
                    self._news[key] = wanted
                    row = self._row(partition, wanted)
            except (PenstockError, OSError) as error:
                row, partition = self._refusal(wanted, error), None
                self._is_urgent = True
            if row.data is not None:
                self._found += row.data.size
            elif row.diverging is not None:
                self._is_urgent = True
            self._keep(key, _Looked(wanted, partition, row))
        enough = self._found >= max(request.min_bytes, 1) or ((last_look or self._is_urgent) and cold is None)
        is_answered = enough or (cold is None and (request.min_bytes <= 0 or (self._is_full and not session.wanted)))
        if not is_answered:
            self._watch(news)
        if cold is not None:
            self._warm(*cold, then_look=not enough)
        if is_answered:
            self._answer_now()
        elif cold is None:
            self._park()

    def _keep(self, key: Key, looked: _Looked) -> None:
        """Keep what was found for the answer, unless the client has been told already.

        In a full answer nobody has been told anything, so that has all of them.
        """
        wanted, partition, row = looked
        if partition is not None and row.data is None and row.diverging is None and wanted.told == _ends_of(row):
            as_follower = self._request.replica_id >= 0
            if as_follower:
                end = partition.end_offset
            else:
                end = partition.stable_offset if self._request.isolation_level == 1 else partition.high_watermark
            if wanted.fetch_offset >= end:
                self._session.rest(wanted, partition, as_follower=as_follower)
                return
        self._looked[key] = looked

    def _find(self, wanted: Wanted) -> Partition:
        topics = self._acting.topics
        if self._version >= fetch_codec.IDS_FROM:
            topic_id = UUID(bytes=wanted.topic)
            if self._request.replica_id >= 0:
                return topics.replica_by_id(topic_id, wanted.index)
            return topics.partition_by_id(topic_id, wanted.index, Operation.READ)
        return topics.partition(wanted.topic[:_NAME_BYTES].decode("utf-8", "replace"), wanted.index, Operation.READ)

    def _partition(self, wanted: Wanted) -> Partition:
        partition = self._find(wanted)
        if self._request.replica_id >= 0:
            partition.check_replica_epoch(wanted.leader_epoch)
        else:
            partition.check_epoch(wanted.leader_epoch)
        return partition

    def _read(self, partition: Partition, wanted: Wanted, room: int, *, at_least_one: bool) -> Row | None:
        """A partition's row; None if the disk is needed first."""
        diverging = None
        if wanted.last_fetched_epoch >= 0:
            epoch, end = partition.end_of_epoch(wanted.last_fetched_epoch)
            if epoch < 0:
                raise PenstockError(
                    Code.OFFSET_OUT_OF_RANGE, f"{partition.topic}-{partition.index} knows no epoch that old any more"
                )
            if epoch < wanted.last_fetched_epoch or end < wanted.fetch_offset:
                diverging = (epoch, end)
        if diverging is None:
            key = (wanted.topic, wanted.index)
            if key in self._failed:
                raise self._failed[key]
            warmed = self._warmed.get(key)
            as_replica = self._request.replica_id >= 0
            if as_replica:
                partition.check_beginning(self._request.replica_id, wanted.fetch_offset, wanted.last_fetched_epoch)
                self._note_replica(partition, wanted, key)
            found = look(
                partition,
                wanted.fetch_offset,
                min(wanted.max_bytes, room, warmed or _LARGEST_ANSWER),
                committed=self._request.isolation_level == 1 and not as_replica,
                at_least_one=at_least_one,
                warmed=warmed is not None,
                as_replica=as_replica,
            )
            return None if found is COLD else self._row(partition, wanted, found.data, None, found.aborted)
        return self._row(partition, wanted, None, diverging)

    def _row(
        self,
        partition: Partition,
        wanted: Wanted,
        data: Slice | None = None,
        diverging: tuple[int, int] | None = None,
        aborted: Sequence[AbortedTransaction] = (),
    ) -> Row:
        if self._request.replica_id < 0:
            high_watermark, stable_offset = partition.shown_ends
        else:
            high_watermark, stable_offset = partition.high_watermark, partition.stable_offset
        log_start = partition.log_start
        return Row(
            wanted.topic, wanted.index, errors.NONE, high_watermark, stable_offset, log_start, data, diverging, aborted
        )

    def _refusal(self, wanted: Wanted, error: PenstockError | OSError) -> Row:
        code = errors.kafka_code(error) if isinstance(error, PenstockError) else errors.KAFKA_STORAGE_ERROR
        log_start, leader, word = -1, None, ""
        with suppress(PenstockError):
            partition = self._find(wanted)
            if isinstance(error, PenstockError):
                leader = leader_hints.hint(partition, error)
            if self._request.replica_id >= 0 and code == errors.KAFKA_CODES[Code.OFFSET_OUT_OF_RANGE]:
                log_start = partition.first_offset  # where a follower that is too far behind begins anew
        if self._request.replica_id >= 0 and isinstance(error, PenstockError):
            word = broker_words.word_of(error)
        return Row(wanted.topic, wanted.index, code, -1, -1, log_start, None, leader=leader, word=word)

    def _note_replica(self, partition: Partition, wanted: Wanted, key: tuple[bytes, int]) -> None:
        """What a follower asks for in this epoch, its history being ours, tells what it has. Once for each request."""
        if key not in self._noted:
            self._noted.add(key)
            request = self._request
            partition.replica_fetched(request.replica_id, request.replica_epoch, wanted.fetch_offset)

    def _warm(self, partition: Partition, wanted: Wanted, *, then_look: bool) -> None:
        """Fetch a partition's bytes from the disk, for this answer or, if there is enough already, for the next."""
        self._task = asyncio.get_running_loop().create_task(self._fetch_from_disk(partition, wanted, then_look))

    async def _fetch_from_disk(self, partition: Partition, wanted: Wanted, then_look: bool) -> None:
        size = min(max(wanted.max_bytes, 1), READY_BYTES, max(self._request.max_bytes, 1))
        key = (wanted.topic, wanted.index)
        try:
            await warm(partition, wanted.fetch_offset, size)
            self._warmed[key] = size
        except (PenstockError, OSError) as error:
            self._failed[key] = error
        self._task = None
        if then_look and not self._over:
            self._look(last_look=self._is_late())

    # --- waiting

    def _is_late(self) -> bool:
        if self._deadline is None:
            return self._request.max_wait_ms <= 0
        return self._deadline.when() <= asyncio.get_running_loop().time()

    def _watch(self, news: Iterable[Key]) -> None:
        """Be told when one of those that were looked at moves; all others are watched already."""
        for key in news:
            looked = self._looked.get(key)
            if looked is not None and looked.partition is not None and looked.wanted.session is self._session:
                looked.wanted.watch(looked.partition, as_follower=self._request.replica_id >= 0)

    def _park(self) -> None:
        if self._deadline is None:
            wait_ms = min(self._request.max_wait_ms, _LONGEST_WAIT_MS)
            self._deadline = asyncio.get_running_loop().call_later(wait_ms / 1000, self._time_is_up)

    def _moved(self, key: Key, wanted: Wanted) -> None:
        """Something is new; look once this turn of the loop is over, when its neighbours have it too."""
        self._news[key] = wanted
        if not self._scheduled and self._task is None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        self._scheduled = False
        if not self._over and self._task is None:
            self._look(last_look=False)

    def _time_is_up(self) -> None:
        if not self._over and self._task is None:
            self._look(last_look=True)

    def _unpark(self) -> None:
        self._session.end_fetch(self._moved)
        if self._deadline is not None:
            self._deadline.cancel()

    # --- answering

    def _answer_now(self) -> None:
        listed = []
        for wanted, _, row in self._looked.values():
            told = _ends_of(row)
            if self._is_full or row.data is not None or row.code or row.diverging or wanted.told != told:
                listed.append(row)
            wanted.told = told if row.code == errors.NONE else None
            if row.data is not None:
                self._session.served(wanted)
        if len(listed) > MAX_ERRORS and sum(row.code != errors.NONE for row in listed) > MAX_ERRORS:
            self._context.fetch_sessions.end(self._session.session_id, self._acting.subject)
            self._session.session_id = 0  # by which the client knows
        listed.sort(key=_topic_of)
        self._send(listed, errors.NONE)

    def _send(self, rows: list[Row], code: int) -> None:
        self._over = True
        self._unpark()
        session_id = self._session.session_id
        tags = b"\0"
        if self._version >= fetch_codec.ENDPOINTS_FROM and any(row.leader for row in rows):
            tags = leader_hints.encode_endpoints(self._context, (row.leader for row in rows))
        parts, size = fetch_codec.encode(rows, self._version, code, session_id, tags)
        flexible = self._version >= fetch_codec.FLEXIBLE_FROM
        head = encode_response_head(self._correlation_id, size, flexible=flexible)
        first = parts[0]
        assert isinstance(first, bytes)
        parts[0] = head + first
        self._answer.send(parts)


def _ends_of(row: Row) -> tuple[int, int, int]:
    return row.high_watermark, row.log_start, row.stable_offset


def _topic_of(row: Row) -> bytes:
    return row.topic
