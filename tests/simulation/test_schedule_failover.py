"""Schedules while leaders die: each planned time is published once, wherever between its note and its end that is.

Three simulated brokers; the schedules are kept where one leads, and some messages go to a partition of another. At a
step of the way somebody dies, by kill -9 or with its power: the leader of the schedules, the one of the partition, or
both. Seeds say who, and in which order everything else happens.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from typing import Any, Final
from unittest.mock import patch

import pytest

from penstock.engine.forwarding import Forwarding
from penstock.engine.partition import Partition
from penstock.engine.queues.schedules import firing
from penstock.engine.queues.schedules.machine import ScheduleMachine
from penstock.engine.queues.schedules.schedule import NAME, PLANNED_TIME
from penstock.engine.queues.schedules.schedules import NewSchedule
from penstock.engine.reading import Cursor
from penstock.errors import PenstockError
from penstock.testing.virtual_clock import run_virtual
from tests.simulation.cluster import SimulatedBroker
from tests.simulation.test_queue_features import QUEUE, Trial

STEPS: Final = ("noting", "noted", "sending", "appended", "published", "done", "kept")
SEEDS = range(2)
_FROZEN_S = 15.0
MINUTE_MS = 60_000
_MOST_BYTES = 1 << 20


class ScheduleTrial(Trial):
    """Two partitions of a queue, led by two brokers, and schedules for both."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, {})
        self._context = copy_context()
        self.fault: tuple[str, Callable[[], None]] | None = None
        """At which step what happens, once."""
        self.met: list[str] = []

    async def begin(self, *, skewed: bool = False) -> None:
        cluster = self.cluster
        for node_id in cluster.ids:
            if skewed and node_id != 1:
                cluster.clocks[node_id].jump_ms(-4000)
            cluster.start(node_id)
        await self.until(lambda: all(map(cluster.is_up, cluster.ids)))
        await self.until(lambda: len(cluster.lives[1].node.image.live()) == 3)

        async def create(broker: SimulatedBroker) -> None:
            topic = await broker.engine.create_topic(QUEUE, 2, assignment=[[1, 2, 3], [2, 3, 1]])
            await broker.engine.queues.attach(topic)
            await broker.engine.alter_queues(topic, lambda queues: {**queues, QUEUE: {}})

        await cluster.call(1, create, 20.0)
        await self.until(lambda: self.leader(QUEUE) and self.leader_of(1))

    async def add(self, *names: str) -> None:
        for name in names:

            async def add(broker: SimulatedBroker) -> None:
                topic = broker.engine.topics.get(QUEUE)
                assert topic is not None
                wanted = NewSchedule(name, "* * * * *", "UTC", b"x", name.encode())  # noqa: B023
                await broker.engine.schedules.add(topic, QUEUE, wanted)

            await self.ask(QUEUE, add)

    def leader_of(self, index: int) -> int:
        """0 if nobody leads."""
        for node_id, broker in self.cluster.lives.items():
            found = broker.engine.topics.get(QUEUE)
            if found is not None and found.partitions[index].led is not None:
                return node_id
        return 0

    def step(self, name: str) -> None:
        """The product has come to a step."""
        if self.fault is not None and self.fault[0] == name:
            act, self.fault = self.fault[1], None
            self.met.append(name)
            self.cluster.loop.call_soon(act, context=self._context.copy())  # it belongs to no broker

    def kill(self, *partitions: int) -> None:
        for node_id in {self.leader_of(index) for index in partitions} - {0}:
            self.cluster.kill(node_id, power_cut=self.random.random() < 0.5)

    def freeze(self) -> None:
        """The leader of the schedules knows of nothing for a while, and goes on where it was."""
        process = self.cluster.processes[self.leader_of(0)]
        process.pause()
        self.cluster.loop.call_later(_FROZEN_S, process.resume, context=self._context.copy())

    async def restart(self) -> None:
        for node_id in self.cluster.ids:
            if node_id not in self.cluster.processes:
                self.cluster.start(node_id)
        await self.until(lambda: all(map(self.cluster.is_up, self.cluster.ids)))

    async def until_minute(self, minute_ms: int, past_ms: int = 20_000) -> None:
        await self.until_ms(minute_ms + past_ms)

    async def until_ms(self, moment_ms: int) -> None:
        await asyncio.sleep(max(moment_ms - self.cluster.clocks[1].now_ms(), 0) / 1000)

    async def fires(self) -> list[tuple[str, int]]:
        """Name and planned time of all messages there are."""
        found: list[tuple[str, int]] = []
        for index in range(2):

            async def read(broker: SimulatedBroker) -> list[tuple[str, int]]:
                if broker.engine.topics.partition(QUEUE, index).led is None:  # noqa: B023
                    raise ConnectionError
                cursor, some = Cursor(broker.engine.topics.partition(QUEUE, index), 0), []  # noqa: B023
                while messages := await cursor.records(_MOST_BYTES, 0):
                    for each in messages:
                        said = dict(each.headers)
                        some.append(((said[NAME] or b"").decode(), int(said[PLANNED_TIME] or b"")))
                return some

            await self.until(lambda: self.leader_of(index))  # noqa: B023
            found += await self.cluster.call(self.leader_of(index), read, 5.0)
        return sorted(found, key=lambda fire: (fire[1], fire[0]))


