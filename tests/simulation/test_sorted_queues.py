"""Queues whose messages are not alike, when the leader dies in the middle of it: the next one goes by the same rules.

It reads the records again, so what is said in them holds as much as before; what was given out it knows by the ledger.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.engine.queues.answers import Want
from penstock.engine.queues.receiving import Delivery
from penstock.engine.queues.sorting.later import Waiting
from penstock.errors import Code, PenstockError
from penstock.records.build import build_batch
from tests.simulated_broker import produce
from tests.simulation.cluster import SimulatedBroker
from tests.simulation.test_queue_features import ACK, NACK, QUEUE, Trial, offsets, trial

_MOST_BYTES = 1 << 20
_FIRST = Waiting(0, -1)


async def send(it: Trial, value: bytes, key: bytes | None = None, *, ahead_ms: int = 0, **said: object) -> None:
    """One message, by a sender whose clock is ahead of the broker's; headers without their `penstock-`."""
    headers = [(f"penstock-{name.replace('_', '-')}", str(text).encode()) for name, text in said.items()]

    async def publish(broker: SimulatedBroker) -> None:
        partition = broker.engine.topics.partition(QUEUE, 0)
        partition.check_in_sync()
        batch = bytearray(build_batch([(key, value, headers, broker.clock.now_ms() + ahead_ms)]))
        await produce(partition, batch)

    await it.ask(QUEUE, publish)


async def receive(
    it: Trial, most: int = 100, wait_s: float = 0.0, consumer: str = "c", lane: int | None = None
) -> list[Delivery]:
    async def receive(broker: SimulatedBroker) -> list[Delivery]:
        partition = broker.engine.topics.partition(QUEUE, 0)
        want = Want(QUEUE, consumer, most, lane=lane)
        return await broker.engine.receiving.receive(partition, want, _MOST_BYTES, wait_s)

    return await it.ask(QUEUE, receive)


async def settle_as(it: Trial, verdict: str, wanted: list[Waiting]) -> int:
    async def settle(broker: SimulatedBroker) -> int:
        partition = broker.engine.topics.partition(QUEUE, 0)
        queues = broker.engine.queues
        done = queues.cancel if verdict == "cancel" else queues.deliver_now
        return await done(partition, QUEUE, wanted)

    return await it.ask(QUEUE, settle)


async def waiting(it: Trial) -> list[Waiting]:
    return await it.ask(
        QUEUE,
        lambda broker: broker.engine.queues.waiting(broker.engine.topics.partition(QUEUE, 0), QUEUE, _FIRST, 100),
    )


async def receive_something(it: Trial) -> list[Delivery]:
    """As soon as there is anything; a broker that has died does not answer, so nobody waits long."""
    while not (got := await receive(it, wait_s=1.0)):
        pass
    return got


def now_ms(it: Trial) -> int:
    return it.cluster.clocks[it.leader(QUEUE)].now_ms()


def values(deliveries: list[Delivery]) -> list[bytes]:
    return [each.message.value or b"" for each in deliveries]


@trial()
async def test_nothing_is_early_at_the_next_leader(it: Trial) -> None:
    begun = now_ms(it)
    await send(it, b"later", delay_ms=4000)
    await send(it, b"sooner", deliver_at=begun + 3000)
    await send(it, b"now")
    now = await receive(it)
    assert values(now) == [b"now"]
    await it.settle(now, ACK)
    await it.fail_over()
    found: list[tuple[bytes, int]] = []
    while len(found) < 2:
        for each in await receive_something(it):
            found.append((each.message.value or b"", now_ms(it)))
            await it.settle([each], ACK)
    (first, first_at), (second, second_at) = found
    assert (first, second) == (b"sooner", b"later")
    assert first_at >= begun + 3000
    assert second_at >= begun + 4000


async def check_a_clock_set_back(it: Trial, **said: int) -> None:
    """A broker's time goes on as it did when that started, and all others know the right one."""
    it.cluster.clocks[it.leader(QUEUE)].jump_ms(-3_600_000)
    begun = it.cluster.loop.time()
    await send(it, b"later", None, ahead_ms=3_600_000, **said)
    assert values(await receive_something(it)) == [b"later"]
    assert 4.0 <= it.cluster.loop.time() - begun <= 8.0


