"""Brokers whose power is cut: a thousand at random operations, small ones at every operation. Nothing promised is lost.

SEEDS=100000 runs more; SEED=123 replays one. A failing seed names itself.
"""

import asyncio
import gc
import os
from collections.abc import Iterator
from functools import partial
from random import Random

import pytest
from tests.property.keyed_world import SETTINGS as KEYED_SETTINGS
from tests.property.power_cut_world import PartitionHistory, PowerCutWorld, Producer, Script
from tests.simulated_broker import Broker, small_blocks, until_visible, wait_for

from penstock.records.control import Marker
from penstock.testing.virtual_clock import run_virtual

# Tasks of a killed process never end; that is the point of killing it, and the collector says so.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def collect_the_killed() -> Iterator[None]:
    yield
    gc.collect()  # while the filters above hold


SEEDS = int(os.environ.get("SEEDS", "1000"))
CHUNKS = 10


async def suffer(seed: int) -> PowerCutWorld:
    world = PowerCutWorld(seed)
    for _ in range(Random(seed).randint(1, 4)):
        await world.live_and_die()
    await world.last_life()
    return world


def seeds_of(chunk: int) -> range | list[int]:
    if "SEED" in os.environ:
        return [int(os.environ["SEED"])] if chunk == 0 else []
    return range(chunk, SEEDS, CHUNKS)


def run_seed(seed: int) -> PowerCutWorld:
    with small_blocks(Random(seed).choice((512, 2048, 65536)), Random(seed).choice((2000, 1 << 30))):
        return run_virtual(lambda: suffer(seed), seed)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_power_cuts_lose_nothing_that_was_promised(chunk: int) -> None:
    acknowledged = lost_tails = compacted = 0
    for seed in seeds_of(chunk):
        try:
            world = run_seed(seed)
        except BaseException as error:
            raise AssertionError(f"SEED={seed} replays this: {error!r}") from error
        acknowledged += world.history.acknowledged
        lost_tails += world.history.lost_tails
        compacted += sum(
            partition.keyed.compacted_lives
            for topic in world.history.topics.values()
            for partition in topic.partitions
            if partition.keyed is not None
        )
    if "SEED" not in os.environ:
        assert acknowledged > 10 * SEEDS / CHUNKS, "the simulated clients hardly did anything"
        assert lost_tails > 0, "no power cut ever took an unsynced record; the simulation is too kind"
        assert compacted > 0, "no log was ever compacted before it was checked"


# --- every crash point of a few small pieces of work


async def send(world: PowerCutWorld, broker: Broker, values: list[bytes], *, wait: bool = True) -> None:
    partition = broker.partition("t")
    history = history_of(world, broker)
    producer = history.producers[0]
    producer.sent += len(values)
    producer.unanswered.append((producer.sequence, values))
    producer.sequence += len(values)
    sent = world.send(partition, history, producer, *producer.unanswered[-1])
    assert sent or not history.durable
    if wait and sent:
        await until_visible(partition, partition.opened().end_offset - 1)


def history_of(world: PowerCutWorld, broker: Broker) -> PartitionHistory:
    topic = broker.engine.topics.get("t")
    assert topic is not None
    history = world.history.topics[str(topic.topic_id)].partitions[0]
    if not history.producers:
        history.producers.append(Producer(1, 7))  # idempotent
    return history


def value(number: int, size: int = 600) -> bytes:
    return b"1/%d/" % number + b"." * size


async def creating(world: PowerCutWorld, broker: Broker) -> None:
    await broker.start()
    await world.create(broker, "t", 2, {"flush": "commit"})
    await send(world, broker, [value(0)])


async def rolling(world: PowerCutWorld, broker: Broker) -> None:
    await broker.start()
    await world.create(broker, "t", 1, {"flush": "commit"})
    for number in range(0, 6, 2):
        await send(world, broker, [value(number), value(number + 1)])


async def rolling_without_sync(world: PowerCutWorld, broker: Broker) -> None:
    await broker.start()
    await world.create(broker, "t", 1, {"flush": "os"})
    for number in range(12):
        await send(world, broker, [value(number)])
        await asyncio.sleep(0.001)


