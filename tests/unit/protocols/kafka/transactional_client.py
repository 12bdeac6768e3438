"""A transactional producer and a reader over the wire of a door that can die and come back.

Clients speak one of two dialects: in the older one (1) a partition is added before it is written, and the epoch stays;
in the newer one (2, KIP-890) writing adds it, and every end raises the epoch.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.doors.kafka import HOST, Client, Door, make, open_door, produce_values
from tests.simulated_broker import split

from penstock.records.build import build_batch
from penstock.records.control import Marker, decode_marker
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.virtual_clock import Process, VirtualLoop, run_virtual

OK = 0
READ_COMMITTED, READ_UNCOMMITTED = 1, 0
LATEST = -1
COMMIT, ABORT = True, False
DIALECTS = (1, 2)
TIMEOUT_MS = 60_000
NOW_MS = 1_700_000_000_000  # where virtual time begins


class Life:
    """A broker that can die: its tasks and timers with it, its disk and its metadata not."""

    def __init__(self) -> None:
        self.door: Door
        self._process: Process

    async def start(self, disk: FaultyDisk | None = None, store: Any = None) -> Client:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._process = loop.process("broker")
        if store is None:
            self.door = await self._process.create_task(open_door(1))
            await self._process.create_task(self.door.topic("t", 2))
        else:
            with patch("tests.doors.kafka.MemoryStore", lambda: store):
                self.door = await self._process.create_task(open_door(1, disk=disk))
        return await self.door.client()

    async def restart(self, *, power_cut: bool = False) -> Client:
        before = self.door
        self._process.kill()
        before.network.cut(HOST)
        disk = before.disk.after_power_cut() if power_cut else before.disk.abandon()
        return await self.start(disk, before.engine._local._store)


def run(body: Callable[[Life, Client], Awaitable[None]]) -> None:
    async def main() -> None:
        life = Life()
        client = await life.start()
        for key_type in (0, 1):
            assert (await client.ask("find_coordinator", 2, key="any", key_type=key_type))["error_code"] == OK
        await body(life, client)
        assert not life.door.failures

    run_virtual(main, 3)


class Producer:
    """What a client library keeps of a transactional producer."""

    def __init__(
        self,
        client: Client,
        dialect: int,
        transactional_id: str = "tx",
        *,
        topic: str = "t",
        key: bytes | None = None,
    ) -> None:
        self.client = client
        self.dialect = dialect
        self.transactional_id = transactional_id
        self.topic = topic
        self.key = key
        self.identity = (-1, -1)
        self.sequences: dict[int, int] = {}

    async def init(self, timeout_ms: int = TIMEOUT_MS) -> None:
        answer = await self.client.ask(
            "init_producer_id", 4, transactional_id=self.transactional_id, transaction_timeout=timeout_ms,
            producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
        assert answer["error_code"] == OK
        self._go_on_as(answer)

    def _go_on_as(self, answer: dict[str, Any]) -> None:
        self.identity = answer["producer_id"], answer["producer_epoch"]
        self.sequences = {}

    async def add(self, *indexes: int) -> list[int]:
        names = ("transactional_id", "producer_id", "producer_epoch", "topics")
        values = (self.transactional_id, *self.identity, [{"name": self.topic, "partitions": indexes}])
        asked = {f"v3_and_below_{name}": value for name, value in zip(names, values, strict=True)}
        answer = await self.client.ask("add_partitions_to_txn", 3, **asked)
        (topic,) = answer["results_by_topic_v3_and_below"]
        return [row["partition_error_code"] for row in topic["results_by_partition"]]

    def batch(self, index: int, *values: bytes) -> bytes:
        sequence = self.sequences.get(index, 0)
        self.sequences[index] = sequence + len(values)
        return build_batch(
            [(self.key, value, (), NOW_MS) for value in values],
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            base_sequence=sequence,
            transactional=True,
        )

    @property
    def produce_version(self) -> int:
        return 11 if self.dialect == 1 else 12

    def begin_send(self, index: int, *values: bytes) -> None:
        """Send without waiting for the answer: `receive` has it."""
        asked = produce_values(self.batch(index, *values), self.topic, index)
        asked["transactional_id"] = self.transactional_id
        self.client.send(make("produce", self.produce_version, asked))

    async def receive(self) -> dict[str, Any]:
        _, answer = await self.client.receive("produce", self.produce_version)
        row: dict[str, Any] = answer["responses"][0]["partition_responses"][0]
        return row

    async def send(self, index: int, *values: bytes) -> dict[str, Any]:
        self.begin_send(index, *values)
        return await self.receive()

    async def write(self, index: int, *values: bytes) -> None:
        """The usual way: added first where the dialect wants it."""
        if self.dialect == 1:
            assert await self.add(index) == [OK]
        assert (await self.send(index, *values))["error_code"] == OK

    async def commit_offset(self, group_id: str, offset: int) -> int:
        if self.dialect == 1:
            answer = await self.client.ask(
                "add_offsets_to_txn", 3, transactional_id=self.transactional_id, producer_id=self.identity[0],
                producer_epoch=self.identity[1], group_id=group_id,
            )  # fmt: skip
            assert answer["error_code"] == OK
        row = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
        answer = await self.client.ask(
            "txn_offset_commit", 3 if self.dialect == 1 else 5, transactional_id=self.transactional_id,
            group_id=group_id, producer_id=self.identity[0], producer_epoch=self.identity[1], generation_id=-1,
            topics=[{"name": "t", "partitions": [row]}],
        )  # fmt: skip
        code: int = answer["topics"][0]["partitions"][0]["error_code"]
        return code

    async def end(self, committed: bool) -> int:
        answer = await self.client.ask(
            "end_txn", 3 if self.dialect == 1 else 5, transactional_id=self.transactional_id,
            producer_id=self.identity[0], producer_epoch=self.identity[1], committed=committed,
        )  # fmt: skip
        if answer["error_code"] == OK and self.dialect == 2:
            self._go_on_as(answer)
        code: int = answer["error_code"]
        return code


class Read(NamedTuple):
    values: list[bytes]
    """Without markers, and without what the answer says was aborted, as a client leaves it out."""
    markers: list[Marker | None]
    aborted: list[tuple[int, int]]
    stable_offset: int
    high_watermark: int


async def read(client: Client, index: int = 0, isolation: int = READ_COMMITTED) -> Read:
    answer = await client.fetch(wanted={"t": {index: 0}}, isolation_level=isolation)
    (row,) = answer["responses"][0]["partitions"]
    assert row["error_code"] == OK
    aborted = [(each["producer_id"], each["first_offset"]) for each in row["aborted_transactions"] or ()]
    values, markers, skipped = [], [], set()
    for batch in split(row["records"] or b""):
        header = batch.header
        skipped |= {producer_id for producer_id, first in aborted if first == header.base_offset}
        if header.is_control:
            markers.append(decode_marker(batch.data))
            skipped.discard(header.producer_id)
        elif header.producer_id not in skipped or not header.is_transactional:
            values += [value for _, value in batch.records]
    return Read(values, markers, aborted, row["last_stable_offset"], row["high_watermark"])


async def latest(client: Client, isolation: int, index: int = 0) -> int:
    asked = [{"partition_index": index, "current_leader_epoch": -1, "timestamp": LATEST}]
    answer = await client.ask(
        "list_offsets", 7, replica_id=-1, isolation_level=isolation, topics=[{"name": "t", "partitions": asked}]
    )
    offset: int = answer["topics"][0]["partitions"][0]["offset"]
    return offset


async def committed_offset(client: Client, group_id: str = "g") -> tuple[int, int]:
    """With what a reader that insists on certainty is told."""
    asked = [{"name": "t", "partition_indexes": (0,)}]
    answer = await client.ask("offset_fetch", 7, group_id=group_id, topics=asked, require_stable=True)
    row = answer["topics"][0]["partitions"][0]
    return row["error_code"], row["committed_offset"]


async def state_of(client: Client, transactional_id: str = "tx") -> str:
    answer = await client.ask("list_transactions", 2, transactional_id_pattern=transactional_id)
    (found,) = answer["transaction_states"]
    state: str = found["transaction_state"]
    return state


async def producers(client: Client, index: int = 0) -> dict[int, tuple[int, int, int]]:
    """By id: epoch, last sequence, first offset of the transaction under way."""
    asked = [{"name": "t", "partition_indexes": (index,)}]
    answer = await client.ask("describe_producers", 0, topics=asked)
    (row,) = answer["topics"][0]["partitions"]
    return {
        each["producer_id"]: (each["producer_epoch"], each["last_sequence"], each["current_txn_start_offset"])
        for each in row["active_producers"]
    }


async def ended(client: Client, transactional_id: str = "tx") -> str:
    """The state once the markers are written."""
    for _ in range(1000):
        state = await state_of(client, transactional_id)
        if not state.startswith("Prepare"):
            return state
        await asyncio.sleep(0.05)
    raise AssertionError(f"{transactional_id} is {state} for ever")