@trial()
async def test_a_clock_that_is_set_back_makes_nothing_early(it: Trial) -> None:
    await check_a_clock_set_back(it, delay_ms=4000)


@trial(delay="4s")
async def test_nor_where_all_wait(it: Trial) -> None:
    await check_a_clock_set_back(it)


@trial(visibility="1h")
async def test_a_consumer_that_waits_gets_what_falls_due_at_once(it: Trial) -> None:
    begun = now_ms(it)
    await send(it, b"later", delay_ms=1500)
    (got,) = await receive_something(it)
    assert got.message.value == b"later"
    assert begun + 1500 <= now_ms(it) <= begun + 1500 + 1500  # the send took some of it
    await it.settle([got], ACK)
    assert (await it.figures()).delayed == 0


@trial(delay="2s")
async def test_a_queue_in_which_all_wait(it: Trial) -> None:
    begun = now_ms(it)
    await send(it, b"one")
    await send(it, b"own", delay_ms=0)
    assert values(await receive(it)) == [b"own"]
    assert (await it.figures()).delayed == 1
    await it.fail_over()
    got: list[Delivery] = []
    while b"one" not in values(got):
        got = await receive(it, wait_s=1.0)
    assert now_ms(it) >= begun + 2000


@trial(lanes="strict", visibility="1h")
async def test_the_highest_lane_first_at_the_next_leader_too(it: Trial) -> None:
    for value, priority in ((b"low", "low"), (b"plain", None), (b"high", "high"), (b"critical", 9), (b"least", 0)):
        said: dict[str, Any] = {} if priority is None else {"priority": priority}
        await send(it, value, None, **said)
    assert values(await receive(it, 1)) == [b"critical"]
    await it.fail_over()
    assert values(await receive(it, 1, lane=4)) == [b"least"]
    assert [values(await receive(it, 1)) for _ in range(3)] == [[b"high"], [b"plain"], [b"low"]]


@trial(kind="fifo", visibility="1h", max_attempts="20")
async def test_a_key_waits_for_its_message_at_the_next_leader_too(it: Trial) -> None:
    for number in range(3):
        for key in (b"a", b"b"):
            await send(it, key + b"%d" % number, key)
    first = await receive(it)
    assert values(first) == [b"a0", b"b0"]
    await it.settle(first[:1], NACK)
    await it.fail_over()
    again = await receive(it)
    assert values(again) == [b"a0"], "b0 is out, and a1 waits for a0"
    await it.settle(again, ACK)
    await it.settle(first[1:], ACK)
    assert values(await receive(it)) == [b"a1", b"b1"]


@trial(kind="fifo", on_exhausted="block", max_attempts="2", visibility="1h")
async def test_a_key_can_wait_for_what_fails_for_ever(it: Trial) -> None:
    await send(it, b"a0", b"a")
    await send(it, b"a1", b"a")
    for _ in range(4):
        (got,) = await receive(it)
        assert got.message.value == b"a0"
        await it.settle([got], NACK)
    await it.fail_over()
    (got,) = await receive(it)
    assert got.message.value == b"a0"
    await it.settle([got], ACK)
    assert values(await receive(it)) == [b"a1"]
    assert await it.letters() == []


@trial(single_active="true", visibility="3s")
async def test_one_consumer_has_it_all_until_it_falls_silent(it: Trial) -> None:
    await it.send(b"0", b"1")
    assert offsets(await receive(it, 1, consumer="first")) == [0]
    assert await receive(it, consumer="second") == []
    await it.fail_over()
    assert await receive(it, consumer="second") == [], "what the first one has is out still"
    got: list[Delivery] = []
    while not got:
        got = await receive(it, consumer="second", wait_s=1.0)
    assert offsets(got) == [0, 1]
    assert await receive(it, consumer="first") == []


@trial(visibility="1h")
async def test_what_was_cancelled_or_hastened_stays_it(it: Trial) -> None:
    for number in range(4):
        await send(it, b"%d" % number, delay_ms=600_000)
    there = await waiting(it)
    assert [each.offset for each in there] == [0, 1, 2, 3]
    assert await settle_as(it, "cancel", there[:2]) == 2
    assert await settle_as(it, "hasten", there[1:3]) == 1
    await it.fail_over()
    assert [each.offset for each in await waiting(it)] == [3]
    got = await receive_something(it)
    assert values(got) == [b"2"]
    await it.settle(got, ACK)
    await asyncio.sleep(700)
    assert values(await receive_something(it)) == [b"3"]


