"""Clients that commit offsets of groups and read them back, at whoever coordinates; and a group with members.

What was acknowledged is never lost and never goes back; what is read was sent; in one generation a partition has one
owner, and who was left behind cannot commit.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.engine.groups.offsets import CommitRequest, NewOffset, Spot
from penstock.errors import PenstockError
from tests.simulation.client import UNANSWERED, Client
from tests.simulation.cluster import SimulatedBroker
from tests.simulation.committed_offsets import Register, Terms, check_registers
from tests.simulation.coordinators import OFFSETS, ask_leader, make_internal_topics, read_at_last, read_offset
from tests.simulation.members import TEAM, Member, TeamHistory

if TYPE_CHECKING:
    from tests.simulation.world import World

_TEAM_PARTITIONS = 3
_LAST_READ_S = 20.0
Key = tuple[str, Spot]


class Committer:
    """Commits rising offsets of groups without members, and reads them back. Others commit the same ones."""

    def __init__(self, client: Client, terms: Terms, registers: dict[Key, Register], values: "count[int]") -> None:
        self._client = client
        self._terms = terms
        self._registers = registers
        self._values = values

    async def run(self) -> None:
        client = self._client
        while not client.world.is_over:
            await asyncio.sleep(client.random.expovariate(2.0))
            key = client.random.choice(sorted(self._registers))
            try:
                if client.random.random() < 0.5:
                    await self._commit(key)
                else:
                    await read_offset(client, self._terms, *key, self._registers[key])
            except UNANSWERED:
                continue
            except PenstockError as error:
                if not error.retriable:
                    client.world.violate(f"{key}: {error}")

    async def _commit(self, key: Key) -> None:
        client = self._client
        group, spot = key
        write = self._registers[key].write(next(self._values), client.world.loop.time())
        request = CommitRequest(group, "", -1, None, {spot: NewOffset(write.value)})

        async def commit(broker: SimulatedBroker) -> None:
            error = (await broker.engine.groups.commit(request))[spot]
            if error is not None:
                raise error

        await ask_leader(client, OFFSETS, commit)
        write.acked_at = client.world.loop.time()
        client.world.note(f"committed {group} {spot[0]}-{spot[1]} {write.value}")


class Reader:
    """Reads what members commit."""

    def __init__(self, client: Client, terms: Terms, registers: dict[Key, Register]) -> None:
        self._client = client
        self._terms = terms
        self._registers = registers

    async def run(self) -> None:
        client = self._client
        while not client.world.is_over:
            await asyncio.sleep(client.random.expovariate(1.0))
            key = client.random.choice(sorted(self._registers))
            try:
                await read_offset(client, self._terms, *key, self._registers[key])
            except (*UNANSWERED, PenstockError):
                continue


class GroupsWorkload:
    """Two groups without members; sometimes one with two or three of them."""

    def __init__(self, world: "World", random: Random) -> None:
        self._world = world
        self._random = random
        self._terms = Terms(world)
        self._values = count(1)
        self._simple = self._make_registers([(group, ("t", index)) for group in ("one", "two") for index in range(2)])
        self._members = random.choice((0, 2, 2, 3))
        spots = [(TEAM, (TEAM, index)) for index in range(_TEAM_PARTITIONS if self._members else 0)]
        self._owned = self._make_registers(spots)
        self._team = TeamHistory()
        self._unread: list[str] = []

    @staticmethod
    def _make_registers(wanted: Sequence[Key]) -> dict[Key, Register]:
        return {key: Register(f"group {key[0]} {key[1][0]}-{key[1][1]}") for key in wanted}

    async def set_up(self) -> None:
        await make_internal_topics(self._world)

    def _client(self) -> Client:
        return Client(self._world, Random(self._random.getrandbits(64)))

    def clients(self) -> Sequence[Coroutine[Any, Any, None]]:
        running = [Committer(self._client(), self._terms, self._simple, self._values).run() for _ in range(2)]
        if self._members:
            running.append(Reader(self._client(), self._terms, self._owned).run())
            registers = list(self._owned.values())
            running += [
                Member(self._client(), self._team, registers, lambda: next(self._values)).run()
                for _ in range(self._members)
            ]
        return running

    async def finish(self) -> None:
        client = self._client()
        for (group, spot), register in (self._simple | self._owned).items():
            why = await read_at_last(client, self._terms, group, spot, register, _LAST_READ_S)
            if why:
                self._unread.append(why)

    def check(self) -> list[str]:
        registers = [*self._simple.values(), *self._owned.values()]
        return [*self._unread, *check_registers(registers), *self._team.check()]

    def counters(self) -> dict[str, int]:
        registers = [*self._simple.values(), *self._owned.values()]
        return {
            "offsets committed": sum(w.acked_at < float("inf") for each in registers for w in each.writes.values()),
            "offsets read": sum(len(register.reads) for register in registers),
            "generations": len({each.generation for each in self._team.assigned}),
        }
