"""What is set for groups, in a cluster of three: every broker hears of it, once all of them go by it."""

import asyncio
from typing import Any

import pytest
from tests.unit.cluster.trial import Trial, trial

from penstock.cluster.image import ATTACHES_FROM
from penstock.engine.groups.group_configs import GROUPS, GroupConfigs
from penstock.errors import Code, PenstockError
from penstock.ports.metadata import MetadataUnavailable

LIMIT, LOCK = "share.delivery.count.limit", "share.record.lock.duration.ms"


def configs(trial: Trial, node_id: int) -> GroupConfigs:
    return trial.cluster.lives[node_id].engine.group_configs


async def alter(trial: Trial, node_id: int, name: str, value: str) -> None:
    """At one broker, which goes by it when this returns."""

    async def work(broker: Any) -> None:
        found: GroupConfigs = broker.engine.group_configs
        await found.alter("g", lambda given: {**given, name: value})
        assert found.get("g")[name] == value

    await trial.do(node_id, work)


async def begun(trial: Trial) -> None:
    await trial.until(lambda: trial.cluster.lives[1].node.image.level >= ATTACHES_FROM)


@trial
async def test_every_broker_goes_by_it_and_so_does_one_that_starts(trial: Trial) -> None:
    await begun(trial)
    await alter(trial, 2, LIMIT, "3")
    await trial.until(lambda: all(configs(trial, each).of("g").delivery_limit == 3 for each in (1, 2, 3)))
    trial.cluster.kill(3)
    await asyncio.gather(alter(trial, 1, LIMIT, "4"), alter(trial, 2, LOCK, "20000"))
    await trial.until(lambda: all(configs(trial, each).get("g") == {LIMIT: "4", LOCK: "20000"} for each in (1, 2)))
    trial.cluster.start(3)
    await trial.until(lambda: trial.cluster.is_up(3))
    assert configs(trial, 3).of("g").record_lock_ms == 20_000

    async def unset(broker: Any) -> None:
        await broker.engine.group_configs.alter("g", lambda given: {})
        assert broker.engine.group_configs.configured() == []

    await trial.do(3, unset)
    assert not trial.cluster.etcd.state.list(GROUPS)
    await trial.until(lambda: all(configs(trial, each).of("g").delivery_limit == 5 for each in (1, 2)))


@trial
async def test_nothing_is_set_while_a_broker_may_know_nothing_of_it(trial: Trial) -> None:
    await begun(trial)
    trial.cluster.lives[1].node.image.level = ATTACHES_FROM - 1
    with pytest.raises(PenstockError, match="feature level 1, and level 2 needs every broker") as refused:
        await alter(trial, 1, LIMIT, "3")
    assert refused.value.code is Code.NOT_AVAILABLE and refused.value.help
    assert not trial.cluster.etcd.state.list(GROUPS)


@trial
async def test_whoever_gets_no_answer_of_the_store_is_told_so(trial: Trial) -> None:
    await begun(trial)

    async def silent(**_: Any) -> int:
        raise MetadataUnavailable("no answer")

    trial.cluster.lives[1].engine.group_configs._store.transact = silent  # type: ignore[method-assign]
    with pytest.raises(PenstockError, match="settings of group 'g' may or may not be changed") as refused:
        await alter(trial, 1, LIMIT, "3")
    assert refused.value.code is Code.NOT_AVAILABLE