@trial(visibility="1h")
async def test_a_quiet_tenant_is_not_held_up(it: Trial) -> None:
    for number in range(20):
        await send(it, b"noisy%d" % number, tenant="noisy")
    await send(it, b"quiet", tenant="quiet")
    got = await receive(it, 4)
    assert b"quiet" in values(got)
    await it.fail_over()
    await send(it, b"quiet again", tenant="quiet")
    assert b"quiet again" in values(await receive(it, 2))


@trial(visibility="1h")
async def test_who_begins_anew_waits_for_nothing_but_the_look(it: Trial) -> None:
    """What lies before was forgotten, as nobody needed it."""
    await it.send(*[b"x"] * 5)
    await it.settle(await receive(it), ACK)
    await it.send(b"y")
    assert offsets(await receive(it)) == [5]

    async def restart(broker: SimulatedBroker) -> None:
        await broker.engine.queues.restart(broker.engine.topics.partition(QUEUE, 0), QUEUE, 0)

    await it.ask(QUEUE, restart)
    began = it.cluster.loop.time()
    assert offsets(await receive(it, wait_s=1.0)) == [0, 1, 2, 3, 4, 5]
    assert it.cluster.loop.time() - began < 0.5


class Load:
    """Several consumers, keys and delays; consumers fail now and then."""

    keys = (b"a", b"b", b"c", b"d")
    each_has = 12

    def __init__(self, it: Trial) -> None:
        self.it = it
        self.got: dict[bytes, list[int]] = {key: [] for key in self.keys}
        self.in_order: dict[bytes, set[int]] = {key: set() for key in self.keys}

    @property
    def is_over(self) -> bool:
        return all(len(set(there)) == self.each_has for there in self.got.values())

    async def publish(self) -> None:
        for number in range(self.each_has):
            for key in self.keys:
                if self.it.random.random() < 0.2:
                    await send(self.it, key + b"%d" % number, key, delay_ms=self.it.random.choice((1, 500)))
                else:
                    self.in_order[key].add(number)
                    await send(self.it, key + b"%d" % number, key)

    async def consume(self, name: str) -> None:
        while not self.is_over:
            for each in await receive(self.it, self.it.random.choice((1, 5)), 0.5, name):
                self.check(each)
                with suppress_stale():
                    await self.it.settle([each], NACK if self.it.random.random() < 0.2 else ACK)

    def check(self, got: Delivery) -> None:
        key, number = got.message.key or b"", int((got.message.value or b"")[1:])
        wait_ms = dict(got.message.headers).get("penstock-delay-ms")
        if wait_ms is not None:
            assert now_ms_or_never(self.it) >= got.message.timestamp + int(wait_ms)
        else:
            assert {each for each in self.in_order[key] if each < number} <= set(self.got[key])
        self.got[key].append(number)

    async def die(self) -> None:
        it = self.it
        for _ in range(3):
            await asyncio.sleep(it.random.uniform(0.5, 3))
            if victim := it.leader(QUEUE):
                it.cluster.kill(victim, power_cut=it.random.random() < 0.5)
                await it.until(lambda: it.leader(QUEUE) not in (0, victim))
                it.cluster.start(victim)
                await it.until(lambda: it.cluster.is_up(victim))


@trial(kind="fifo", visibility="2s", max_attempts="200")
async def test_nothing_is_lost_or_out_of_order_while_leaders_die(it: Trial) -> None:
    """Nor early."""
    load = Load(it)
    async with asyncio.TaskGroup() as group:
        group.create_task(load.publish())
        group.create_task(load.die())
        for number in range(3):
            group.create_task(load.consume(f"c{number}"))


@contextmanager
def suppress_stale() -> Iterator[None]:
    """A lease that is over is none of the consumer's business any more."""
    try:
        yield
    except PenstockError as error:
        if error.code is not Code.STALE_RECEIPT:
            raise


def now_ms_or_never(it: Trial) -> int:
    leader = it.leader(QUEUE)
    return it.cluster.clocks[leader].now_ms() if leader else 1 << 60
