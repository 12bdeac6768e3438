"""What is set for groups on a broker of its own: kept, in force, refused."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

import pytest
from tests.simulated_broker import running, virtual
from tests.unit.engine.test_engine import Machine

from penstock.engine.groups import group_configs
from penstock.engine.groups.consumer_requests import ConsumerLimits
from penstock.engine.groups.group_configs import GROUPS, GroupConfigs, group_key, read_group_key
from penstock.errors import Code, PenstockError

LIMIT, LOCK = "share.delivery.count.limit", "share.record.lock.duration.ms"
ODD = "a/b c%2Fß\x00\n"


def setting(name: str, value: str) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
    return lambda given: {**given, name: value}


def nothing(_: Mapping[str, str]) -> Mapping[str, str]:
    return {}


async def refused(
    configs: GroupConfigs, group_id: str, alter: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> Code:
    with pytest.raises(PenstockError) as caught:
        await configs.alter(group_id, alter)
    return caught.value.code


@pytest.mark.parametrize("group_id", ["orders", ODD, "..", "größer", "x" * 1024])
def test_any_group_has_a_key_of_its_own(group_id: str) -> None:
    key = group_key(group_id)
    assert key.startswith(GROUPS) and "/" not in key.removeprefix(GROUPS) and key.isascii()
    assert read_group_key(key) == group_id


@virtual
async def test_what_is_set_is_in_force_at_once_and_after_a_start() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        configs = broker.engine.group_configs
        assert configs.get("g") == {} and configs.of("g").delivery_limit == 5
        await configs.alter("g", setting(LIMIT, " 3 "))
        await configs.alter(ODD, setting(LOCK, "20000"))
        assert configs.get("g") == {LIMIT: "3"} and configs.of("g").delivery_limit == 3
        assert configs.of("g") is configs.of("g"), "made once"
        await configs.alter("g", setting(LIMIT, "4"))
        assert configs.of("g").delivery_limit == 4
    async with running(machine.broker()) as broker:
        configs = broker.engine.group_configs
        assert configs.configured() == sorted(["g", ODD])
        assert configs.of("g").delivery_limit == 4 and configs.of(ODD).record_lock_ms == 20_000
        await configs.alter("g", nothing)
        assert configs.configured() == [ODD]
        assert configs.get("g") == {} and configs.of("g").delivery_limit == 5
        assert await machine.store.get(group_key("g")) is None


@virtual
async def test_two_changes_at_once_both_count_and_one_that_changes_nothing_writes_nothing() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        configs = broker.engine.group_configs
        await asyncio.gather(configs.alter("g", setting(LIMIT, "3")), configs.alter("g", setting(LOCK, "20000")))
        assert configs.get("g") == {LIMIT: "3", LOCK: "20000"}
        before = await machine.store.get(group_key("g"))
        await configs.alter("g", setting(LIMIT, "3"))
        await configs.alter("g", setting(LIMIT, "9"), validate_only=True)
        assert await machine.store.get(group_key("g")) == before
        assert configs.get("g") == {LIMIT: "3", LOCK: "20000"}


@virtual
async def test_a_change_whose_answer_is_late_does_not_undo_the_next_one() -> None:
    store = Machine().store
    configs, transact = GroupConfigs(store), store.transact
    late = iter((1.0, 0.0))

    async def slow(**asked: Any) -> int:
        revision = await transact(**asked)
        await asyncio.sleep(next(late))
        return revision

    with patch.object(store, "transact", slow):
        await asyncio.gather(configs.alter("g", setting(LIMIT, "3")), configs.alter("g", setting(LOCK, "20000")))
    assert configs.get("g") == {LIMIT: "3", LOCK: "20000"}


@virtual
async def test_what_is_refused_changes_nothing() -> None:
    machine = Machine()

    def wrong(_: Mapping[str, str]) -> Mapping[str, str]:
        raise PenstockError(Code.INVALID_REQUEST, "wrong")

    async with running(machine.broker()) as broker:
        configs = broker.engine.group_configs
        await configs.alter("g", setting(LIMIT, "3"))
        assert await refused(configs, "g", setting(LIMIT, "11")) is Code.INVALID_CONFIG
        assert await refused(configs, "g", wrong) is Code.INVALID_REQUEST
        assert await refused(configs, "", setting(LIMIT, "3")) is Code.INVALID_REQUEST
        assert await refused(configs, "x" * 1025, setting(LIMIT, "3")) is Code.INVALID_GROUP_ID
        with pytest.raises(PenstockError):
            await configs.alter("g", setting(LIMIT, "11"), validate_only=True)
        assert configs.configured() == ["g"] and configs.get("g") == {LIMIT: "3"}


@virtual
async def test_so_many_groups_can_have_settings_of_their_own() -> None:
    with patch.object(group_configs, "MAX_CONFIGURED", 2):
        await _fill_up(Machine())


async def _fill_up(machine: Machine) -> None:
    async with running(machine.broker()) as broker:
        configs = broker.engine.group_configs
        for group_id in ("a", "b"):
            await configs.alter(group_id, setting(LIMIT, "3"))
        assert await refused(configs, "c", setting(LIMIT, "3")) is Code.LIMIT_EXCEEDED
        await configs.alter("c", nothing)
        await configs.alter("a", setting(LIMIT, "4"))
        await configs.alter("a", nothing)
        await configs.alter("c", setting(LIMIT, "3"))
        assert configs.configured() == ["b", "c"]


@virtual
async def test_groups_have_what_their_broker_has_otherwise() -> None:
    machine = Machine()
    configs = GroupConfigs(machine.store, ConsumerLimits(session_timeout_ms=6_000, heartbeat_interval_ms=200))
    assert configs.of("g").consumer_session_timeout_ms == 6_000
    await configs.alter("g", setting("consumer.heartbeat.interval.ms", "300"))
    assert configs.of("g").consumer_heartbeat_interval_ms == 300
    assert configs.of("g").consumer_session_timeout_ms == 6_000
