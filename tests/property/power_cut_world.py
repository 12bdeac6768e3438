"""A broker, its producers, readers and an administrator, whose power is cut again and again; and what must hold after.

Everything of a broker's life runs in one simulated process that dies with its disk. What clients know outlives it
in `History`: acknowledged, sent but unanswered, seen. A produce without an answer may or may not be in the log.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from tests.property.keyed_world import SETTINGS as KEYED_SETTINGS
from tests.property.keyed_world import KeyedHistory
from tests.simulated_broker import Broker, Stored, append, batch_of, read_all, read_some

from penstock.engine.partition import Partition
from penstock.engine.topics import Topic
from penstock.errors import Code, PenstockError
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock, VirtualLoop

_NAMES = ("orders", "clicks", "logs")
_LIVE, _GONE, _UNSURE = "live", "gone", "unsure"


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(slots=True)
class Producer:
    """A client that survives the broker; an idempotent one sends what was not answered again, in order."""

    number: int
    producer_id: int  # -1: plain, never sends anything twice
    sequence: int = 0
    sent: int = 0
    unanswered: deque[tuple[int, list[bytes]]] = field(default_factory=deque)

    def next_values(self, random: Random) -> list[bytes]:
        values = []
        for _ in range(random.randint(1, 3)):
            padding = b"." * random.choice((0, 20, 200, 900))
            values.append(b"%d/%d/%s" % (self.number, self.sent, padding))
            self.sent += 1
        return values


@dataclass(slots=True)
class PartitionHistory:
    durable: bool
    """flush=commit: a power cut may take nothing that was acknowledged or seen."""
    power_lost: bool = False
    """Since the last check, on a partition that is not durable: its newest records may be gone."""
    known: dict[int, bytes] = field(default_factory=dict)
    """Values at offsets that were acknowledged or seen by a reader."""
    deleted_to: int = 0
    """Acknowledged by delete_records."""
    delete_asked: int = 0
    producers: list[Producer] = field(default_factory=list)
    keyed: KeyedHistory | None = None
    """Of a compacted topic; then nothing above is used."""

    def learn(self, offset: int, value: bytes, how: str) -> None:
        before = self.known.setdefault(offset, value)
        if before != value:
            raise Violation(f"offset {offset} held {before[:20]!r}, now {how} {value[:20]!r}")


@dataclass(slots=True)
class TopicHistory:
    name: str
    topic_id: str
    state: str
    expires: bool
    partitions: list[PartitionHistory]
    grow_asked: int = 0
    """Partitions it may have if the answer to a growth was never heard."""


@dataclass(slots=True)
class History:
    topics: dict[str, TopicHistory] = field(default_factory=dict)
    """By topic id."""
    creating: set[str] = field(default_factory=set)
    """Names whose creation was not answered."""
    producer_ids: set[int] = field(default_factory=set)
    producers: int = 0
    lives: int = 0
    acknowledged: int = 0
    lost_tails: int = 0


Script = Callable[["PowerCutWorld", Broker], Awaitable[None]]


class PowerCutWorld:
    def __init__(self, seed: int, *, producers_per_partition: int = 2) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.disk = FaultyDisk(seed, max_delay_s=self.random.choice((0.002, 0.002, 0.02)))
        self.store = MemoryStore()
        self.history = History()
        self.segment_bytes = self.random.choice((1024, 4096, 16384))
        self.interval = self.random.choice((0, 300, 4096))
        self.ends_behind_s = (10.0, 0.1, 0.001)[seed % 3]
        self.producers_per_partition = producers_per_partition
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.violations: list[BaseException] = []

    # --- lives

    def broker(self) -> Broker:
        self.history.lives += 1
        return Broker(
            self.disk,
            self.store,
            self.clock,
            seed=self.seed * 1000 + self.history.lives,
            upkeep_ms=self.random.choice((5, 50)),
            ends_behind_s=self.ends_behind_s,
            defaults={"segment.bytes": str(self.segment_bytes), "index.interval.bytes": str(self.interval)},
        )

    async def live_and_die(self) -> None:
        """One life: start, check, work, until the power is cut, the process is killed or it is stopped."""
        end = self.random.choices(("cut", "cut early", "kill", "stop"), (8, 3, 3, 2))[0]
        process = self.loop.process(f"life {self.history.lives}")
        died = asyncio.Event()

        def die() -> None:
            process.kill()
            died.set()

        self.disk.on_power_cut = die
        if end == "cut":
            self.disk.cut_power_after(self.random.randint(30, 300))
        elif end == "cut early":
            self.disk.cut_power_after(self.random.randint(1, 40))
        broker = self.broker()
        life = process.create_task(self._guarded(self._life(broker, clean=end == "stop"), died))
        if end == "kill":
            await _first(died, self.random.uniform(0.0, 0.3))
            self.disk = self.disk.abandon()
        elif end == "stop":
            await died.wait()
            if not life.done() or life.exception() is not None:
                raise self._problem() or Violation("a clean stop did not finish")
            self.disk = self.disk.after_power_cut()  # a clean stop has left nothing to lose
        else:
            await _first(died, 5.0)
            self.disk = self.disk.after_power_cut()
            self._note_power_loss()
        self._raise_problem(broker)

    async def die_at(self, operation: int, script: Script, *, power: bool) -> bool:
        """Run a script until the n-th change of the disk, which cuts the power or kills; False if it ended before."""
        process = self.loop.process(f"life {self.history.lives}")
        died = asyncio.Event()

        def die() -> None:
            process.kill()
            died.set()

        self.disk.on_power_cut = die
        self.disk.cut_power_after(operation)
        broker = self.broker()
        process.create_task(self._guarded(script(self, broker), died))
        await died.wait()
        ended = not self.disk.dead
        self.disk = self.disk.after_power_cut() if power else self.disk.abandon()
        if power:
            self._note_power_loss()
        self._raise_problem(broker)
        return not ended

    def _raise_problem(self, broker: Broker) -> None:
        problem = self._problem()
        if problem is not None:
            raise problem
        if broker.failures:
            raise Violation(f"the broker gave up: {broker.failures[0]!r}") from broker.failures[0]

    def _problem(self) -> BaseException | None:
        return self.violations[0] if self.violations else None

    async def _guarded(self, work: Awaitable[None], died: asyncio.Event) -> None:
        try:
            await work
        except Exception as error:
            self.violations.append(error)
            raise
        finally:
            died.set()

    async def _life(self, broker: Broker, *, clean: bool) -> None:
        await broker.start()
        await self.check(broker)
        tasks: list[asyncio.Task[None]] = []
        for topic in broker.engine.topics:
            tasks += self._clients(broker, topic.name)
        tasks.append(asyncio.create_task(self._administer(broker, tasks)))
        await asyncio.sleep(self.random.uniform(0.05, 0.4) if clean else 1.0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()
        if clean:
            await broker.stop()

    async def last_life(self) -> int:
        """Start, check, stop cleanly, start and check again; returns how many records there are."""
        self.disk.on_power_cut = None
        count = -1
        for _ in range(2):
            broker = self.broker()
            await broker.start()
            found = await self.check(broker)
            if count not in (-1, found):
                raise Violation(f"{count} records before a clean stop, {found} after it")
            count = found
            await broker.stop()
            if broker.failures:
                raise broker.failures[0]
        return count

    def _note_power_loss(self) -> None:
        """A power cut may take the newest records of topics that did not ask for a sync. `check` sees what is left."""
        for topic in self.history.topics.values():
            for partition in topic.partitions:
                partition.power_lost = not partition.durable

    # --- clients

    def _clients(self, broker: Broker, name: str) -> list["asyncio.Task[None]"]:
        topic = broker.engine.topics.get(name)
        assert topic is not None
        tasks = []
        for partition, history in zip(
            topic.partitions, self.history.topics[str(topic.topic_id)].partitions, strict=True
        ):
            if history.keyed is not None:
                rounds = self.random.randint(5, 20)
                work = history.keyed.work(partition, self.random, lambda: self._new_producer_id(broker), rounds)
                tasks.append(asyncio.create_task(work))
                continue
            while len(history.producers) < self.producers_per_partition:
                self.history.producers += 1
                history.producers.append(Producer(self.history.producers, -1))
            tasks += [
                asyncio.create_task(self._produce(broker, partition, history, producer))
                for producer in history.producers
            ]
            tasks.append(asyncio.create_task(self._follow(partition, history)))
        return tasks

    async def _produce(
        self, broker: Broker, partition: Partition, history: PartitionHistory, producer: Producer
    ) -> None:
        if producer.number % 2:
            if producer.producer_id < 0:
                producer.producer_id = await self._new_producer_id(broker)
        else:
            producer.unanswered.clear()  # a plain producer never knows, and never asks again
        for sequence, values in list(producer.unanswered):
            if not self.send(partition, history, producer, sequence, values):
                return
        for _ in range(self.random.randint(5, 25)):
            if len(producer.unanswered) < 5:
                values = producer.next_values(self.random)
                producer.unanswered.append((producer.sequence, values))
                producer.sequence += len(values)
                if not self.send(partition, history, producer, *producer.unanswered[-1]):
                    return
            await asyncio.sleep(self.random.choice((0, 0, 0.001, 0.02)))

    async def _new_producer_id(self, broker: Broker) -> int:
        taken = await broker.engine.producer_ids.take()
        if taken in self.history.producer_ids:
            raise Violation(f"producer id {taken} was handed out twice")
        self.history.producer_ids.add(taken)
        return taken

    def send(
        self, partition: Partition, history: PartitionHistory, producer: Producer, sequence: int, values: list[bytes]
    ) -> bool:
        fields = {}
        if producer.producer_id >= 0:
            fields = {"producer_id": producer.producer_id, "producer_epoch": 0, "base_sequence": sequence}
        try:
            done = append(partition, batch_of(values, self.clock, **fields))
        except PenstockError as error:
            if error.code in (Code.NOT_AVAILABLE, Code.UNKNOWN_TOPIC):  # closed or deleted
                return False
            if error.code is Code.OUT_OF_ORDER_SEQUENCE and not history.durable:
                producer.producer_id, producer.sequence = -1, 0  # what it had been told was lost with the power
                producer.unanswered.clear()
                return False
            raise
        if done.last_offset - done.base_offset != len(values) - 1:
            raise Violation(f"{len(values)} records got offsets {done.base_offset} to {done.last_offset}")

        def answered(error: PenstockError | None) -> None:
            if error is not None:
                return  # the topic was deleted; the answer means nothing any more
            self.history.acknowledged += 1
            if (sequence, values) in producer.unanswered:
                producer.unanswered.remove((sequence, values))
            for offset, value in enumerate(values, done.base_offset):
                self._noting(lambda at=offset, what=value: history.learn(at, what, "acknowledged"))

        partition.when_safe(done.last_offset, answered)
        return True

    def _noting(self, learn: Callable[..., None]) -> None:
        try:
            learn()
        except Violation as violation:
            self.violations.append(violation)

    async def _follow(self, partition: Partition, history: PartitionHistory) -> None:
        """A reader of everything, at its own pace."""
        try:
            offset = partition.opened().log_start
            while True:
                try:
                    batches = await read_some(partition, offset, self.random.choice((1, 500, 5000)))
                except PenstockError as error:
                    if error.code is Code.OFFSET_OUT_OF_RANGE and offset < partition.opened().log_start:
                        offset = partition.opened().log_start
                        continue
                    raise
                for batch in batches:
                    for at, value in batch.records:
                        if at >= offset:
                            history.learn(at, value, "read")
                    offset = max(offset, batch.header.last_offset + 1)
                await asyncio.sleep(self.random.choice((0.001, 0.02)))
        except PenstockError as error:
            if error.code not in (Code.NOT_AVAILABLE, Code.UNKNOWN_TOPIC):
                raise

    async def _administer(self, broker: Broker, tasks: list["asyncio.Task[None]"]) -> None:
        """Make topics, delete topics, let them grow, alter them, delete records."""
        for _ in range(self.random.randint(1, 6)):
            topics = list(broker.engine.topics)
            action = self.random.random()
            if len(topics) < 2 or action < 0.3:
                name = self.random.choice(_NAMES)
                if broker.engine.topics.get(name) is None:
                    await self.create(broker, name, self.random.randint(1, 2), self._some_settings())
                    tasks += self._clients(broker, name)
            elif action < 0.45:
                await self.delete(broker, self.random.choice(topics).name)
            elif action < 0.55:
                await self.grow(broker, self.random.choice(topics).name)
            elif action < 0.65:
                await self.make_durable(broker, self.random.choice(topics).name)
            else:
                await self.delete_records(broker, self.random.choice(topics).name)
            await asyncio.sleep(self.random.uniform(0, 0.1))

    def _some_settings(self) -> dict[str, str]:
        if self.random.random() < 0.2:
            return KEYED_SETTINGS
        flush = self.random.choice(("commit", "commit", "commit", "os", "interval"))
        settings = {"flush": flush, "flush.ms": "20"}
        if self.random.random() < 0.2:
            settings["retention.bytes"] = "3000"
        return settings

    async def create(self, broker: Broker, name: str, partitions: int, settings: dict[str, str]) -> None:
        self.history.creating.add(name)
        topic = await broker.engine.create_topic(name, partitions, settings)
        self._note_topic(name, str(topic.topic_id), len(topic.partitions), settings)
        self.history.creating.discard(name)

    def _note_topic(self, name: str, topic_id: str, partitions: int, settings: dict[str, str]) -> None:
        durable = settings["flush"] == "commit"
        keyed = settings.get("cleanup.policy") == "compact"
        histories = [PartitionHistory(durable, keyed=KeyedHistory() if keyed else None) for _ in range(partitions)]
        self.history.topics[topic_id] = TopicHistory(name, topic_id, _LIVE, "retention.bytes" in settings, histories)

    async def delete(self, broker: Broker, name: str) -> None:
        topic = broker.engine.topics.get(name)
        if topic is None:
            return
        history = self.history.topics[str(topic.topic_id)]
        history.state = _UNSURE
        await broker.engine.delete_topic(topic)
        history.state = _GONE

    async def grow(self, broker: Broker, name: str) -> None:
        topic = broker.engine.topics.get(name)
        if topic is None:
            return
        history = self.history.topics[str(topic.topic_id)]
        history.grow_asked = len(topic.partitions) + 1
        try:
            await broker.engine.create_partitions(topic, history.grow_asked)
        except PenstockError as error:
            if error.code is not Code.UNKNOWN_TOPIC:
                raise
            return  # deleted meanwhile
        history.partitions.append(_new_partition(topic))
        history.grow_asked = 0

    async def make_durable(self, broker: Broker, name: str) -> None:
        """From the answer on, a power cut may take nothing that was acknowledged, before or after it."""
        topic = broker.engine.topics.get(name)
        if topic is None:
            return
        try:
            await broker.engine.alter_topic(topic, lambda given: {**given, "flush": "commit"})
        except PenstockError as error:
            if error.code is not Code.UNKNOWN_TOPIC:
                raise
            return
        for history in self.history.topics[str(topic.topic_id)].partitions:
            history.durable = True

    async def delete_records(self, broker: Broker, name: str) -> None:
        topic = broker.engine.topics.get(name)
        if topic is None:
            return
        index = self.random.randrange(len(topic.partitions))
        partition = topic.partitions[index]
        history = self.history.topics[str(topic.topic_id)].partitions[index]
        if history.keyed is not None:
            return  # a compacted topic has none deleted
        log = partition.opened()
        offset = self.random.randint(log.log_start, partition.high_watermark)
        history.delete_asked = max(history.delete_asked, offset)
        try:
            history.deleted_to = max(history.deleted_to, await broker.engine.delete_records(partition, offset))
        except PenstockError as error:
            if error.code not in (Code.OFFSET_OUT_OF_RANGE, Code.NOT_AVAILABLE):
                raise

    # --- what must hold

    async def check(self, broker: Broker) -> int:
        """Compare the broker with the history; returns how many records it holds that nothing may take."""
        present = {str(topic.topic_id): topic for topic in broker.engine.topics}
        for topic_id, history in self.history.topics.items():
            if history.state == _LIVE and topic_id not in present:
                raise Violation(f"topic {history.name} is gone")
            if history.state == _GONE and topic_id in present:
                raise Violation(f"deleted topic {history.name} is back")
            if history.state == _UNSURE:
                history.state = _LIVE if topic_id in present else _GONE
        count = 0
        for topic_id, topic in present.items():
            if topic_id not in self.history.topics:
                if topic.name not in self.history.creating:
                    raise Violation(f"nobody created {topic.name}")
                self._note_topic(topic.name, topic_id, len(topic.partitions), dict(topic.config.given))
            self._check_count(topic, self.history.topics[topic_id])
            for partition, told in zip(topic.partitions, self.history.topics[topic_id].partitions, strict=True):
                if partition.offline is not None:
                    raise Violation(f"{topic.name}-{partition.index} is offline: {partition.offline}")
                expires = self.history.topics[topic_id].expires
                found = await self._check_partition(partition, told, expires=expires)
                count += 0 if expires else found
        self.history.creating.clear()
        return count

    def _check_count(self, topic: Topic, history: TopicHistory) -> None:
        """A topic has the partitions that were answered, or those of a growth whose answer was lost."""
        known = len(history.partitions)
        if len(topic.partitions) not in (known, max(known, history.grow_asked)):
            raise Violation(f"{topic.name} has {len(topic.partitions)} partitions, not {known}")
        history.partitions += [_new_partition(topic) for _ in range(len(topic.partitions) - known)]
        history.grow_asked = 0

    async def _check_partition(self, partition: Partition, history: PartitionHistory, *, expires: bool) -> int:
        if history.keyed is not None:
            await history.keyed.check(partition)
            return 0
        log = partition.opened()
        where = f"{log.name} ({log.log_start} to {log.end_offset})"
        if log.log_start < history.deleted_to:
            raise Violation(f"{where}: deleted up to {history.deleted_to}, and back")
        if not expires and log.log_start > history.delete_asked:
            raise Violation(f"{where}: nobody asked to delete that much, only {history.delete_asked}")
        stored: dict[int, bytes] = {}
        for batch in await self._read_all(partition):
            stored.update(batch.records)
        stored = {offset: value for offset, value in stored.items() if offset >= log.log_start}
        if list(stored) != list(range(log.log_start, log.end_offset)):
            raise Violation(f"{where}: offsets {list(stored)[:3]} to {list(stored)[-3:]}")
        if history.power_lost:
            history.power_lost = False
            lost = [offset for offset in history.known if offset >= log.end_offset]
            self.history.lost_tails += bool(lost)
            for offset in lost:
                del history.known[offset]
        for offset, value in history.known.items():
            if offset >= log.log_start and stored.get(offset) != value:
                raise Violation(f"{where}: offset {offset} was {value[:20]!r}, is {stored.get(offset, b'')[:20]!r}")
        self._check_producers(stored, history, where)
        return len(stored)

    async def _read_all(self, partition: Partition) -> list[Stored]:
        while True:
            before = partition.opened().log_start
            try:
                return await read_all(partition)
            except PenstockError as error:
                if error.code is not Code.OFFSET_OUT_OF_RANGE or partition.opened().log_start == before:
                    raise  # else retention was quicker

    def _check_producers(self, stored: dict[int, bytes], history: PartitionHistory, where: str) -> None:
        last: dict[int, int] = {}
        sent = {producer.number: producer.sent for producer in history.producers}
        for offset in sorted(stored):
            number, count = (int(part) for part in stored[offset].split(b"/")[:2])
            if count <= last.get(number, -1):
                raise Violation(f"{where}: record {count} of producer {number} comes twice or late, at {offset}")
            if count >= sent.get(number, 0):
                raise Violation(f"{where}: record {count} of producer {number} was never sent")
            last[number] = count


def _new_partition(topic: Topic) -> PartitionHistory:
    return PartitionHistory(topic.config.log.flush == "commit", keyed=KeyedHistory() if topic.config.compacts else None)


async def _first(event: asyncio.Event, limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        pass
