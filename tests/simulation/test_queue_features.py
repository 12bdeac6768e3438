"""What queues can do besides, when the leader dies in the middle of it: what was told holds at the next leader.

Each test has one feature, on three simulated brokers; seeds say who dies how, and whether clocks agree.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import pytest

from penstock.engine.queues.answers import Figures, Want
from penstock.engine.queues.headers import ATTEMPTS, OFFSET, REASON
from penstock.engine.queues.receiving import Delivery
from penstock.engine.queues.verdicts import Change, Receipt, Verdict, VerdictKind
from penstock.engine.reading import Cursor
from penstock.errors import Code, PenstockError
from penstock.testing.virtual_clock import run_virtual
from tests.simulated_broker import batch_of, produce
from tests.simulation.client import UNANSWERED
from tests.simulation.cluster import SimulatedBroker, SimulatedCluster

T = TypeVar("T")
SEEDS = range(4)
QUEUE, LETTERS = "jobs", "dlq.jobs"
_MOST_BYTES = 1 << 20
_PATIENCE_S = 60.0
_SKEW_MS = 4000
ACK, NACK, RELEASE = Verdict(VerdictKind.ACK), Verdict(VerdictKind.NACK), Verdict(VerdictKind.RELEASE)


class Trial:
    """Three brokers, and one partition of a queue that all of them hold."""

    def __init__(self, seed: int, rules: Mapping[str, str]) -> None:
        self.cluster = SimulatedCluster(seed, brokers=3, defaults={"min.insync.replicas": "2"})
        self.random = self.cluster.random
        self._rules = {"visibility": "5s", "backoff": "none", "max-attempts": "3", **rules}

    async def begin(self, *, skewed: bool = False) -> None:
        """With `skewed`, the clocks of two brokers that may lead next are behind."""
        cluster = self.cluster
        for node_id in cluster.ids:
            if skewed and node_id != 1:
                cluster.clocks[node_id].jump_ms(-_SKEW_MS)
            cluster.start(node_id)
        await self.until(lambda: all(map(cluster.is_up, cluster.ids)))
        await self.until(lambda: len(cluster.lives[1].node.image.live()) == 3)

        async def create(broker: SimulatedBroker) -> None:
            topic = await broker.engine.create_topic(QUEUE, 1, assignment=[[1, 2, 3]])
            await broker.engine.create_topic(LETTERS, 1, assignment=[[3, 2, 1]])
            await broker.engine.queues.attach(topic)
            await broker.engine.alter_queues(topic, lambda queues: {**queues, QUEUE: self._rules})

        await cluster.call(1, create, 20.0)
        await self.until(lambda: self.leader(QUEUE) and self.leader(LETTERS))

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = self.cluster.loop.time() + _PATIENCE_S
        while not condition():
            assert self.cluster.loop.time() < deadline, f"never so; crashes: {self.cluster.crashes}"
            await asyncio.sleep(0.01)

    def leader(self, topic: str) -> int:
        """0 if nobody leads."""
        for node_id, broker in self.cluster.lives.items():
            found = broker.engine.topics.get(topic)
            if found is not None and found.partitions[0].led is not None:
                return node_id
        return 0

    async def fail_over(self) -> None:
        """The leader dies, by kill -9 or with its power, and another one leads."""
        victim = self.leader(QUEUE)
        self.cluster.kill(victim, power_cut=self.random.random() < 0.5)
        await self.until(lambda: self.leader(QUEUE) not in (0, victim))

    async def ask(self, topic: str, work: Callable[[SimulatedBroker], Awaitable[T]]) -> T:
        """Of whoever leads, until there is an answer that is not to be asked for again."""
        deadline = self.cluster.loop.time() + _PATIENCE_S
        while True:
            await self.until(lambda: self.leader(topic))
            try:
                return await self.cluster.call(self.leader(topic), work, 2.0)
            except PenstockError as error:
                if not error.retriable:
                    raise
            except UNANSWERED:
                pass
            assert self.cluster.loop.time() < deadline, "there is no answer"
            await asyncio.sleep(0.02)

    # --- what clients do

    async def send(self, *values: bytes) -> None:
        """One by one, so that each is asked about by itself."""
        for value in values:

            async def publish(broker: SimulatedBroker) -> None:
                partition = broker.engine.topics.partition(QUEUE, 0)
                partition.check_in_sync()
                await produce(partition, batch_of([value], broker.clock))  # noqa: B023

            await self.ask(QUEUE, publish)

    async def receive(self, most: int = 100, wait_s: float = 0.0) -> list[Delivery]:
        async def receive(broker: SimulatedBroker) -> list[Delivery]:
            partition = broker.engine.topics.partition(QUEUE, 0)
            return await broker.engine.receiving.receive(partition, Want(QUEUE, "c", most), _MOST_BYTES, wait_s)

        return await self.ask(QUEUE, receive)

    async def settle(self, deliveries: list[Delivery], verdict: Verdict) -> None:
        for each in deliveries:
            change = Change(each.message.offset, each.message.offset, verdict)

            async def settle(broker: SimulatedBroker) -> None:
                partition = broker.engine.topics.partition(QUEUE, 0)
                await broker.engine.queues.settle(partition, QUEUE, Receipt(each.lease_id), [change])  # noqa: B023

            await self.ask(QUEUE, settle)

    async def figures(self) -> Figures:
        return await self.ask(
            QUEUE, lambda broker: broker.engine.queues.figures(broker.engine.topics.partition(QUEUE, 0), QUEUE)
        )

    async def letters(self) -> list[tuple[int, str, int]]:
        """Offset, reason and attempts of each, when nothing is dying any more."""
        while (await self.figures()).dying:  # noqa: ASYNC110 - it is asked
            await asyncio.sleep(0.05)

        async def read(broker: SimulatedBroker) -> list[tuple[int, str, int]]:
            found = []
            cursor = Cursor(broker.engine.topics.partition(LETTERS, 0), 0)
            while messages := await cursor.records(_MOST_BYTES, 0):
                for each in messages:
                    said = {name: (value or b"").decode() for name, value in each.headers}
                    found.append((int(said[OFFSET]), said[REASON], int(said[ATTEMPTS])))
            return found

        return await self.ask(LETTERS, read)


Test = Callable[[Trial], Coroutine[Any, Any, None]]


def trial(skewed: bool = False, **rules: str) -> Callable[[Test], Callable[[int], None]]:
    """With these rules; `_` in their names is a hyphen."""

    def made(test: Test) -> Callable[[int], None]:
        @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the tasks of killed brokers
        @pytest.mark.parametrize("seed", SEEDS)
        def run(seed: int) -> None:
            async def play() -> None:
                it = Trial(seed, {name.replace("_", "-"): text for name, text in rules.items()})
                await it.begin(skewed=skewed and seed % 2 == 1)
                await test(it)
                assert it.cluster.crashes == []

            try:
                run_virtual(play, seed)
            finally:
                gc.collect()

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return made


def offsets(deliveries: list[Delivery]) -> list[int]:
    return [each.message.offset for each in deliveries]


@trial(skewed=True, ttl="3s")
async def test_what_has_expired_does_not_come_back(it: Trial) -> None:
    """Also if whoever leads next has a clock by which its time is not over."""
    await it.send(*[b"old"] * 5)
    await asyncio.sleep(3.5)
    await it.send(b"fresh")
    fresh = await it.receive()
    assert offsets(fresh) == [5]
    await it.settle(fresh, ACK)
    await it.fail_over()
    assert await it.receive(wait_s=1.0) == []
    figures = await it.figures()
    assert figures.ready == figures.leased == figures.dying == 0


@trial(ttl="10m")
async def test_nothing_expires_by_a_wall_clock_that_jumps(it: Trial) -> None:
    """Nor what was sent after it was set back, which says an earlier time; also if it jumps at the next leader."""
    await it.send(b"before")
    for by_ms, there in ((3_600_000, [0]), (-7_200_000, [0, 1])):
        for node_id in it.cluster.ids:
            it.cluster.clocks[node_id].jump_ms(by_ms)
        if by_ms < 0:
            await it.send(b"set back")
        deliveries = await it.receive()
        assert offsets(deliveries) == there
        await it.settle(deliveries, RELEASE)
    await it.fail_over()
    assert offsets(await it.receive()) == [0, 1]


@trial(ttl="3s", on_expiry="dead-letter")
async def test_what_has_expired_is_one_dead_letter(it: Trial) -> None:
    await it.send(*[b"old"] * 5)
    await asyncio.sleep(3.5)
    assert await it.receive() == []
    await asyncio.sleep(it.random.choice((0, 0.005, 0.05, 0.5)))  # nothing is noted yet, or a letter is under way
    await it.fail_over()
    assert await it.receive(wait_s=0.5) == []
    assert sorted(await it.letters()) == [(offset, "expired", 0) for offset in range(5)]


@trial(max_size="10")
async def test_a_full_queue_refuses_at_the_next_leader_too(it: Trial) -> None:
    """As soon as that has read its ledger."""
    await it.send(*[b"x"] * 10)
    await _expect_full(it)
    await it.settle(await it.receive(3), ACK)
    await it.fail_over()
    assert (await it.figures()).ready == 7
    await it.send(*[b"x"] * 3)
    await _expect_full(it)
    figures = await it.figures()
    assert (figures.ready, figures.leased, figures.next) == (10, 0, 3)
    assert len(await it.receive()) == 10


async def _expect_full(it: Trial) -> None:
    with pytest.raises(PenstockError) as refused:
        await it.send(b"too much")
    assert refused.value.code is Code.QUEUE_FULL


@trial(max_size="10", on_full="drop-oldest")
async def test_a_full_queue_drops_the_oldest_at_the_next_leader_too(it: Trial) -> None:
    await it.send(*[b"x"] * 15)
    assert (await it.figures()).ready == 10
    await it.fail_over()
    assert (await it.figures()).ready == 10
    await it.send(*[b"x"] * 2)
    assert (await it.figures()).ready == 10
    assert offsets(await it.receive()) == list(range(7, 17))


@trial(max_size="10", on_full="dead-letter")
async def test_a_full_queue_buries_each_of_the_oldest_once(it: Trial) -> None:
    await it.send(*[b"x"] * 15)
    await it.fail_over()  # letters may be under way
    assert (await it.figures()).ready == 10
    await it.send(*[b"x"] * 2)
    assert offsets(await it.receive()) == list(range(7, 17))
    assert sorted(await it.letters()) == [(offset, "overflow", 0) for offset in range(7)]


@trial(backoff="fixed:10s")
async def test_a_wait_goes_on_at_the_next_leader(it: Trial) -> None:
    """Never shorter, and what waits is not lost."""
    await it.send(b"a", b"b")
    deliveries = await it.receive()
    began = it.cluster.loop.time()
    await it.settle(deliveries, NACK)
    ended = it.cluster.loop.time()
    await asyncio.sleep(it.random.uniform(0, 5))
    await it.fail_over()
    found: list[Delivery] = []
    while len(found) < 2:
        found += await it.receive(wait_s=0.1)
        assert not found or it.cluster.loop.time() >= began + 10, "early"
        assert it.cluster.loop.time() < ended + 10 + 1, "late"
    assert [(each.message.offset, each.attempts, each.deliveries) for each in found] == [(0, 1, 2), (1, 1, 2)]


@trial(skewed=True, backoff="fixed:10s")
async def test_a_wait_is_no_longer_by_a_clock_that_is_behind(it: Trial) -> None:
    await it.send(b"a")
    await it.settle(await it.receive(), NACK)
    await it.fail_over()
    moved_at = it.cluster.loop.time()
    while not await it.receive(wait_s=0.1):
        assert it.cluster.loop.time() < moved_at + 10 + 1, "late"


@trial()
async def test_a_release_costs_no_attempt_whoever_leads(it: Trial) -> None:
    """Twice as often as it may fail, and one that has failed stays so."""
    await it.send(b"a")
    await it.settle(await it.receive(), NACK)
    for turn in range(6):
        (each,) = await it.receive(wait_s=1.0)
        assert (each.attempts, each.deliveries) == (1, turn + 2)
        await it.settle([each], RELEASE)
        if turn in (1, 4):
            await it.fail_over()
            for node_id in it.cluster.ids:
                if node_id not in it.cluster.processes:
                    it.cluster.start(node_id)
            await it.until(lambda: all(map(it.cluster.is_up, it.cluster.ids)))
            await it.until(lambda: len(_in_sync(it)) == 3)
    assert await it.letters() == []


def _in_sync(it: Trial) -> tuple[int, ...]:
    leader = it.cluster.lives.get(it.leader(QUEUE))
    return leader.engine.topics.partition(QUEUE, 0).state.isr if leader is not None else ()


@trial(backoff="fixed:1s")
async def test_what_was_purged_stays_away(it: Trial) -> None:
    """What was ready, leased and delayed; a receipt of it is stale."""
    await it.send(*[b"x"] * 10)
    await it.settle(await it.receive(2), NACK)
    leased = await it.receive(3)
    purged = await it.ask(QUEUE, _purge)
    assert purged == 10
    await it.fail_over()
    await it.send(b"new")
    found = await it.receive()
    await asyncio.sleep(6.0)
    assert offsets(found) == [10]
    with pytest.raises(PenstockError) as stale:
        await it.settle(leased, ACK)
    assert stale.value.code is Code.STALE_RECEIPT
    assert offsets(await it.receive()) == [10]  # its lease has ended meanwhile
    assert await it.letters() == []


@trial()
async def test_a_purge_that_was_under_way_is_whole_or_nothing(it: Trial) -> None:
    await it.send(*[b"x"] * 10)
    leader = it.leader(QUEUE)
    purge = asyncio.create_task(it.cluster.call(leader, _purge, 2.0))
    await asyncio.sleep(it.random.uniform(0, 0.03))
    is_told = purge.done()
    await it.fail_over()
    left = Counter(offsets(await it.receive()))
    assert left in (Counter(), Counter(range(10)))
    assert not (is_told and left), "it was told, and they are there"
    purge.cancel()


async def _purge(broker: SimulatedBroker) -> int:
    return await broker.engine.queues.purge(broker.engine.topics.partition(QUEUE, 0), QUEUE)
