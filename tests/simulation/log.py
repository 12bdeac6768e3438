"""Producers and pollers of a log, and checks as in Jepsen's Kafka workload: what was acknowledged or seen stays.

Offsets give the order of versions, so every check takes linear time. Answers are of three kinds: done, refused, and
unknown; what is unknown may be in the log once, or not at all.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Coroutine, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.engine.leadership import UNKNOWN
from penstock.engine.partition import Partition
from penstock.engine.safety import until_safe
from penstock.errors import Code, PenstockError
from penstock.records.build import build_batch
from penstock.storage.log.log import Log
from penstock.storage.log.reading import read_slice, warm
from tests.simulated_broker import HUGE, read_some, split
from tests.simulation.client import UNANSWERED, Client
from tests.simulation.cluster import SimulatedBroker

if TYPE_CHECKING:
    from tests.simulation.world import World

MAIN = "t"
SECOND = "small"
MOST_IN_FLIGHT = 5
_ACK_S = 3.0
_POLL_BYTES = 16 << 10
_MOST_READS = 4
Place = tuple[str, int]


class Acknowledged(NamedTuple):
    base_offset: int
    node_id: int
    epoch: int


class Polled(NamedTuple):
    records: list[tuple[int, bytes]]
    next_offset: int
    high_watermark: int
    """`UNKNOWN` if the leader does not tell."""
    epoch: int


async def produce(broker: SimulatedBroker, place: Place, batch: bytes, acks: int) -> Acknowledged:
    """As the produce request does it."""
    partition = broker.engine.topics.partition(*place)
    if acks == -1:
        partition.check_in_sync()
    try:
        done = partition.append(memoryview(bytearray(batch)))
    except PenstockError as error:
        if error.code is Code.OUT_OF_ORDER_SEQUENCE and broker.cluster.is_deposed(partition):
            raise PenstockError(Code.NOT_LEADER, f"{partition.name} is led elsewhere") from error
        raise
    told = Acknowledged(done.base_offset, broker.node_id, partition.leader_epoch)
    if acks == -1:
        await until_committed(partition, done.last_offset)
    return told


async def until_committed(partition: Partition, last_offset: int) -> None:
    """Raises PenstockError when it never will be, as far as this broker knows, or not in time."""
    try:
        async with asyncio.timeout(_ACK_S):
            await until_safe([(partition, last_offset)])
    except TimeoutError:
        raise PenstockError(Code.TIMED_OUT, f"{partition.name} is not replicated in time") from None


async def poll(broker: SimulatedBroker, place: Place, offset: int, epoch: int) -> Polled:
    """As the fetch request does it, without waiting."""
    partition = broker.engine.topics.partition(*place)
    partition.check_epoch(epoch)
    batches = await read_some(partition, offset, _POLL_BYTES)
    records = [record for batch in batches for record in batch.records if record[0] >= offset]
    end = batches[-1].header.last_offset + 1 if batches else offset
    return Polled(records, end, partition.shown_ends[0], partition.leader_epoch)


class _Batch:
    """One batch of an idempotent producer, sent again until it is acknowledged."""

    __slots__ = ("attempts", "bytes", "in_flight", "is_acked", "values")

    def __init__(self, values: list[bytes], data: bytes) -> None:
        self.values = values
        self.bytes = data
        self.attempts = 0
        self.in_flight = False
        self.is_acked = False


class History:
    """All that clients were told about one partition."""

    def __init__(self, world: "World", place: Place) -> None:
        self._world = world
        self.place = place
        self.name = f"{place[0]}-{place[1]}"
        self.values: dict[int, bytes] = {}
        """By offset, as soon as anybody was told."""
        self.acked: dict[bytes, int] = {}
        self.leaders: dict[int, int] = {}
        """By epoch: who acknowledged."""
        self.polled_end = 0
        self.polls = 0
        self._watermarks: dict[int, int] = {}
        """By epoch: the last one that was told."""

    def acknowledged(self, values: Sequence[bytes], told: Acknowledged) -> None:
        self._world.note(f"ack {self.name} {told.base_offset}+{len(values)} by {told.node_id} epoch {told.epoch}")
        if self.leaders.setdefault(told.epoch, told.node_id) != told.node_id:
            both = f"{self.leaders[told.epoch]} and {told.node_id}"
            self._world.violate(f"{self.name}: brokers {both} both acknowledged in epoch {told.epoch}")
        self._world.promised(self.place, told.base_offset + len(values))
        self._world.acknowledged()
        for at, value in enumerate(values):
            self.acked[value] = told.base_offset + at
            self._seen(told.base_offset + at, value, "acknowledged")

    def polled(self, polled: Polled) -> None:
        self.polls += 1
        for offset, value in polled.records:
            self._seen(offset, value, "polled")
        self.polled_end = max(self.polled_end, polled.next_offset)

    def told_watermark(self, high_watermark: int, epoch: int, node_id: int) -> None:
        """It rises in an epoch, and an epoch has none below those of earlier ones, however late they are told."""
        if high_watermark == UNKNOWN:
            return
        before = max((told for each, told in self._watermarks.items() if each <= epoch), default=0)
        after = min((told for each, told in self._watermarks.items() if each > epoch), default=high_watermark)
        if not before <= high_watermark <= after:
            other = before if high_watermark < before else after
            self._world.violate(
                f"{self.name}: the high watermark is {high_watermark} on broker {node_id} in epoch {epoch}, and was "
                f"told to be {other} in {'this or an earlier' if other == before else 'a later'} one"
            )
        self._watermarks[epoch] = high_watermark

    def _seen(self, offset: int, value: bytes, how: str) -> None:
        before = self.values.setdefault(offset, value)
        if before != value:
            self._world.violate(
                f"{self.name}: offset {offset} is {value[:20]!r} as {how} now and was {before[:20]!r} before"
            )


class Producer:
    """An idempotent producer with acks=all: batches in order, up to five in flight, each sent until acknowledged.

    As the Java client: what is sent again goes alone, and the first batch of all does, until it is known to be there.
    """

    def __init__(self, client: Client, history: History, name: str, batches: int) -> None:
        self._client = client
        self._random = client.random
        self._history = history
        self._place = history.place
        self._name = name
        self._left = batches
        self.acked = 0
        self._sequence = 0
        self._producer_id = -1
        self._pending: deque[_Batch] = deque()
        self._is_known = False
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        self._producer_id = await self._identify()
        world = self._client.world
        next_at = world.loop.time()
        while self._pending or (self._left and not world.is_over):
            now = world.loop.time()
            if now >= next_at and not world.is_over:
                for _ in range(self._random.choice((1, 1, 2, 5))):
                    self._add()
                next_at = now + self._random.expovariate(3.5)
            self._changed.clear()
            await self._send()
            try:
                async with asyncio.timeout(max(0.0, next_at - now) if not world.is_over else 1.0):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _identify(self) -> int:
        while True:
            try:
                return await self._client.ask_any(lambda broker: broker.engine.producer_ids.take())
            except UNANSWERED:
                await asyncio.sleep(0.1)

    def _add(self) -> None:
        if len(self._pending) >= MOST_IN_FLIGHT or not self._left:
            return
        self._left -= 1
        count = self._random.randint(1, 3)
        padding = b"." * self._random.choice((0, 0, 0, 300, 3000))
        values = [b"%s:%d" % (self._name.encode(), self._sequence + at) for at in range(count)]
        values[0] += padding
        now_ms = self._client.now_ms
        data = build_batch(
            [(None, value, [], now_ms) for value in values],
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=self._sequence,
        )
        self._sequence += count
        self._pending.append(_Batch(values, bytes(data)))

    async def _send(self) -> None:
        leader = await self._client.leader_of(*self._place)
        if leader is None:
            await asyncio.sleep(0.05 + 0.1 * self._random.random())
            self._changed.set()
            return
        for at, batch in enumerate(self._pending):
            if batch.in_flight or batch.is_acked:
                continue
            if at > 0 and (batch.attempts or not self._is_known):
                break
            batch.in_flight = True
            batch.attempts += 1
            task = asyncio.create_task(self._attempt(batch, leader.node_id, at == 0))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(0)  # so that it is on its way before the next

    async def _attempt(self, batch: _Batch, leader: int, is_first: bool) -> None:
        try:
            told = await self._client.ask(
                leader, lambda broker: produce(broker, self._place, batch.bytes, -1), _ACK_S + 0.5
            )
        except UNANSWERED:
            self._client.forget_leader(*self._place)
        except PenstockError as error:
            await self._refused(error, leader, is_first)
        else:
            self._history.acknowledged(batch.values, told)
            self._is_known = True
            batch.is_acked = True
            self.acked += 1
            while self._pending and self._pending[0].is_acked:
                self._pending.popleft()
        batch.in_flight = False
        self._changed.set()

    async def _refused(self, error: PenstockError, leader: int, is_first: bool) -> None:
        if error.code is Code.OUT_OF_ORDER_SEQUENCE and not is_first:
            return  # one before it was refused, or went elsewhere
        if not error.retriable and not self._client.world.is_spoiled(leader, error):
            self._client.world.violate(f"{self._history.name}: producer {self._name} is refused: {error}")
        self._client.forget_leader(*self._place)
        await asyncio.sleep(0.05 + 0.1 * self._random.random())


class CarelessProducer:
    """acks=1, every batch once: nothing is promised, but what is seen of it stays."""

    def __init__(self, client: Client, history: History, name: str, batches: int) -> None:
        self._client = client
        self._history = history
        self._name = name
        self._left = batches
        self.written = 0

    async def run(self) -> None:
        client, place = self._client, self._history.place
        while self._left and not client.world.is_over:
            self._left -= 1
            await asyncio.sleep(client.random.expovariate(3.0))
            value = b"%s:%d" % (self._name.encode(), self._left)
            batch = bytes(build_batch([(None, value, [], client.now_ms)]))
            leader = await client.leader_of(*place)
            if leader is None:
                continue
            try:
                await client.ask(leader.node_id, lambda broker, batch=batch: produce(broker, place, batch, 1))  # type: ignore[misc]
                self.written += 1
            except (*UNANSWERED, PenstockError):
                client.forget_leader(*place)


class Poller:
    """Reads on from where it is, at whoever it takes for the leader, also at one that is no longer.

    A modern one says which epoch it knows of, so one that leads no more cannot take it for lost (KIP-320).
    """

    def __init__(self, client: Client, history: History, pause_s: float, *, modern: bool) -> None:
        self._is_modern = modern
        self._epoch = 0
        self._client = client
        self._history = history
        self._pause_s = pause_s
        self._offset = 0

    async def run(self) -> None:
        client, history = self._client, self._history
        while not client.world.is_over:
            await asyncio.sleep(self._pause_s * client.random.random() * 2)
            if client.random.random() < 0.1:
                self._offset = client.random.randint(0, self._offset)  # a consumer that begins again
            leader = await client.leader_of(*history.place)
            if leader is None:
                continue
            node_id = (
                leader.node_id if client.random.random() > 0.15 else client.random.choice(client.world.cluster.ids)
            )
            self._epoch = max(self._epoch, leader.epoch)
            try:
                polled = await client.ask(node_id, self._poll)
            except UNANSWERED:
                client.forget_leader(*history.place)
            except PenstockError as error:
                client.forget_leader(*history.place)
                if error.code is Code.OFFSET_OUT_OF_RANGE and not self._is_modern:
                    continue  # one that leads no more has not got so far
                if not error.retriable and not client.world.is_spoiled(node_id, error):
                    client.world.violate(f"{history.name}: poll at {self._offset} on broker {node_id}: {error}")
            else:
                self._take(polled)

    async def _poll(self, broker: SimulatedBroker) -> Polled:
        polled = await poll(broker, self._history.place, self._offset, self._epoch if self._is_modern else -1)
        self._history.told_watermark(polled.high_watermark, polled.epoch, broker.node_id)
        return polled

    def _take(self, polled: Polled) -> None:
        expected = self._offset
        for offset, _ in polled.records:
            if offset != expected:
                self._client.world.violate(f"{self._history.name}: a poll at {expected} got offset {offset}")
            expected = offset + 1
        self._history.polled(polled)
        self._offset = polled.next_offset
        self._epoch = max(self._epoch, polled.epoch)


class LogWorkload:
    """One topic, three replicas; sometimes a second one with two partitions and small segments."""

    def __init__(self, world: "World", random: Random) -> None:
        self._world = world
        self._random = random
        self._places: list[Place] = [(MAIN, 0)]
        if random.random() < 0.3:
            self._places += [(SECOND, 0), (SECOND, 1)]
        self._goes_by_defaults = world.is_operated and random.random() < 0.5
        self._histories = {place: History(world, place) for place in self._places}
        self._producers: list[Producer] = []
        self._careless: list[CarelessProducer] = []
        self._final: dict[Place, list[tuple[int, bytes]]] = {}
        self._differences: list[str] = []

    async def set_up(self) -> None:
        for name, settings in ((MAIN, {}), (SECOND, {"segment.bytes": "2048"})):
            partitions = sum(place[0] == name for place in self._places)
            if partitions:
                own = {} if self._goes_by_defaults else {"min.insync.replicas": "2"}
                await self._create(name, partitions, settings | own)

        def is_there() -> bool:
            return all(
                self._world.partition(node_id, *place) is not None
                for node_id in self._world.cluster.ids
                for place in self._places
            )

        if not (await self._world.until(is_there, 10.0) and await self._world.until(self._is_whole, 10.0)):
            self._world.violate(f"topics never came up: {self._world.lacking()}")

    def _is_whole(self) -> bool:
        return not self._world.lacking()

    def _is_settled(self) -> bool:
        """Whole, and nothing is on its way to a disk: what a client of acks=1 was told of need not be there yet."""
        logs = [
            log
            for place in self._places
            for node_id in self._world.holders(*place)
            if (log := self._log(node_id, place))
        ]
        return self._is_whole() and all(log.visible_end == log.end_offset for log in logs)

    async def _create(self, name: str, partitions: int, settings: dict[str, str]) -> None:
        async def create(broker: SimulatedBroker) -> None:
            await broker.engine.create_topic(name, partitions, settings, replication=3)

        await self._world.cluster.call(self._random.choice(self._world.cluster.ids), create, 20.0)

    def _client(self) -> Client:
        return Client(self._world, Random(self._random.getrandbits(64)))

    def clients(self) -> Sequence[Coroutine[Any, Any, None]]:
        running: list[Coroutine[Any, Any, None]] = []
        for place, history in self._histories.items():
            share = len(self._places)
            name = f"{place[0]}{place[1]}"
            self._producers += [
                Producer(self._client(), history, f"{name}p{n}", 120 // share) for n in range(3 if share == 1 else 2)
            ]
            self._careless.append(CarelessProducer(self._client(), history, f"{name}c", 30 // share))
            running.append(Poller(self._client(), history, 0.2, modern=True).run())
            running.append(Poller(self._client(), history, 0.6, modern=False).run())
        producers: tuple[Any, ...] = (*self._producers, *self._careless)
        running += [producer.run() for producer in producers]
        return running

    # --- at the end

    async def finish(self) -> None:
        for place in self._places:
            for _ in range(_MOST_READS):
                await self._world.until(self._is_settled, 20.0)  # rot that reading finds has a replica made anew
                found = list(self._differences)
                read = {node_id: self._log(node_id, place) for node_id in self._world.holders(*place)}
                await self._read(place)
                if all(self._log(node_id, place) is log for node_id, log in read.items()):
                    break
                self._differences = found

    def _log(self, node_id: int, place: Place) -> Log | None:
        partition = self._world.partition(node_id, *place)
        return None if partition is None or partition.log is None or partition.log.damage else partition.log

    async def _read(self, place: Place) -> None:
        logs: dict[int, bytes] = {}
        ends: dict[int, int] = {}
        for node_id in self._world.holders(*place):
            partition = self._world.partition(node_id, *place)
            assert partition is not None and partition.log is not None, f"{place} is not on broker {node_id}"
            try:
                logs[node_id] = await _content(partition.log, partition.log.visible_end)
            except PenstockError as error:
                if not self._world.is_spoiled(node_id, error):
                    raise
                self._world.note(f"final {place[0]}-{place[1]} broker {node_id} refuses a spoiled log")
                continue
            self._check_durable(node_id, partition.log)
            ends[node_id] = partition.high_watermark if partition.led is not None else -1
        leader = max(ends, key=lambda node_id: ends[node_id])
        if ends[leader] < 0:  # the leader is the one that refuses; the others have all it had acknowledged
            ends[leader] = HUGE
        for node_id, content in logs.items():
            if content != logs[leader]:
                self._differences.append(
                    f"{place[0]}-{place[1]}: broker {node_id} has another log than its leader, broker {leader}: "
                    f"{_difference(content, logs[leader])}"
                )
        records = [record for batch in split(logs[leader]) for record in batch.records]
        self._final[place] = [record for record in records if record[0] < ends[leader]]
        self._world.note(f"final {place[0]}-{place[1]} {len(records)} records")

    def _check_durable(self, node_id: int, log: Log) -> None:
        """What counts as synced would be there after a power cut."""
        disk = self._world.cluster.disks[node_id]
        for segment in log.segments if log.visible_end == log.end_offset else []:
            durable = disk.read_durable(segment.path)[: segment.size]
            if durable != disk.open(segment.path).read_at(segment.size, 0):
                self._differences.append(f"{segment.path} of broker {node_id} is not on its device as it is read")

    def check(self) -> list[str]:
        found = list(self._differences)
        for place, final in self._final.items():
            found += check_log(self._histories[place], final)
        return found

    def counters(self) -> dict[str, int]:
        histories = self._histories.values()
        return {
            "batches": sum(producer.acked for producer in self._producers),
            "acked": sum(len(history.acked) for history in histories),
            "polls": sum(history.polls for history in histories),
            "polled": sum(history.polled_end for history in histories),
            "epochs": sum(len(history.leaders) for history in histories),
            "careless": sum(producer.written for producer in self._careless),
        }


def check_log(history: History, final: Sequence[tuple[int, bytes]]) -> list[str]:
    """What is wrong with a partition's log, by what clients were told before."""
    name = history.name
    found = []
    at = dict(final)
    for value, offset in history.acked.items():
        if at.get(offset) != value:
            found.append(
                f"{name}: lost write: {value[:20]!r} was acknowledged at {offset}, there is {_short(at, offset)}"
            )
    for offset, value in history.values.items():
        if offset < history.polled_end and at.get(offset) != value and value not in history.acked:
            found.append(f"{name}: seen and gone: {value[:20]!r} at {offset}, there is {_short(at, offset)} now")
    offsets: dict[bytes, int] = {}
    sent: defaultdict[bytes, list[int]] = defaultdict(list)
    for offset, value in final:
        if value in offsets:
            found.append(f"{name}: duplicate: {value[:20]!r} is at {offsets[value]} and at {offset}")
        offsets[value] = offset
        producer, _, number = value.rstrip(b".").partition(b":")
        if b"p" in producer:
            sent[producer].append(int(number))
    for producer, numbers in sent.items():
        if numbers != list(range(len(numbers))) and len(set(numbers)) == len(numbers):
            at_fault = next(at for at, number in enumerate(numbers) if number != at)
            where = f"{numbers[at_fault]} where {at_fault} should be, of {len(numbers)}"
            found.append(f"{name}: order: {producer.decode()} has {where}")
    if [offset for offset, _ in final] != list(range(len(final))):
        found.append(f"{name}: offsets are missing: {[offset for offset, _ in final][:20]}")
    return found


def _short(at: dict[int, bytes], offset: int) -> str:
    value = at.get(offset)
    return "nothing" if value is None else repr(value[:20])


def _difference(one: bytes, other: bytes) -> str:
    ours, theirs = split(one), split(other)
    for mine, yours in zip(ours, theirs, strict=False):
        if mine != yours:
            places = [f"{each.header.base_offset} of epoch {each.header.leader_epoch}" for each in (mine, yours)]
            return f"batch at {places[0]}, there {places[1]}"
    return f"{len(ours)} batches, there {len(theirs)}"


async def _content(log: Log, end: int) -> bytes:
    """All bytes of a log up to an offset at which a batch ends."""
    parts = []
    offset = log.log_start
    while offset < end:
        await warm(log, offset, HUGE)
        found = read_slice(log, offset, end, HUGE, True, warmed=True)
        assert found is not None, f"{log.name}: nothing at {offset}, below {end}"
        parts.append(found.file.read_at(found.size, found.position))
        offset = split(parts[-1])[-1].header.last_offset + 1
    return b"".join(parts)
