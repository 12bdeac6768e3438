"""A thousand groups of one member each, that heartbeat and commit and do nothing else: what they cost a broker.

The members are connections of this process that speak just enough of the protocol; real clients would take more than
the two cores for themselves.
"""

import asyncio
import io
import struct
import time
from datetime import timedelta
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v3.response import FindCoordinatorResponse
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.heartbeat.v4.response import HeartbeatResponse
from kio.schema.join_group.v9.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.join_group.v9.response import JoinGroupResponse
from kio.schema.offset_commit.v9.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_commit.v9.response import OffsetCommitResponse
from kio.schema.sync_group.v5.request import SyncGroupRequest, SyncGroupRequestAssignment
from kio.schema.sync_group.v5.response import SyncGroupResponse
from kio.serial import entity_reader, entity_writer

from bench.native import NativeError
from bench.progress import say
from bench.rebalancing import THEME
from bench.rows import Row, at_most
from bench.scale import Scale
from bench.subject import Subject

GROUPS = 1_000
HEARTBEAT_S = 3.0
COMMIT_S = 5.0
PARTITIONS = 6
_JOINING = 20  # at once: the figure is of a steady state, not of a storm
_WARM_S, _TIMED_S = 4.0, 12.0
_QUICK_S = 5.0
_PATIENCE_S = 60.0
_RETRY_S = 0.1
_INT = struct.Struct(">i")
_TOPIC = "crowd"
_WAIT = {
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
}
Response = TypeVar("Response")

_WHAT = f"{GROUPS:,} groups of one member, a heartbeat every {HEARTBEAT_S:g} s and a commit every {COMMIT_S:g} s"
ROWS = [
    Row("crowd-cpu", THEME, f"{_WHAT}: broker CPU", "cores", (at_most(0.5, "nothing"),)),
    Row("crowd-rss", THEME, f"{_WHAT}: memory", "MB"),
    Row("crowd-join", THEME, f"{GROUPS:,} groups of one member: until all have joined, {_JOINING} at a time", "s"),
]


def measure(subject: Subject, scale: Scale) -> dict[str, float]:
    subject.create_topic(_TOPIC, PARTITIONS, "page cache")
    warm_s, timed_s = (_WARM_S, _TIMED_S) if scale.share >= 1 else (1.0, _QUICK_S)
    figures = asyncio.run(_watch(subject, scale.partitions(GROUPS), warm_s, timed_s))
    subject.delete_topic(_TOPIC)
    return figures


async def _watch(subject: Subject, groups: int, warm_s: float, timed_s: float) -> dict[str, float]:
    members = [Member(f"crowd-{number}") for number in range(groups)]
    began_s = time.monotonic()
    turns = asyncio.Semaphore(_JOINING)
    async with asyncio.timeout(_PATIENCE_S):
        await asyncio.gather(*(each.join(subject.bootstrap, turns) for each in members))
    joined_s = time.monotonic() - began_s
    tasks = [asyncio.create_task(each.live(number / groups)) for number, each in enumerate(members)]
    try:
        await _fail_early(tasks, warm_s)
        asked, before_s, began_s = _answers(members), subject.cpu_s(), time.monotonic()
        await _fail_early(tasks, timed_s)
        took_s = time.monotonic() - began_s
        used_s, answers = subject.cpu_s() - before_s, _answers(members) - asked
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in members:
            each.close()
    expected = groups * took_s * (1 / HEARTBEAT_S + 1 / COMMIT_S)
    if answers < 0.9 * expected:
        raise NativeError(f"{subject.name} answered {answers} of {expected:.0f} heartbeats and commits")
    say(f"{subject.name}: {groups} groups: {used_s / took_s:.2f} cores, {answers / took_s:.0f} requests a second")
    return {"crowd-cpu": used_s / took_s, "crowd-rss": subject.rss_mb(), "crowd-join": joined_s}


