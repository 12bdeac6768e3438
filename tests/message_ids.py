"""Messages with ids, published to a queue that drops duplicates, and what is in its log then."""

from collections.abc import Sequence
from typing import Any, Protocol

from penstock.engine.access import ANONYMOUS, BROKERS
from penstock.engine.engine import Engine
from penstock.engine.forwarding import Outcome
from penstock.engine.partition import Partition
from penstock.engine.publishing import ALL, Durability
from penstock.records.build import build_batch
from tests.simulated_broker import Broker, Stored, read_all

QUEUE = "jobs"
ID = "penstock-id"
WINDOW_S = 8
LONGEST_S = 9
"""An id is known for an eighth longer at most."""


class HasEngine(Protocol):
    @property
    def engine(self) -> Engine: ...


async def with_window(broker: Broker, window: str = f"{WINDOW_S}s", partitions: int = 1, **settings: str) -> Partition:
    """A queue that drops duplicates; what is there of it stays."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    topic = broker.engine.topics.get(QUEUE) or await broker.engine.create_topic(QUEUE, partitions, given)
    await broker.engine.queues.attach(topic)
    await set_window(broker, window)
    return broker.partition(QUEUE)


async def set_window(broker: Broker, window: str) -> None:
    topic = broker.engine.topics.get(QUEUE)
    assert topic is not None
    await broker.engine.alter_queues(topic, lambda queues: {**queues, QUEUE: {"dedup-window": window}})


def identified(*messages: tuple[str | None, bytes], time_ms: int = 1_700_000_000_000, **fields: Any) -> bytearray:
    """A batch of messages, each with its id and its value."""
    records = [
        (None, value, () if each is None else ((ID, each.encode()),), time_ms + at)
        for at, (each, value) in enumerate(messages)
    ]
    return bytearray(build_batch(records, **fields))


async def publish(
    partition: Partition,
    broker: HasEngine,
    batch: bytearray,
    durability: Durability = ALL,
    *,
    by_broker: bool = False,
) -> Outcome:
    subjects = (BROKERS if by_broker else ANONYMOUS,)
    return await broker.engine.forwarding.take(partition, bytearray(batch), durability, 30.0, subjects)


async def send(partition: Partition, broker: Broker, *messages: tuple[str | None, bytes], **fields: Any) -> int:
    """The offset that is told."""
    outcome = await publish(partition, broker, identified(*messages, **fields))
    assert outcome.error is None and outcome.appended is not None, outcome
    return outcome.appended.base_offset


async def there(partition: Partition) -> list[tuple[int, bytes]]:
    """All messages, with their offsets."""
    return messages_of(await read_all(partition))


def messages_of(batches: Sequence[Stored]) -> list[tuple[int, bytes]]:
    return [each for stored in batches if not stored.header.is_control for each in stored.records]