async def deleting_records(world: PowerCutWorld, broker: Broker) -> None:
    await broker.start()
    await world.create(broker, "t", 1, {"flush": "commit"})
    for number in range(4):
        await send(world, broker, [value(number)])
    await wait_for(lambda: not broker.partition("t").opened().unsealed)
    await world.delete_records(broker, "t")


async def deleting_a_topic(world: PowerCutWorld, broker: Broker) -> None:
    await broker.start()
    await world.create(broker, "t", 1, {"flush": "commit"})
    await send(world, broker, [value(0)], wait=False)
    await world.delete(broker, "t")
    await world.create(broker, "t", 1, {"flush": "commit"})


async def growing(world: PowerCutWorld, broker: Broker) -> None:
    await broker.start()
    await world.create(broker, "t", 1, {"flush": "commit"})
    await send(world, broker, [value(0)])
    await world.grow(broker, "t")
    await send(world, broker, [value(1)])
    await world.grow(broker, "t")


async def altering(world: PowerCutWorld, broker: Broker) -> None:
    await broker.start()
    await world.create(broker, "t", 1, {"flush": "os"})
    for number in range(3):
        await send(world, broker, [value(number)])
    await world.make_durable(broker, "t")
    await send(world, broker, [value(3)])


async def stopping(world: PowerCutWorld, broker: Broker) -> None:
    await broker.start()
    await world.create(broker, "t", 1, {"flush": "commit"})
    await send(world, broker, [value(0)])
    await send(world, broker, [value(1)])
    await broker.stop()


async def transacting_and_compacting(world: PowerCutWorld, broker: Broker) -> None:
    await broker.start()
    await world.create(broker, "t", 1, KEYED_SETTINGS)
    partition, keyed = broker.partition("t"), history_of(world, broker).keyed
    assert keyed is not None
    for producer_id, marker in ((21, Marker.COMMIT), (22, Marker.ABORT)):
        await keyed.put(partition, world.random)
        await keyed.transact(partition, producer_id, world.random, 2, marker)
    log = partition.opened()
    log.want_roll()
    await keyed.put(partition, world.random)
    await wait_for(lambda: log.active.size == 0)
    await keyed.transact(partition, 23, world.random, 1, None)
    await wait_for(lambda: log.state.compacted_to > 0)
    await keyed.put(partition, world.random)


async def going_on(world: PowerCutWorld, broker: Broker) -> None:
    """A second life: what it finds is checked; what was not answered is sent again, then one more."""
    await broker.start()
    await world.check(broker)
    if broker.engine.topics.get("t") is None:
        return
    history = history_of(world, broker)
    if history.keyed is not None:
        await history.keyed.end_the_open(broker.partition("t"))
        await history.keyed.put(broker.partition("t"), world.random)
        await world.check(broker)
        return
    producer = history.producers[0]
    for sequence, values in list(producer.unanswered):
        assert world.send(broker.partition("t"), history, producer, sequence, values) or not history.durable
    await send(world, broker, [value(producer.sent)])


SCRIPTS: list[Script] = [
    creating,
    rolling,
    rolling_without_sync,
    deleting_records,
    deleting_a_topic,
    growing,
    altering,
    stopping,
    transacting_and_compacting,
]


@pytest.mark.parametrize("power", [True, False], ids=["power cut", "kill"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_every_crash_point(script: Script, power: bool) -> None:
    for survival in range(3 if power else 1):
        operation = 1
        while run_virtual(partial(crash_once, script, operation, survival, power), survival):
            operation += 1
        assert operation > 20, f"{script.__name__} has only {operation} crash points"


async def crash_once(script: Script, operation: int, survival: int, power: bool) -> bool:
    with small_blocks():
        world = PowerCutWorld(survival)
        world.segment_bytes = 1024
        try:
            crashed = await world.die_at(operation, script, power=power)
            await world.die_at(1 + (operation * 7 + survival) % 40, going_on, power=power)
            await world.last_life()
        except BaseException as error:
            raise AssertionError(f"{script.__name__} cut at {operation}, survival {survival}: {error!r}") from error
        return crashed
