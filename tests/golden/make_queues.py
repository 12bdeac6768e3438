"""`python -m tests.golden.make_queues DIRECTORY`: a small data directory with queues, and what is in them.

Their ledgers have each kind of entry; one has its state saved. A burial is under way in each, and others wait for it.
A transaction has not ended in which a message of each is acknowledged; in `queues-v1` there is none.
Run once for each format of ledgers and committed; never made again for an old format.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from penstock.cluster.metadata.embedded import EmbeddedStore
from penstock.engine.engine import Engine
from penstock.engine.partition import Partition
from penstock.engine.queues.answers import Leased, Want
from penstock.engine.queues.headers import OFFSET, PARTITION, REASON, TOPIC
from penstock.engine.queues.receipts import make_receipt
from penstock.engine.queues.transactional_acks import AckRequest
from penstock.engine.queues.verdicts import Change, Holder, Receipt, Verdict, VerdictKind
from penstock.engine.reading import Cursor
from penstock.engine.settings import EngineSettings, Ports
from penstock.engine.transactions.transaction import ProducerIdentity
from penstock.errors import Code, PenstockError
from penstock.observe.stats import Stats
from penstock.ports.clock import Clock
from penstock.ports.disk import Disk
from penstock.ports.metadata import MetadataStore
from penstock.records.build import build_batch
from penstock.storage.data_directory import DataDirectory
from penstock.storage.local_disk import LocalDisk

TRANSACTION: Final = "golden"
START_MS: Final = 1_700_000_000_000
JOBS, SAVED = "jobs", "saved"
GROUPS: Final[Mapping[str, Sequence[str]]] = {JOBS: ("jobs", "moved", "shared"), SAVED: ("saved",)}
MESSAGES: Final = 40
_RULES: Final = {"visibility": "12h", "backoff": "fixed:1h", "max-attempts": "3"}
_DAYS_MS: Final = 5 * 86_400_000
_LEDGER_ENTRIES: Final = 40
_MOST: Final = 1 << 20
ACK, REJECT = Verdict(VerdictKind.ACK), Verdict(VerdictKind.REJECT, reason="broken")


class StoppedClock:
    """Always the same time of day, so that nothing gets due however late the directory is opened."""

    def now_ms(self) -> int:
        return START_MS

    def monotonic(self) -> float:
        return time.monotonic()


def make_engine(disk: Disk, directory: DataDirectory, store: MetadataStore, clock: Clock) -> Engine:
    def fail(error: BaseException) -> None:
        raise AssertionError(error)

    settings = EngineSettings(upkeep_ms=10, ledger_entries=_LEDGER_ENTRIES, internal_partitions=1)
    return Engine(Ports(disk, clock, Random(1), store), directory, Stats(), fail, settings)


def hold_letters(engine: Engine) -> Callable[[], None]:
    """No dead letter can be written until what this returns is called."""
    publish_again = engine.forwarding.publish_again

    async def refuse(*_: Any) -> Any:
        raise PenstockError(Code.NOT_AVAILABLE, "letters are held")

    engine.forwarding.publish_again = refuse  # type: ignore[method-assign, assignment]

    def let_go() -> None:
        engine.forwarding.publish_again = publish_again  # type: ignore[method-assign]

    return let_go


async def whereabouts(engine: Engine) -> dict[str, list[list[int]]]:
    """State, deliveries and attempts of each message, by topic and group."""
    found = {}
    for topic, groups in GROUPS.items():
        partition = engine.topics.partition(topic, 0)
        for group in groups:
            places = [await engine.queues.whereabouts(partition, group, offset) for offset in range(MESSAGES)]
            found[f"{topic}:{group}"] = [[each.state, each.deliveries, each.attempts] for each in places]
    return found


async def letters(engine: Engine) -> list[list[object]]:
    """Of all queues: topic, partition, offset, reason."""
    found: list[list[object]] = []
    for topic in engine.topics:
        if not topic.name.startswith("dlq."):
            continue
        for partition in topic.partitions:
            cursor = Cursor(partition, 0)
            while messages := await cursor.records(_MOST, 0):
                for each in messages:
                    said = {name: (value or b"").decode() for name, value in each.headers}
                    found.append([said[TOPIC], int(said[PARTITION]), int(said[OFFSET]), said[REASON]])
    return sorted(found, key=str)


class Writer:
    """Does to the queues of one topic what leaves every kind of entry behind."""

    def __init__(self, engine: Engine, topic: str) -> None:
        self._engine, self._topic = engine, topic
        self._data: Partition

    async def begin(self) -> None:
        topic = await self._engine.create_topic(self._topic, 1, {"segment.bytes": "65536"})
        await self._engine.queues.attach(topic)
        await self._engine.alter_queues(topic, lambda queues: {**queues, self._topic: _RULES})
        self._data = topic.partitions[0]
        for number in range(0, MESSAGES, 4):
            batch = build_batch([(None, b"v%d" % (number + at), (), START_MS) for at in range(4)])
            self._data.append(memoryview(bytearray(batch)))
        while self._data.high_watermark < MESSAGES:  # noqa: ASYNC110 - a tool
            await asyncio.sleep(0.001)

    async def lease(self, most: int, group: str = "", *, bound: bool = False) -> Leased:
        return await self._engine.queues.lease(self._data, Want(group or self._topic, "c", most, None, bound))

    async def settle(self, leased: Leased, first: int, last: int, verdict: Verdict) -> None:
        changes = [Change(first, last, verdict)]
        await self._engine.queues.settle(self._data, self._topic, Receipt(leased.lease_id), changes)

    async def mix(self) -> int:
        """0, 1 acknowledged; 2 delayed; 3 released; 4 a letter; 5 renewed; 6, 7 leased. Returns the lease's id."""
        leased = await self.lease(8)
        await self.settle(leased, 0, 1, ACK)
        await self.settle(leased, 2, 2, Verdict(VerdictKind.NACK, _DAYS_MS))
        await self.settle(leased, 3, 3, Verdict(VerdictKind.RELEASE))
        await self.settle(leased, 4, 4, REJECT)
        await self.settle(leased, 5, 5, Verdict(VerdictKind.RENEW))
        await self.until(lambda states: states[4][0] == 4, "the first letter is written")
        return leased.lease_id

    async def bury_two(self) -> None:
        """3 and 8 are dying, and 8 is being buried."""
        leased = await self.lease(2)
        await self.settle(leased, 8, 8, REJECT)
        group = (await self._engine.queues.shards.of(self._data).machine()).get(self._topic)
        assert group is not None
        while group.burial is None:  # noqa: ASYNC110 - a tool
            await asyncio.sleep(0.001)
        await self.settle(leased, 3, 3, REJECT)

    async def others(self) -> None:
        queues = self._engine.queues
        for group in ("moved", "shared", "gone"):
            await queues.open(self._data, group)
            await self.lease(5, group, bound=group == "shared")
        await queues.purge(self._data, "moved", 4)
        await queues.settle(self._data, "shared", Holder("c"), [Change(1, 1, ACK)])
        await queues.delete(self._data, "gone")

    async def acknowledge_in(self, producer: ProducerIdentity) -> int:
        """The offset of a message that is acknowledged if a transaction commits."""
        leased = await self.lease(1)
        offset = leased.ranges[0].first
        receipts = {(self._topic, 0): make_receipt(0, offset, leased.lease_id)}
        request = AckRequest(TRANSACTION, *producer, self._topic, receipts)
        await self._engine.transactions.add_offsets(TRANSACTION, *producer, self._topic)
        assert await self._engine.transactional_acks.acknowledge(request) == {(self._topic, 0): None}
        return offset

    async def save(self) -> None:
        """So many entries that the state is written anew, and the log begins there; and then some more."""
        while self._data.attached[0].opened().log_start == 0:
            leased = await self.lease(1)
            await self.settle(leased, leased.ranges[0].first, leased.ranges[0].last, ACK)
        await self.lease(2)

    async def until(self, condition: Callable[[list[list[int]]], bool], what: str) -> None:
        deadline = time.monotonic() + 30
        while not condition((await whereabouts(self._engine))[f"{self._topic}:{self._topic}"]):
            assert time.monotonic() < deadline, what
            await asyncio.sleep(0.01)


async def write(path: Path) -> dict[str, Any]:
    disk = LocalDisk()
    directory = DataDirectory(disk, str(path))
    directory.open()
    store = await EmbeddedStore.open(f"{directory.metadata_path}/metadata.db")
    engine = make_engine(disk, directory, store, StoppedClock())
    await engine.start()
    jobs, saved = Writer(engine, JOBS), Writer(engine, SAVED)
    for writer in (jobs, saved):
        await writer.begin()
    await jobs.others()
    leases = {JOBS: await jobs.mix(), SAVED: await saved.mix()}
    hold_letters(engine)
    for writer in (jobs, saved):
        await writer.bury_two()
    producer = await engine.transactions.init(TRANSACTION, 60_000)
    pending = {JOBS: await jobs.acknowledge_in(producer), SAVED: await saved.acknowledge_in(producer)}
    await saved.save()
    told: dict[str, Any] = {"producer": producer, "pending": pending}
    told |= {"leases": leases, "letters": await letters(engine), "whereabouts": await whereabouts(engine)}
    await engine.stop()
    await store.close()
    directory.release()
    disk.close()
    return told


def main() -> None:
    target = Path(sys.argv[1])
    expected = asyncio.run(write(target / "data"))
    (target / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
