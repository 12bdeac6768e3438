"""Transactions over several partitions and a group's offset, while coordinators and leaders die; and who reads them."""

import asyncio
from collections.abc import Coroutine, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.engine.transactions.transaction import BUMPED_AT_END
from penstock.errors import Code, PenstockError
from penstock.records.control import Marker, decode_marker
from penstock.storage.log.transactions import AbortedTransaction
from tests.simulated_broker import Stored, read_next
from tests.simulation.client import UNANSWERED, Client, Leader
from tests.simulation.cluster import SimulatedBroker
from tests.simulation.committed_offsets import Register, Terms, check_registers
from tests.simulation.coordinators import ask_leader, make_internal_topics, read_at_last, read_offset
from tests.simulation.spoiled_calls import spoil_calls
from tests.simulation.transactional_checks import (
    Final,
    History,
    Outcome,
    Place,
    check_transactions,
    committed_counts,
)
from tests.simulation.transactional_producer import LONGEST_TIMEOUT_MS, SPOT, TransactionalProducer

if TYPE_CHECKING:
    from tests.simulation.world import World

TOPIC = "tx"
_PARTITIONS = 3
_FETCH_BYTES = 8 << 10
_REPEATED_MARKERS = 0.3
"""The share of runs in which markers arrive more than once; WriteTxnMarkers has to pass on the transaction version."""
_DECIDED_S = LONGEST_TIMEOUT_MS / 1000 + 10
"""No transaction may be open for longer."""


class Fetched(NamedTuple):
    records: list[tuple[int, bytes]]
    next_offset: int
    who: str


async def fetch(broker: SimulatedBroker, place: Place, offset: int, epoch: int, *, committed: bool) -> Fetched:
    """As the fetch request and a consumer behind it do it. An epoch of -1 is not looked at."""
    partition = broker.engine.topics.partition(*place)
    partition.check_epoch(epoch)
    who = f"broker {broker.node_id} in epoch {partition.leader_epoch}"
    batches, aborted = await read_next(partition, offset, _FETCH_BYTES, committed=committed)
    records = visible(batches, aborted) if committed else _records(batches)
    end = batches[-1].header.last_offset + 1 if batches else offset
    return Fetched([record for record in records if record[0] >= offset], end, who)


def visible(batches: Sequence[Stored], aborted: Sequence[AbortedTransaction]) -> list[tuple[int, bytes]]:
    """What a consumer of committed records shows, by producer and first offset of what was aborted."""
    left = sorted((each.first_offset, each.producer_id) for each in aborted)
    hidden: set[int] = set()
    records = []
    for batch in batches:
        header = batch.header
        while left and left[0][0] <= header.last_offset:
            hidden.add(left.pop(0)[1])
        if header.is_control:
            if decode_marker(batch.data) is Marker.ABORT:
                hidden.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in hidden):
            records += batch.records
    return records


def _records(batches: Sequence[Stored]) -> list[tuple[int, bytes]]:
    return [record for batch in batches if not batch.header.is_control for record in batch.records]


class TransactionReader:
    """Reads on from where it is, what is committed or all there is; also offsets of groups."""

    def __init__(
        self, client: Client, history: History, place: Place, terms: Terms, registers: dict[str, Register]
    ) -> None:
        self._client = client
        self._history = history
        self._place = place
        self._terms = terms
        self._registers = registers
        self._offset = 0
        self._epoch = 0

    async def run(self) -> None:
        client = self._client
        while not client.world.is_over:
            await asyncio.sleep(client.random.expovariate(3.0))
            try:
                kind = client.random.random()
                if kind < 0.2:
                    group = client.random.choice(sorted(self._registers))
                    await read_offset(client, self._terms, group, SPOT, self._registers[group])
                elif kind < 0.4:
                    await self._read_all()
                else:
                    await self._read_committed()
            except UNANSWERED:
                client.forget_leader(*self._place)
            except PenstockError as error:
                client.forget_leader(*self._place)
                if not error.retriable and error.code is not Code.CORRUPT_LOG:
                    client.world.violate(f"{self._place}: a read at {self._offset}: {error}")

    async def _read_committed(self) -> None:
        client, place = self._client, self._place
        if client.random.random() < 0.1:
            self._offset = client.random.randint(0, self._offset)  # a consumer that begins again
        start = self._offset
        leader = await self._leader()
        if leader is None:
            return
        found = await client.ask(
            leader.node_id, lambda broker: fetch(broker, place, start, leader.epoch, committed=True)
        )
        self._history.saw(place, start, found.next_offset, found.records, client.world.loop.time(), found.who)
        self._offset = found.next_offset

    async def _read_all(self) -> None:
        place, start = self._place, self._offset
        leader = await self._leader()
        if leader is not None:
            found = await self._client.ask(
                leader.node_id, lambda broker: fetch(broker, place, start, leader.epoch, committed=False)
            )
            self._history.saw_raw(place, found.records, found.who)

    async def _leader(self) -> Leader | None:
        """Also one that is no longer."""
        client = self._client
        leader = await client.leader_of(*self._place)
        if leader is None:
            return None
        self._epoch = max(self._epoch, leader.epoch)
        node_id = leader.node_id if client.random.random() > 0.1 else client.random.choice(client.world.cluster.ids)
        return Leader(node_id, self._epoch)


