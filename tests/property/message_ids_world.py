"""A queue that drops duplicates, producers that send the same ids over and over, and a broker that dies many times.

What the log holds in the end is judged by what was sent and told, with the window and nothing else as the rule.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Final, NamedTuple, cast

from tests.message_ids import QUEUE, identified, publish, with_window
from tests.simulated_broker import Broker, Stored, read_all
from tests.unit.engine.test_engine import Machine

from penstock.errors import Code, PenstockError
from penstock.records.compression import Codec
from penstock.testing.virtual_clock import VirtualLoop

WINDOW_MS: Final = 8000
GRAIN_MS: Final = WINDOW_MS // 8
SKEW_MS: Final = WINDOW_MS
"""After a restart ids are known for so much longer at most, lest the clocks of two brokers differ."""
_IDS: Final = 12
_DAY_MS: Final = 86_400_000
_PRODUCERS: Final = 3
Message = tuple[str | None, bytes]


class Acked(NamedTuple):
    """A message that was confirmed; times of the broker's clock."""

    message: Message
    sent_ms: int
    acked_ms: int


@dataclass(slots=True)
class Producer:
    """Sends a batch until it is confirmed, if it numbers what it sends."""

    number: int
    producer_id: int = -1
    sequence: int = 0
    unsure: list[Message] = field(default_factory=list)
    unsure_since_ms: int = 0


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.machine = Machine(seed % 1000 + 1)
        self.loop = cast(VirtualLoop, asyncio.get_running_loop())
        self.acked: list[Acked] = []
        self.wrong: list[str] = []
        self.producers = [Producer(each, 100 + each if each else -1) for each in range(_PRODUCERS)]
        self.ids: dict[bytes, str | None] = {}
        """By the value of each message, which no other one has."""
        self.lives = 0
        self.began_ms: list[int] = []
        self.dropped = 0

    # --- what goes on

    async def live_and_die(self) -> None:
        random, machine = self.random, self.machine
        process = self.loop.process(f"life {self.lives}")
        died = asyncio.Event()

        def die() -> None:
            process.kill()
            died.set()

        machine.disk.on_power_cut = die
        if random.random() < 0.5:
            machine.disk.cut_power_after(random.randint(1, 200))
        process.create_task(self._live(died))
        try:
            async with asyncio.timeout(random.uniform(0.05, 25.0)):
                await died.wait()
        except TimeoutError:
            pass
        machine.disk = machine.disk.after_power_cut() if random.random() < 0.7 else machine.disk.abandon()

    async def _live(self, died: asyncio.Event) -> None:
        try:
            broker = self.machine.broker(defaults={"segment.bytes": "2048"})
            await broker.start()
            await with_window(broker)
            self.lives += 1
            self.began_ms.append(self.machine.clock.now_ms())
            await asyncio.gather(*(self._produce(broker, each) for each in self.producers))
        except PenstockError as error:
            self.wrong.append(f"a life ended with {error!r}")
            died.set()

    async def last_life(self) -> list[Stored]:
        broker = self.machine.broker(defaults={"segment.bytes": "2048"})
        await broker.start()
        found = [] if broker.engine.topics.get(QUEUE) is None else await read_all(broker.partition(QUEUE))
        await broker.stop()
        if broker.failures:
            self.wrong.append(f"the broker gave up: {broker.failures}")
        return found

    def _message(self) -> Message:
        number = self.random.randrange(_IDS + 2)
        each, value = (f"id{number}" if number < _IDS else None), b"%d" % len(self.ids)
        self.ids[value] = each
        return each, value

    async def _produce(self, broker: Broker, producer: Producer) -> None:
        random, jobs = self.random, broker.partition(QUEUE)
        while True:
            await asyncio.sleep(random.choice((0, 0.01, 0.5, 2.0)))
            numbered = producer.producer_id >= 0
            if not (numbered and producer.unsure):
                producer.unsure = [self._message() for _ in range(random.choice((1, 1, 2, 5)))]
                producer.unsure_since_ms = self.machine.clock.now_ms()
            messages = producer.unsure
            claimed_ms = self.machine.clock.now_ms() - random.choice((0, _DAY_MS))
            codec = random.choice((Codec.NONE, Codec.NONE, Codec.GZIP))
            numbers = {"producer_id": producer.producer_id, "producer_epoch": 0, "base_sequence": producer.sequence}
            batch = identified(*messages, time_ms=claimed_ms, codec=codec, **(numbers if numbered else {}))
            outcome = await publish(jobs, broker, batch)
            if outcome.error is not None:
                if outcome.error.code is not Code.TIMED_OUT:
                    self.wrong.append(f"producer {producer.number} was told {outcome.error!r}")
                continue
            now_ms = self.machine.clock.now_ms()
            self.acked += [Acked(each, producer.unsure_since_ms, now_ms) for each in messages]
            self.dropped = broker.stats.queue_duplicates.get((QUEUE,), 0)
            producer.unsure = []
            producer.sequence += len(messages)

    # --- what is wrong with it

    def judge(self, log: list[Stored]) -> list[str]:
        """What is there twice within the window, or was confirmed and is not there."""
        kept = [
            (value, stored.header.max_timestamp)
            for stored in log
            if not stored.header.is_control
            for _, value in stored.records
        ]
        stamps = dict(kept)
        counts = Counter(value for value, _ in kept)
        wrong = [*self.wrong, *(f"{value!r} is there {count} times" for value, count in counts.items() if count > 1)]
        there = defaultdict[str | None, list[int]](list)
        for value, stamp_ms in sorted(stamps.items(), key=lambda pair: pair[1]):
            there[self.ids[value]].append(stamp_ms)
        for each, times in there.items():
            wrong += [
                f"{each} is there at {before} and {after}, within the window"
                for before, after in pairwise(times)
                if each is not None and after - before < WINDOW_MS
            ]
        wrong += [
            f"{each.message} was confirmed at {each.acked_ms}, and its id is there at {there[each.message[0]]} only"
            for each in self.acked
            if each.message[1] not in stamps and not self._has_original(each, there)
        ]
        return wrong

    def _has_original(self, acked: Acked, there: Mapping[str | None, list[int]]) -> bool:
        longest_ms = WINDOW_MS + GRAIN_MS + (SKEW_MS if self._has_restarted(acked) else 0)
        times = there.get(acked.message[0], []) if acked.message[0] is not None else []
        return any(acked.sent_ms - longest_ms <= time <= acked.acked_ms for time in times)

    def _has_restarted(self, acked: Acked) -> bool:
        since_ms = acked.sent_ms - WINDOW_MS - SKEW_MS - GRAIN_MS
        return any(since_ms <= began_ms <= acked.acked_ms for began_ms in self.began_ms[1:])
