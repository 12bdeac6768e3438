"""Messages with ids while leaders die: each is there once, and one that was confirmed is there, whoever leads.

The window is longer than a trial, so an id may be in the log once, all in all. Producers do what clients do: what was
not answered, or refused for now, they send again, to whoever leads by then; some number what they send, some do not,
and some ask a broker that does not lead.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pytest

from penstock.engine.forwarding import Outcome
from penstock.engine.once.memory import Memory
from penstock.engine.once.once import Once
from penstock.engine.publishing import ALL
from penstock.errors import Code, PenstockError
from penstock.storage.log.log import Appended
from penstock.testing.virtual_clock import run_virtual
from tests.message_ids import identified, publish
from tests.simulated_broker import read_all
from tests.simulation.client import UNANSWERED
from tests.simulation.cluster import SimulatedBroker, host_of
from tests.simulation.test_queue_features import QUEUE, Trial

SEEDS = range(6)
_IDS = 60
_FAILOVERS = 3
Message = tuple[str | None, bytes]


class Ids(Trial):
    """Producers that send the same ids over and over, each message with a value of its own."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, {"dedup-window": "1h"})
        self.sent: dict[bytes, str | None] = {}
        self.confirmed: dict[bytes, str | None] = {}
        self.wrong: list[str] = []
        self.again = 0
        """Batches that were sent again because nobody knew what had become of them."""
        self.is_over = False

    def messages(self) -> list[Message]:
        made: list[Message] = []
        for _ in range(self.random.choice((1, 1, 3))):
            number = self.random.randrange(_IDS + 5)
            made.append((f"id{number}" if number < _IDS else None, b"%d" % len(self.sent)))
            self.sent[made[-1][1]] = made[-1][0]
        return made

    # --- producers

    async def produce(self, producer_id: int = -1) -> None:
        """To who leads, one batch after the other."""
        sequence = 0
        while not self.is_over:
            messages = self.messages()
            numbers: dict[str, Any] = {}
            if producer_id >= 0:
                numbers = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
                sequence += len(messages)
            batch = identified(*messages, **numbers)
            is_known = producer_id >= 0 or all(each for each, _ in messages)

            async def send(broker: SimulatedBroker) -> Outcome:
                return await publish(broker.engine.topics.partition(QUEUE, 0), broker, batch)  # noqa: B023

            while not self.is_over:
                await self.until(lambda: self.is_over or self.leader(QUEUE))
                try:
                    outcome = await self.cluster.call(self.leader(QUEUE), send, 2.0)
                except (*UNANSWERED, PenstockError):
                    self.again += 1
                    if not is_known:
                        break  # it has no id: sent again it may be there twice
                    continue
                if outcome.error is None:
                    self.confirmed |= {value: each for each, value in messages}
                    break
                if not outcome.error.retriable:
                    self.wrong.append(f"{messages} of producer {producer_id}: {outcome.error}")
                    break
                if outcome.is_open and not is_known:
                    break
            await asyncio.sleep(self.random.choice((0.0, 0.01, 0.2)))

    async def produce_anywhere(self) -> None:
        """By a broker that may not lead, which sends it on."""
        while not self.is_over:
            messages = [each for each in self.messages() if each[0] is not None]
            if not messages:
                continue
            batch = bytes(identified(*messages))

            async def send(broker: SimulatedBroker) -> Appended:
                return await broker.engine.forwarding.publish(
                    broker.engine.topics.partition(QUEUE, 0),
                    batch,  # noqa: B023
                    ALL,
                    2.0,
                )

            while not self.is_over:
                try:
                    await self.cluster.call(self.random.choice((1, 2, 3)), send, 3.0)
                except PenstockError as error:
                    if not (error.retriable or error.code is Code.OUTCOME_UNKNOWN):
                        self.wrong.append(f"{messages}: {error}")
                        break
                    self.again += 1
                    await asyncio.sleep(0.05)
                except UNANSWERED:
                    self.again += 1
                    await asyncio.sleep(0.05)
                else:
                    self.confirmed |= {value: each for each, value in messages}
                    break
            await asyncio.sleep(self.random.choice((0.01, 0.2)))

    # --- what happens to brokers

    async def suffer(self) -> None:
        """Leaders die while producers go on; the dead come back."""
        tasks = [
            asyncio.ensure_future(each)
            for each in (self.produce(), self.produce(), self.produce(7), self.produce(8), self.produce_anywhere())
        ]
        for _ in range(_FAILOVERS):
            await asyncio.sleep(self.random.uniform(0.2, 2.0))
            victim = self.leader(QUEUE)
            await self.fail_over()
            await asyncio.sleep(self.random.uniform(0.0, 1.0))
            self.cluster.start(victim)
            await self.until(lambda: all(map(self.cluster.is_up, self.cluster.ids)))
            await self.until(lambda: len(self.partition.state.isr) == 3)
        await asyncio.sleep(1.0)
        self.is_over = True
        await asyncio.gather(*tasks)

    @property
    def partition(self) -> Any:
        return self.cluster.lives[self.leader(QUEUE) or 1].engine.topics.partition(QUEUE, 0)

    # --- judging

    async def judge(self) -> list[str]:
        await self.until(lambda: self.leader(QUEUE) and self.partition.is_settled)
        batches = await self.ask(QUEUE, lambda broker: read_all(broker.engine.topics.partition(QUEUE, 0)))
        values = [value for each in batches if not each.header.is_control for _, value in each.records]
        ids = Counter(self.sent[value] for value in values)
        lost = [value for value, each in self.confirmed.items() if value not in values and not (each and ids[each])]
        return [
            *self.wrong,
            *(f"{each} is there {count} times" for each, count in ids.items() if each is not None and count > 1),
            *(f"{value!r} is there {count} times" for value, count in Counter(values).items() if count > 1),
            *(f"{value!r} with id {self.sent[value]} was confirmed, and is not there" for value in lost),
        ]