class TransactionsWorkload:
    """Args:
    mischief: how often producers give up early, repeat what was done, and go on though replaced; 1 is usual.
    commits: the share of transactions that their producers commit.
    versions: of transactions; without any, the seed says.
    """

    def __init__(
        self,
        world: "World",
        random: Random,
        mischief: float = 1.0,
        commits: float = 0.7,
        versions: Sequence[int] = (),
    ) -> None:
        self._world = world
        self._random = random
        self._terms = Terms(world)
        self._history = History()
        self._final = Final()
        self._places: list[Place] = [(TOPIC, index) for index in range(_PARTITIONS)]
        self._producers: list[TransactionalProducer] = []
        self._registers: dict[str, Register] = {}
        self._stuck: list[str] = []
        self._repeats_markers = random.random() < _REPEATED_MARKERS
        if versions:
            self._repeats_markers = min(versions) >= BUMPED_AT_END
        else:
            versions = (BUMPED_AT_END,) if self._repeats_markers else (1, BUMPED_AT_END)
        for at in range(random.choice((2, 2, 3))):
            register = Register(f"offset of group-x{at}")
            producer = TransactionalProducer(
                self._client(), self._history, f"x{at}", self._places, register, versions, mischief, commits
            )
            self._producers.append(producer)
            self._registers[producer.group] = register

    def _client(self) -> Client:
        return Client(self._world, Random(self._random.getrandbits(64)))

    async def set_up(self) -> None:
        await make_internal_topics(self._world)

        async def create(broker: SimulatedBroker) -> None:
            settings = {"min.insync.replicas": "2", "message.timestamp.after.max.ms": str(10**12)}  # clocks jump
            if self._random.random() < 0.3:
                settings["segment.bytes"] = "2048"
            await broker.engine.create_topic(TOPIC, _PARTITIONS, settings, replication=3)

        world = self._world
        await world.cluster.call(self._random.choice(world.cluster.ids), create, 20.0)

        def is_there() -> bool:
            return all(
                world.partition(node_id, *place) is not None for node_id in world.cluster.ids for place in self._places
            )

        if not (await world.until(is_there, 10.0) and await world.until(lambda: not world.lacking(), 10.0)):
            world.violate(f"topic {TOPIC} never came up: {world.lacking()}")

    def clients(self) -> Sequence[Coroutine[Any, Any, None]]:
        readers = [
            TransactionReader(self._client(), self._history, place, self._terms, self._registers)
            for place in self._places
        ]
        spoiling = spoil_calls(self._world, Random(self._random.getrandbits(64)), repeats=self._repeats_markers)
        everybody: tuple[Any, ...] = (*self._producers, *readers)
        return [spoiling, *(each.run() for each in everybody)]

    # --- at the end

    async def finish(self) -> None:
        """Every transaction is decided soon, the abandoned ones too; then all is read for the last time."""
        if not await self._world.until(lambda: not self._undecided(), _DECIDED_S):
            self._stuck.append(f"LSO stuck: {self._undecided()} {_DECIDED_S:.0f} s after the last fault")
            return
        client = self._client()
        for producer in self._producers:
            register = self._registers[producer.group]
            why = await read_at_last(client, self._terms, producer.group, SPOT, register, _DECIDED_S)
            if why:
                self._stuck.append(why)
            else:
                self._final.offsets[producer.transactional_id] = register.reads[-1].value
        for place in self._places:
            self._final.committed[place] = await self._read_to_end(client, place, committed=True)
            self._final.raw[place] = await self._read_to_end(client, place, committed=False)
        self._world.note(f"final {[len(records) for records in self._final.committed.values()]} {self._final.offsets}")

    def _undecided(self) -> list[str]:
        found = []
        for place in self._places:
            led = [
                partition
                for node_id in self._world.cluster.ids
                if (partition := self._world.partition(node_id, *place)) is not None and partition.led is not None
            ]
            if not led or led[0].stable_offset < led[0].high_watermark:
                found.append(
                    f"{place[0]}-{place[1]} is decided up to {[each.stable_offset for each in led]} of "
                    f"{[each.high_watermark for each in led]}"
                )
        return found

    async def _read_to_end(self, client: Client, place: Place, *, committed: bool) -> list[tuple[int, bytes]]:
        records: list[tuple[int, bytes]] = []
        offset = 0
        deadline = self._world.loop.time() + _DECIDED_S
        while True:
            start = offset
            try:
                found = await ask_leader(
                    client,
                    place,
                    lambda broker, at=start: fetch(broker, place, at, -1, committed=committed),  # type: ignore[misc]
                )
            except PenstockError as error:
                is_passing = error.retriable or error.code is Code.CORRUPT_LOG
                if not is_passing or self._world.loop.time() > deadline:
                    raise
                await asyncio.sleep(0.5)  # another broker leads now, or soon because of rot
                continue
            if found.next_offset == offset:
                return records
            records += found.records
            offset = found.next_offset

    def check(self) -> list[str]:
        found = check_transactions(self._history, self._final)
        return [*self._stuck, *found, *check_registers(list(self._registers.values()))]

    def counters(self) -> dict[str, int]:
        outcomes = committed_counts(self._history)
        return {
            "transactions": len(self._history.attempts),
            "transactions committed": outcomes.get(Outcome.COMMITTED, 0),
            "transactions unanswered": outcomes.get(Outcome.UNKNOWN, 0),
            "transactions refused": outcomes.get(Outcome.REFUSED, 0),
            "committed reads": sum(len(ranges) for ranges in self._history.ranges.values()),
            "producers fenced": sum(producer.fenced for producer in self._producers),
        }
