"""The smallest coordinator that lives beside a partition: it numbers steps, each once, and says what it needs."""

from collections.abc import Iterable
from typing import Any

import orjson

from penstock.engine.coordination.attached_shards import AttachedShards
from penstock.engine.coordination.outcome import Outcome, Reply, Token
from penstock.engine.coordination.registry import Attachment
from penstock.engine.coordination.schemas import Entry
from penstock.engine.coordination.shard import Shard
from penstock.engine.engine import Engine
from penstock.engine.partition import Partition

STEP: Any = "step"
FLOOR: Any = "floor"


class CounterCodec:
    def encode(self, entry: Entry) -> tuple[bytes, bytes | None]:
        return orjson.dumps([entry.kind, *entry.key]), orjson.dumps(entry.value)

    def decode(self, key: bytes | None, value: bytes | None) -> Entry | None:
        kind, *parts = orjson.loads(key or b"")
        return Entry(kind, tuple(parts), orjson.loads(value or b"null"))


COUNTER = Attachment("count", CounterCodec())


class Counter:
    """Gives each name the next number, the same one when it is asked again."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.floor: int | None = None

    def step(self, name: str, to: Token) -> Outcome:
        if name in self.numbers:
            return Outcome((), (Reply(to, self.numbers[name]),))
        number = self.numbers[name] = len(self.numbers) + 1
        return Outcome((Entry(STEP, (name,), {"number": number}),), (Reply(to, number),))

    def need(self, offset: int | None, to: Token) -> Outcome:
        """From now on the data from `offset` on is needed."""
        self.floor = offset
        return Outcome((Entry(FLOOR, (), {"offset": offset}),), (Reply(to, None),))

    def replay(self, entry: Entry, log_offset: int, producer_id: int | None, now: int) -> None:
        value: Any = entry.value
        if entry.kind == STEP:
            self.numbers[entry.key[0]] = value["number"]
        else:
            self.floor = value["offset"]

    def marker(self, producer_id: int, *, committed: bool) -> None:
        raise AssertionError("nobody writes in a transaction here")

    def dump(self) -> Iterable[tuple[Entry, int | None]]:
        entries = [Entry(STEP, (name,), {"number": number}) for name, number in self.numbers.items()]
        return [(entry, None) for entry in (*entries, Entry(FLOOR, (), {"offset": self.floor}))]

    def next_deadline(self) -> int | None:
        return None

    def tick(self, now: int) -> Outcome:
        return Outcome()


class Counters:
    """Those of one broker."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.shards: AttachedShards[Counter] = engine.coordinators.register_attached(
            COUNTER, lambda partition: lambda now: Counter(), lambda machine: machine.floor
        )

    async def of(self, partition: Partition) -> Shard[Counter]:
        """The one beside a partition, attached when first asked for."""
        topic = self._engine.topics.get(partition.topic)
        assert topic is not None
        await self._engine.attach(topic, COUNTER)
        return self.shards.of(partition)

    async def step(self, partition: Partition, name: str) -> int:
        shard = await self.of(partition)
        number: int = await shard.ask(lambda machine, now, to: machine.step(name, to))
        return number

    async def need(self, partition: Partition, offset: int | None) -> None:
        await (await self.of(partition)).ask(lambda machine, now, to: machine.need(offset, to))