def play(seed: int) -> tuple[Ids, list[str]]:
    async def run() -> tuple[Ids, list[str]]:
        it = Ids(seed)
        await it.begin(skewed=seed % 2 == 1)
        await it.suffer()
        return it, await it.judge()

    try:
        return run_virtual(run, seed)
    finally:
        gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the tasks of killed brokers
@pytest.mark.parametrize("seed", SEEDS)
def test_each_id_is_there_once_whoever_leads(seed: int) -> None:
    it, wrong = play(seed)
    assert wrong == []
    assert it.cluster.crashes == []
    assert len(it.confirmed) > 2 * _IDS and it.again


async def cut_off(it: Ids) -> list[Message]:
    """The leader takes an original and its duplicate while nobody follows, and dies; returns what it confirmed."""
    leader, confirmed = it.leader(QUEUE), []
    for node_id in set(it.cluster.ids) - {leader}:
        it.cluster.network.block(host_of(leader), host_of(node_id))
        it.cluster.network.block(host_of(node_id), host_of(leader))
    for message in (("a", b"1"), ("a", b"again")):

        async def send(broker: SimulatedBroker) -> Outcome:
            batch = identified(message)  # noqa: B023
            return await publish(broker.engine.topics.partition(QUEUE, 0), broker, batch)

        with suppress(*UNANSWERED):
            outcome = await it.cluster.call(leader, send, 0.5)
            if outcome.error is None:
                confirmed.append(message)
    assert it.partition.end_offset == 1
    it.cluster.kill(leader)
    await it.until(lambda: it.leader(QUEUE) not in (0, leader))
    return confirmed


def play_cut_off(seed: int) -> tuple[list[Message], list[bytes]]:
    async def run() -> tuple[list[Message], list[bytes]]:
        it = Ids(seed)
        await it.begin()
        confirmed = await cut_off(it)
        it.sent = {b"2": "a", b"again": "a"}
        for value in it.sent:

            async def send(broker: SimulatedBroker) -> Outcome:
                partition = broker.engine.topics.partition(QUEUE, 0)
                return await publish(partition, broker, identified(("a", value)))  # noqa: B023

            await it.until(lambda: it.leader(QUEUE))
            assert (await it.ask(QUEUE, send)).error is None
        batches = await it.ask(QUEUE, lambda broker: read_all(broker.engine.topics.partition(QUEUE, 0)))
        return confirmed, [value for each in batches for _, value in each.records]

    try:
        return run_virtual(run, seed)
    finally:
        gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_duplicate_of_what_only_a_dead_leader_had_is_no_duplicate() -> None:
    confirmed, there = play_cut_off(1)
    assert confirmed == [], "neither the original nor its duplicate was anywhere else"
    assert there == [b"2"]


# --- bugs that have to be found


async def _known_at_once(self: Once) -> None:
    self._is_known = True
    self._told.set()


def _nothing(self: Memory, time_ms: int, ids: Sequence[tuple[bytes, int]]) -> None:
    return None


def _told_at_once(base: int, last: int, timestamp: int) -> Appended:
    return Appended(base, -1, timestamp)


PLANTED: dict[str, Callable[[], Any]] = {
    "a new leader knows no ids": lambda: patch.object(Once, "recall", _known_at_once),
    "ids of new messages are not remembered": lambda: patch.object(Memory, "add", _nothing),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bugs_are_found(bug: str) -> None:
    with PLANTED[bug]():
        assert any(play(seed)[1] for seed in range(3)), f"{bug}, and no seed has found it"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_duplicate_that_is_told_too_early_is_found() -> None:
    with patch("penstock.engine.once.once.Appended", _told_at_once):
        assert play_cut_off(1)[0] == [("a", b"again")]