@contextmanager
def watched(it: ScheduleTrial) -> Iterator[None]:
    """Have the trial know of each step of a round."""

    def after(owner: Any, name: str, step: str, is_it: Callable[..., bool] = lambda *_: True) -> Any:
        plain = getattr(owner, name)

        def called(self: Any, *arguments: Any, **more: Any) -> Any:
            answer = plain(self, *arguments, **more)
            if is_it(self, *arguments):
                it.step(step)
            return answer

        return patch.object(owner, name, called)

    def around(owner: Any, name: str, before: str, behind: str) -> Any:
        plain: Callable[..., Awaitable[Any]] = getattr(owner, name)

        async def called(self: Any, *arguments: Any, **more: Any) -> Any:
            it.step(before)
            answer = await plain(self, *arguments, **more)
            it.step(behind)
            return answer

        return patch.object(owner, name, called)

    with ExitStack() as stack:
        for each in (
            after(ScheduleMachine, "note", "noting"),
            around(firing._Runner, "_note_round", "due", "noted"),
            around(Forwarding, "publish_again", "sending", "published"),
            after(Partition, "append_checked", "appended", lambda self, *_: self.topic == QUEUE),
            after(ScheduleMachine, "done", "done"),
            around(firing._Runner, "_publish", "publishing", "kept"),
        ):
            stack.enter_context(each)
        yield


def play(seed: int, story: Callable[[ScheduleTrial], Awaitable[None]], *, skewed: bool = False) -> None:
    async def run() -> None:
        it = ScheduleTrial(seed)
        with watched(it):
            await it.begin(skewed=skewed)
            await story(it)
        assert it.cluster.crashes == []

    try:
        run_virtual(run, seed)
    finally:
        gc.collect()


def next_minute(it: ScheduleTrial) -> int:
    now = it.cluster.clocks[1].now_ms()
    return now - now % MINUTE_MS + MINUTE_MS


ignoring = pytest.mark.filterwarnings(  # the tasks of killed brokers
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine .* was never awaited:RuntimeWarning"
)
VICTIMS: Final = ((0,), (1,), (0, 1))


