"""Members of a classic group: they join, are given partitions, beat, commit, fall silent and leave."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.engine.groups.classic_requests import (
    HeartbeatRequest,
    JoinRequest,
    JoinResult,
    LeavingMember,
    MemberIdRequired,
    SyncRequest,
    SyncResult,
)
from penstock.engine.groups.offsets import CommitRequest, NewOffset
from penstock.errors import Code, PenstockError
from tests.simulation.client import ANSWER_S, UNANSWERED, Client
from tests.simulation.cluster import SimulatedBroker
from tests.simulation.committed_offsets import Register
from tests.simulation.coordinators import OFFSETS, ask_leader, pause

TEAM = "team"
SESSION_MS, REBALANCE_MS = 6000, 3000
_NEW_ID = (Code.UNKNOWN_MEMBER, Code.MEMBER_ID_REQUIRED)


class Assigned(NamedTuple):
    generation: int
    member_id: str
    partitions: tuple[int, ...]
    at: float


class MemberCommit(NamedTuple):
    generation: int
    member_id: str
    partition: int
    sent_at: float


class TeamHistory:
    """What members were told."""

    def __init__(self) -> None:
        self.assigned: list[Assigned] = []
        self.commits: list[MemberCommit] = []
        """Those that were answered with yes."""

    def check(self) -> list[str]:
        return [*check_owners(self.assigned), *check_generations(self.assigned, self.commits)]


def check_owners(assigned: Sequence[Assigned]) -> list[str]:
    """In one generation a partition has one owner."""
    found = []
    owners: dict[tuple[int, int], str] = {}
    for each in assigned:
        for partition in each.partitions:
            owner = owners.setdefault((each.generation, partition), each.member_id)
            if owner != each.member_id:
                found.append(
                    f"{TEAM}: partition {partition} belongs to {owner} and to {each.member_id} in generation "
                    f"{each.generation}"
                )
    return found


def check_generations(assigned: Sequence[Assigned], commits: Sequence[MemberCommit]) -> list[str]:
    """Nobody commits in a generation once somebody was given partitions in a later one."""
    found = []
    for commit in commits:
        later = [each for each in assigned if each.generation > commit.generation and each.at < commit.sent_at]
        if later:
            found.append(
                f"{TEAM}: {commit.member_id} committed for partition {commit.partition} in generation "
                f"{commit.generation} at {commit.sent_at:.3f}; {later[0].generation} had begun at {later[0].at:.3f}"
            )
    return found


class Member:
    def __init__(
        self,
        client: Client,
        history: TeamHistory,
        registers: Sequence[Register],
        next_value: Callable[[], int],
    ) -> None:
        self._client = client
        self._random = client.random
        self._history = history
        self._registers = registers
        self._next_value = next_value
        self._member_id = ""
        self._generation = -1
        self._owned: tuple[int, ...] = ()

    async def run(self) -> None:
        world = self._client.world
        while not world.is_over:
            try:
                if self._generation < 0:
                    await self._join()
                else:
                    await self._work()
            except UNANSWERED:
                pass
            except MemberIdRequired as required:
                self._member_id = required.member_id
            except PenstockError as error:
                self._refused(error)
            await pause(self._client)

    def _refused(self, error: PenstockError) -> None:
        if error.code in _NEW_ID:
            self._member_id = ""
        if error.code in _NEW_ID or error.code in (Code.ILLEGAL_GENERATION, Code.REBALANCE_IN_PROGRESS):
            self._generation = -1
        elif not error.retriable:
            self._client.world.violate(f"{TEAM}: member {self._member_id} is refused: {error}")

    # --- joining

    async def _join(self) -> None:
        request = JoinRequest(
            TEAM, self._member_id, None, "client", "host", "consumer", (("range", b""),), SESSION_MS, REBALANCE_MS
        )

        async def join(broker: SimulatedBroker) -> JoinResult:
            return await broker.engine.groups.join(request)

        joined = await ask_leader(self._client, OFFSETS, join, REBALANCE_MS / 1000 + ANSWER_S)
        shares: dict[str, list[int]] = {}
        if joined.leader == joined.member_id:
            members = sorted(member.member_id for member in joined.members)
            for partition in range(len(self._registers)):
                shares.setdefault(members[partition % len(members)], []).append(partition)
        asked = SyncRequest(
            TEAM,
            joined.generation,
            joined.member_id,
            None,
            "consumer",
            "range",
            tuple((member_id, json.dumps(share).encode()) for member_id, share in shares.items()),
        )

        async def sync(broker: SimulatedBroker) -> SyncResult:
            return await broker.engine.groups.sync(asked)

        told = await ask_leader(self._client, OFFSETS, sync, REBALANCE_MS / 1000 + ANSWER_S)
        self._member_id, self._generation = joined.member_id, joined.generation
        self._owned = tuple(json.loads(told.assignment or b"[]"))
        world = self._client.world
        world.note(f"{TEAM} generation {self._generation}: {self._member_id[-6:]} has {list(self._owned)}")
        self._history.assigned.append(Assigned(self._generation, self._member_id, self._owned, world.loop.time()))

    # --- being a member

    async def _work(self) -> None:
        kind = self._random.random()
        if kind < 0.05:
            await self._leave()
        elif kind < 0.1:
            await self._be_silent()
        elif kind < 0.5 and self._owned:
            await self._commit(self._random.choice(self._owned))
        else:
            await self._beat()
            await asyncio.sleep(self._random.random())

    async def _beat(self) -> None:
        asked = HeartbeatRequest(TEAM, self._generation, self._member_id, None)

        async def beat(broker: SimulatedBroker) -> None:
            await broker.engine.groups.heartbeat(asked)

        await ask_leader(self._client, OFFSETS, beat)

    async def _be_silent(self) -> None:
        """Longer than a session: the others go on without it, and what it owned is not its own any more."""
        await asyncio.sleep(SESSION_MS / 1000 + self._random.random())
        if self._owned:
            await self._commit(self._random.choice(self._owned))

    async def _leave(self) -> None:
        leaving = (LeavingMember(self._member_id, None),)

        async def leave(broker: SimulatedBroker) -> None:
            await broker.engine.groups.leave(TEAM, leaving)

        await ask_leader(self._client, OFFSETS, leave)
        self._member_id, self._generation = "", -1

    async def _commit(self, partition: int) -> None:
        world, spot = self._client.world, (TEAM, partition)
        write = self._registers[partition].write(self._next_value(), world.loop.time())
        request = CommitRequest(TEAM, self._member_id, self._generation, None, {spot: NewOffset(write.value)})

        async def commit(broker: SimulatedBroker) -> None:
            error = (await broker.engine.groups.commit(request))[spot]
            if error is not None:
                raise error

        try:
            await ask_leader(self._client, OFFSETS, commit)
        except PenstockError as error:
            write.refused = not error.retriable
            raise
        write.acked_at = world.loop.time()
        self._history.commits.append(MemberCommit(self._generation, self._member_id, partition, write.sent_at))