async def _fail_early(tasks: list[asyncio.Task[None]], wait_s: float) -> None:
    """Let some time pass; a member that failed ends the measurement."""
    done, _ = await asyncio.wait(tasks, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


def _answers(members: "list[Member]") -> int:
    return sum(each.answers for each in members)


class Member:
    """The one member of a group, with a connection of its own."""

    def __init__(self, group: str) -> None:
        self.answers = 0
        self._group = group
        self._id = ""
        self._generation = -1
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def join(self, bootstrap: str, turns: asyncio.Semaphore) -> None:
        async with turns:
            host, port = bootstrap.rsplit(":", 1)
            self._streams = await asyncio.open_connection(host, int(port))
            find = FindCoordinatorRequest(key=self._group, key_type=0)
            await self._settle(find, FindCoordinatorResponse)
            first = await self._settle(self._join_request(), JoinGroupResponse)
            self._id = first.member_id
            joined = await self._settle(self._join_request(), JoinGroupResponse)
            self._generation = joined.generation_id
            await self._settle(self._sync_request(), SyncGroupResponse)

    async def live(self, phase: float) -> None:
        """Heartbeats and commits at their times, for ever; `phase` spreads the members over the intervals."""
        start_s = time.monotonic()
        beat_s, commit_s, commits = start_s + phase * HEARTBEAT_S, start_s + phase * COMMIT_S, 0
        while True:
            await asyncio.sleep(max(0.0, min(beat_s, commit_s) - time.monotonic()))
            if beat_s <= commit_s:
                self._check((await self._ask(self._heartbeat_request(), HeartbeatResponse)).error_code)
                beat_s += HEARTBEAT_S
            else:
                commits += 1
                answer = await self._ask(self._commit_request(commits), OffsetCommitResponse)
                for each in answer.topics[0].partitions:
                    self._check(each.error_code)
                commit_s += COMMIT_S
            self.answers += 1

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()

    def _check(self, code: ErrorCode) -> None:
        if code is not ErrorCode.none:
            raise NativeError(f"group {self._group}: {code.name}")

    async def _settle(self, request: Any, kind: type[Response]) -> Response:
        """Ask until the coordinator is there."""
        answer: Any = await self._ask(request, kind)
        if answer.error_code in _WAIT:
            await asyncio.sleep(_RETRY_S)
            return await self._settle(request, kind)
        if answer.error_code is not ErrorCode.member_id_required:
            self._check(answer.error_code)
        return answer

    async def _ask(self, request: Any, kind: type[Response]) -> Response:
        assert self._streams is not None
        reader, writer = self._streams
        header = request.__header_schema__(
            request_api_key=request.__api_key__,
            request_api_version=request.__version__,
            correlation_id=1,
            client_id="crowd",
        )
        frame = io.BytesIO()
        entity_writer(type(header))(frame, header)
        entity_writer(type(request))(frame, request)
        writer.write(_INT.pack(len(frame.getvalue())) + frame.getvalue())
        (size,) = _INT.unpack(await reader.readexactly(_INT.size))
        answer = await reader.readexactly(size)
        _, used = entity_reader(kind.__header_schema__)(answer, 0)  # type: ignore[attr-defined]
        return entity_reader(kind)(answer, used)[0]

    def _join_request(self) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self._group,
            session_timeout=timedelta(seconds=45),
            rebalance_timeout=timedelta(minutes=5),
            member_id=self._id,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol(name="range", metadata=b"\0\1\0\0\0\1\0\5crowd\xff\xff\xff\xff"),),
            reason=None,
        )

    def _sync_request(self) -> SyncGroupRequest:
        mine = struct.pack(f">hih5si{PARTITIONS}ii", 1, 1, 5, b"crowd", PARTITIONS, *range(PARTITIONS), -1)
        return SyncGroupRequest(
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=(SyncGroupRequestAssignment(member_id=self._id, assignment=mine),),
        )

    def _heartbeat_request(self) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._id,
            group_instance_id=None,
        )

    def _commit_request(self, offset: int) -> OffsetCommitRequest:
        partitions = tuple(
            OffsetCommitRequestPartition(
                partition_index=each,
                committed_offset=offset,
                committed_leader_epoch=-1,
                committed_metadata="",
            )
            for each in range(PARTITIONS)
        )
        return OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._id,
            group_instance_id=None,
            topics=(OffsetCommitRequestTopic(name=_TOPIC, partitions=partitions),),
        )