@ignoring
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_planned_time_is_there_once(step: str, seed: int) -> None:
    """Also if a second one dies on the way, in the next minute."""

    async def story(it: ScheduleTrial) -> None:
        await it.add("a", "b", "c", "d", "e")
        first = next_minute(it)
        await it.until_ms(first - 1000)
        victims = VICTIMS[(seed + STEPS.index(step)) % len(VICTIMS)]
        it.fault = step, lambda: it.kill(*victims)
        await it.until_minute(first)
        assert it.met == [step], "it never came to that"
        await it.restart()
        await it.until_ms(first + MINUTE_MS - 1000)
        again = it.random.choice(STEPS)
        it.fault = again, lambda: it.kill(0)
        await it.until_minute(first + MINUTE_MS)
        assert it.met == [step, again]
        await it.restart()
        await it.until_minute(first + 2 * MINUTE_MS)
        assert await it.fires() == [(name, first + turn * MINUTE_MS) for turn in range(3) for name in "abcde"]

    play(seed, story, skewed=seed == 1)


@ignoring
@pytest.mark.parametrize("step", STEPS)
def test_a_leader_that_was_away_does_nothing_twice(step: str) -> None:
    """It wakes up in the middle of a round that another one has ended, and of others since."""

    async def story(it: ScheduleTrial) -> None:
        await it.add("a", "b", "c", "d", "e")
        first = next_minute(it)
        await it.until_ms(first - 1000)
        it.fault = step, it.freeze
        await it.until_minute(first, 40_000)
        assert it.met == [step], "it never came to that"
        await it.until_minute(first + MINUTE_MS)
        assert await it.fires() == [(name, first + turn * MINUTE_MS) for turn in range(2) for name in "abcde"]

    play(STEPS.index(step), story)


@ignoring
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_missed_while_all_were_down_comes_once(seed: int) -> None:
    async def story(it: ScheduleTrial) -> None:
        await it.add("a", "b")
        first = next_minute(it)
        await it.until_minute(first)
        for node_id in it.cluster.ids:
            it.cluster.kill(node_id, power_cut=it.random.random() < 0.5)
        await asyncio.sleep(600)
        await it.restart()
        await it.until(lambda: it.leader_of(0) and it.leader_of(1))
        await asyncio.sleep(30)
        now = it.cluster.clocks[1].now_ms()
        found = await it.fires()
        assert found[:2] == [("a", first), ("b", first)]
        made_up = [planned for _, planned in found[2:]]
        assert len(found[2:]) == len(set(found[2:])) and made_up
        assert min(made_up) >= now - 2 * MINUTE_MS, "only the latest"

    play(seed, story)


@ignoring
@pytest.mark.parametrize("seed", SEEDS)
def test_what_people_did_holds_at_the_next_leader(seed: int) -> None:
    """Paused, resumed and removed, as it was told."""

    async def story(it: ScheduleTrial) -> None:
        await it.add("paused", "resumed", "removed", "left")

        async def change(broker: SimulatedBroker) -> None:
            topic = broker.engine.topics.get(QUEUE)
            assert topic is not None
            schedules = broker.engine.schedules
            await schedules.pause(topic, QUEUE, "paused")
            await schedules.pause(topic, QUEUE, "resumed")
            await schedules.resume(topic, QUEUE, "resumed")
            await schedules.remove(topic, QUEUE, "removed")

        first = next_minute(it)
        await it.ask(QUEUE, change)
        await it.fail_over()
        await it.until_minute(first)
        assert await it.fires() == [("left", first), ("resumed", first)]

    play(seed, story)


@ignoring
@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_does_not_lead_is_no_help(seed: int) -> None:
    """And says so, that another one may be asked."""

    async def story(it: ScheduleTrial) -> None:
        await it.add("a")
        follower = next(node_id for node_id in it.cluster.ids if node_id != it.leader_of(0))

        async def pause(broker: SimulatedBroker) -> None:
            topic = broker.engine.topics.get(QUEUE)
            assert topic is not None
            await broker.engine.schedules.pause(topic, QUEUE, "a")

        with pytest.raises(PenstockError) as refused:
            await it.cluster.call(follower, pause, 2.0)
        assert refused.value.retriable

    play(seed, story)
