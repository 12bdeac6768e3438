"""The survey adds groups up: by state, by members, by what they have yet to read."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from penstock.engine.groups.consumer_requests import ConsumerHeartbeat
from penstock.engine.groups.machine import GroupMachine
from penstock.engine.groups.offsets import CommitRequest, NewOffset
from penstock.engine.groups.topic_patterns import SEES_ALL
from penstock.engine.groups.topic_view import EngineTopics
from penstock.engine.partition import Partition
from penstock.engine.partition_state import alone
from penstock.engine.topic_config import make_config
from penstock.engine.topics import Topic, Topics
from penstock.observe import logs
from penstock.ports.disk import Space
from penstock.server import survey
from penstock.server.survey import GROUP_STATES, Survey
from penstock.server.system_clock import SystemClock
from penstock.testing.virtual_clock import run_virtual


class SurveyedBroker:
    """Topic `orders`, of which this broker holds partition 0 with 2,000 records, and not partition 1."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        config = make_config({}, {})
        held, elsewhere = (
            Partition("orders", UUID(int=1), index, alone(1, 0), config, self.clock, 1) for index in (0, 1)
        )
        log: Any = SimpleNamespace()
        held.log, held.high_watermark = log, 2_000
        topics = Topics()
        topics.add(Topic("orders", UUID(int=1), config, [held, elsewhere]))
        self.machine = GroupMachine(0, new_id=lambda: "id", topics=EngineTopics(topics))
        self.shards = [SimpleNamespace(loaded=self.machine), SimpleNamespace(loaded=None)]
        self.looks = 0
        self.engine: Any = SimpleNamespace(
            clock=self.clock, topics=topics, disk_space=self._space, groups=SimpleNamespace(shards=self.shards)
        )

    async def _space(self) -> Space:
        self.looks += 1
        return Space("/data", 1_000, 400)

    def commit(self, group: str, **offsets: int) -> None:
        spots = {("orders", int(name[1:])): NewOffset(offset) for name, offset in offsets.items()}
        self.machine.commit(0, None, CommitRequest(group, "", -1, None, spots))

    def join(self, group: str, member: str) -> None:
        request = ConsumerHeartbeat(
            group, member, 0, rebalance_timeout_ms=1000, subscribed_topic_names=("orders",), topic_partitions=()
        )
        self.machine.consumer_heartbeat(0, None, request, SEES_ALL)


async def _taken(world: SurveyedBroker) -> dict[str, Any]:
    taker = Survey(world.engine)
    assert set(taker.figures()) == {"group_survey_s"}
    await taker.take()
    return dict(taker.figures())


def test_lag_of_what_is_held_here_and_offsets_of_what_is_not() -> None:
    world = SurveyedBroker()
    world.commit("fast", p0=2_000)
    world.commit("slow", p0=500, p1=7)
    world.commit("ahead", p0=2_001)
    world.commit("edge", p0=1_000)
    figures = run_virtual(lambda: _taken(world), seed=1)
    assert (figures["group_lag_records"], figures["group_lag_total"], figures["group_lag_unknown"]) == (1_500, 2_500, 1)
    assert figures["groups_behind"] == {"1": 2, "1000": 2, "100000": 0, "10000000": 0}
    assert (figures["disk_total_bytes"], figures["disk_free_bytes"]) == (1_000, 400)


def test_groups_by_state_and_members() -> None:
    world = SurveyedBroker()
    world.commit("offsets-only", p0=1)
    world.join("busy", "a")
    world.join("busy", "b")
    figures = run_virtual(lambda: _taken(world), seed=1)
    assert set(figures["groups"]) == set(GROUP_STATES)
    assert figures["groups"]["Empty"] == 1
    assert sum(figures["groups"].values()) == 2
    assert figures["group_members"] == 2


def test_nothing_is_looked_at_while_nobody_scrapes() -> None:
    world = SurveyedBroker()

    async def run() -> list[int]:
        survey = Survey(world.engine, every_s=5.0)
        task = asyncio.ensure_future(survey.run())
        looks = []
        for asks in (False, False, True, False):
            if asks:
                survey.figures()
            await asyncio.sleep(20)
            looks.append(world.looks)
        task.cancel()
        return looks

    assert run_virtual(run, seed=1) == [1, 1, 2, 2]


def test_a_disk_that_does_not_answer_is_asked_again() -> None:
    world = SurveyedBroker()

    async def fails() -> Space:
        world.looks += 1
        raise OSError("gone")

    async def run() -> dict[str, Any]:
        survey = Survey(world.engine, every_s=5.0)
        answers, world.engine.disk_space = world.engine.disk_space, fails
        task = asyncio.ensure_future(survey.run())
        await asyncio.sleep(20)
        world.engine.disk_space = answers
        survey.figures()
        await asyncio.sleep(20)
        task.cancel()
        return dict(survey.figures())

    assert run_virtual(run, seed=1)["disk_free_bytes"] == 400


def test_a_bug_in_counting_groups_does_not_stop_the_watch_on_the_disk(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = SurveyedBroker()
    monkeypatch.setattr(survey, "log_", logs.get_logger("broker"))  # nobody has used up its limits

    async def run() -> tuple[dict[str, Any], dict[str, Any]]:
        world.engine.clock = SimpleNamespace(monotonic=asyncio.get_running_loop().time)
        taker = Survey(world.engine, every_s=5.0)
        task = asyncio.ensure_future(taker.run())
        groups, world.engine.groups = world.engine.groups, None
        for _ in range(80):
            taker.figures()
            await asyncio.sleep(5)
        broken, world.engine.groups = dict(taker.figures()), groups
        await asyncio.sleep(20)
        task.cancel()
        return broken, dict(taker.figures())

    broken, mended = run_virtual(run, seed=1)
    assert broken["disk_free_bytes"] == 400 and world.looks > 70
    assert broken["group_survey_s"] > 300 and "groups" not in broken, "PenstockSurveyStuck would not fire"
    assert mended["group_survey_s"] < 30 and mended["groups"]["Empty"] == 0
    assert [record.getMessage() for record in caplog.records] == ["figures cannot be taken"], "one line a minute"
