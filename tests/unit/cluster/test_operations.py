"""What an operator asks for becomes one change in the store, or none and a reason; whoever else writes meanwhile."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson
import pytest

from penstock.cluster import keys
from penstock.cluster.image import CORDON, DRAINED, BrokerRecord, End, Image
from penstock.cluster.operations import Operations, Outcomes
from penstock.cluster.watcher import Watcher
from penstock.engine.partition_state import NOBODY, PartitionState
from penstock.engine.topics import TopicRecord
from penstock.errors import Code, PenstockError
from penstock.testing.memory_metadata import SimulatedEtcd
from penstock.testing.virtual_clock import VirtualClock, run_virtual

TOPIC = UUID(int=7)
PLACE = ("t", 0)
SETTLED = PartitionState((1, 2, 3), (1, 2, 3), 1, 4)


class Scene:
    """Brokers 1 to 5, of which 5 is known and not there; topic t with one partition on 1, 2 and 3."""

    def __init__(self, state: PartitionState = SETTLED) -> None:
        self.etcd = SimulatedEtcd(3)
        self.admin = self.etcd.client("admin")
        self.link = self.etcd.link("broker 1")
        store = self.etcd.client("broker 1")
        self.image = Image()
        self.failures: list[BaseException] = []
        self.watcher = Watcher(store, self.image, VirtualClock(), self.failures.append, name="the store")
        self.operations = Operations(store, self.watcher, self.image)
        self._first = state

    async def begin(self) -> "Scene":
        put = {keys.TOPICS + "t": TopicRecord(TOPIC, 1, {}, 0).encode()}
        put[keys.partition_key(TOPIC, 0)] = self._first.encode()
        for broker_id in range(1, 6):
            put[keys.member_key(broker_id)] = orjson.dumps({"incarnation": 1, "token": ""})
            put[keys.admitted_key(broker_id)] = orjson.dumps({"incarnation": 1})
            if broker_id < 5:
                record = BrokerRecord(broker_id, f"b{broker_id}", 9092, f"b{broker_id}", 9093, "", 1, True)
                put[keys.broker_key(broker_id)] = record.encode()
        await self.admin.transact(put=put)
        await self.watcher.start()
        self._running = asyncio.ensure_future(self.watcher.run())
        return self

    def state(self) -> PartitionState:
        entry = self.etcd.state.get(keys.partition_key(TOPIC, 0))
        assert entry is not None
        return replace(PartitionState.decode(entry.value, 0), revision=0)

    async def write(self, state: PartitionState) -> None:
        await self.admin.transact(put={keys.partition_key(TOPIC, 0): state.encode()})

    def settings(self, broker_id: int | None) -> dict[str, str] | None:
        entry = self.etcd.state.get(keys.config_key(broker_id))
        return None if entry is None else orjson.loads(entry.value)


def scene(
    state: PartitionState = SETTLED,
) -> Callable[[Callable[[Scene], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Run a test with a scene, in virtual time."""

    def decorated(test: Callable[[Scene], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        async def play() -> None:
            await test(await Scene(state).begin())

        def run() -> None:
            run_virtual(play, 1)

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorated


def only(outcomes: Outcomes) -> Code | None:
    [outcome] = outcomes.values()
    return None if outcome is None else outcome.code


# --- moving


@scene()
async def test_a_move_is_in_the_store_and_in_the_image_when_it_is_answered(scene: Scene) -> None:
    assert only(await scene.operations.move({PLACE: [4, 2]})) is None
    assert scene.state() == SETTLED.move_to((4, 2))
    assert [(entry.name, index, state.target) for entry, index, state in scene.operations.moving()] == [
        ("t", 0, (4, 2))
    ]


@scene()
async def test_a_move_to_where_it_is_changes_nothing(scene: Scene) -> None:
    before = scene.etcd.state.revision
    assert only(await scene.operations.move({PLACE: [1, 2, 3]})) is None
    assert scene.etcd.state.revision == before
    await scene.operations.move({PLACE: [4, 2]})
    before = scene.etcd.state.revision
    assert only(await scene.operations.move({PLACE: [4, 2]})) is None
    assert scene.etcd.state.revision == before, "the same move again began anew"


@scene()
async def test_another_order_of_the_same_brokers_is_a_move(scene: Scene) -> None:
    await scene.operations.move({PLACE: [3, 1, 2]})
    assert scene.state().target == (3, 1, 2)


@scene()
async def test_a_move_is_taken_back_to_where_it_came_from_over_any_number_of_targets(scene: Scene) -> None:
    await scene.operations.move({PLACE: [4]})
    await scene.operations.move({PLACE: [4, 3]})
    assert only(await scene.operations.move({PLACE: None})) is None
    assert scene.state().target == (1, 2, 3)
    assert set(scene.state().replicas) == {1, 2, 3, 4}


@scene()
async def test_what_does_not_move_cannot_be_taken_back(scene: Scene) -> None:
    assert only(await scene.operations.move({PLACE: None})) is Code.NO_REASSIGNMENT


@scene()
async def test_one_that_is_away_may_stay_where_another_one_is_replaced(scene: Scene) -> None:
    """Or of two lost brokers none could be replaced."""
    await scene.admin.transact(delete=[keys.broker_key(3)])
    assert await scene.watcher.until(lambda: 3 not in scene.image.brokers, 5.0)
    assert only(await scene.operations.move({PLACE: [4, 2, 3]})) is None
    assert scene.state().target == (4, 2, 3)


@scene()
async def test_wrong_targets_are_refused_each_for_itself(scene: Scene) -> None:
    for target, named in (([], "no broker"), ([1, 1], "twice"), ([9], "broker 9 is unknown"), ([5], "5 is not there")):
        [error] = (await scene.operations.move({PLACE: target})).values()
        assert error is not None
        assert error.code is Code.INVALID_ASSIGNMENT
        assert named in str(error)
    outcomes = await scene.operations.move({("t", 1): [4], ("none", 0): [4], PLACE: [4]})
    codes = [error and error.code for error in outcomes.values()]
    assert codes == [Code.UNKNOWN_TOPIC, Code.UNKNOWN_TOPIC, None]
    assert scene.state().target == (4,)


@scene()
async def test_a_state_that_somebody_else_changes_meanwhile_is_moved_as_it_is_then(scene: Scene) -> None:
    asked = asyncio.ensure_future(scene.operations.move({PLACE: [4]}))
    changed = SETTLED.with_isr((1, 2), 2).led_by(2)
    while not asked.done():
        await scene.write(changed)
        await asyncio.sleep(0.0004)
    assert only(asked.result()) is None
    await scene.operations.move({PLACE: [4]})
    assert scene.state() == changed.move_to((4,))


@scene()
async def test_a_store_that_does_not_answer_is_named(scene: Scene) -> None:
    scene.link.cut = True
    [error] = (await scene.operations.move({PLACE: [4]})).values()
    assert error is not None
    assert error.code is Code.NOT_AVAILABLE
    assert "the store" in str(error)
    with pytest.raises(PenstockError, match="the store") as refused:
        await scene.operations.alter_settings(1, lambda _: {CORDON: DRAINED}, validate_only=False)
    assert refused.value.code is Code.NOT_AVAILABLE


# --- electing


@scene(replace(SETTLED, leader=3))
async def test_who_should_lead_leads_in_a_new_epoch(scene: Scene) -> None:
    assert only(await scene.operations.elect([PLACE])) is None
    assert scene.state() == replace(SETTLED, leader_epoch=5)
    assert only(await scene.operations.elect([PLACE])) is Code.ELECTION_NOT_NEEDED
    assert await scene.operations.elect(None) == {}, "those that need none are left out"


@scene(replace(SETTLED, leader=3, isr=(2, 3)))
async def test_who_is_not_in_sync_is_not_elected(scene: Scene) -> None:
    assert only(await scene.operations.elect([PLACE])) is Code.PREFERRED_LEADER_NOT_AVAILABLE
    assert scene.state().leader_epoch == 4


@scene(replace(SETTLED, replicas=(5, 2, 3), isr=(5, 2, 3), leader=3))
async def test_who_is_not_there_is_not_elected(scene: Scene) -> None:
    assert only(await scene.operations.elect([PLACE])) is Code.PREFERRED_LEADER_NOT_AVAILABLE


@pytest.mark.parametrize("how", ["drained", "leaving"])
def test_who_shall_lead_nothing_is_not_elected(how: str) -> None:
    @scene(replace(SETTLED, leader=3))
    async def drained(scene: Scene) -> None:
        record = replace(scene.image.brokers[1], leaving=how == "leaving")
        put = {keys.broker_key(1): record.encode()}
        if how == "drained":
            put[keys.config_key(1)] = orjson.dumps({CORDON: DRAINED})
        await scene.admin.transact(put=put)
        await scene.watcher.refresh()
        told = {"drained": Code.ELECTION_NOT_NEEDED, "leaving": Code.PREFERRED_LEADER_NOT_AVAILABLE}
        assert only(await scene.operations.elect([PLACE])) is told[how]
        assert scene.state().leader == 3

    drained()


@scene()
async def test_a_partition_that_is_led_is_never_led_uncleanly(scene: Scene) -> None:
    assert only(await scene.operations.elect([PLACE], unclean=True)) is Code.ELECTION_NOT_NEEDED
    assert scene.state() == SETTLED


@scene(PartitionState((1, 2, 5), (5,), NOBODY, 4, last=(1, 2)))
async def test_an_unclean_election_takes_the_longest_log_of_those_that_are_there(scene: Scene) -> None:
    ends = {1: End(1, 3, 900), 2: End(1, 4, 10), 5: End(1, 9, 999)}
    await scene.admin.transact(put={keys.end_key(TOPIC, 0, broker_id): end.encode() for broker_id, end in ends.items()})
    await scene.watcher.refresh()
    assert only(await scene.operations.elect([PLACE], unclean=True)) is None
    assert scene.state() == PartitionState((1, 2, 5), (2,), 2, 5, forced_epoch=5)


@scene(PartitionState((5,), (5,), NOBODY, 4))
async def test_an_unclean_election_needs_somebody(scene: Scene) -> None:
    assert only(await scene.operations.elect([PLACE], unclean=True)) is Code.ELIGIBLE_LEADERS_NOT_AVAILABLE


# --- brokers


@scene()
async def test_a_broker_that_is_gone_and_holds_nothing_is_forgotten(scene: Scene) -> None:
    await scene.operations.alter_settings(5, lambda _: {CORDON: DRAINED}, validate_only=False)
    await scene.operations.unregister(5)
    assert 5 not in scene.image.members
    left = [entry.key for entry in scene.etcd.state.snapshot("").entries if entry.key.rpartition("/")[2] == "5"]
    assert left == []
    with pytest.raises(PenstockError) as refused:
        await scene.operations.unregister(5)
    assert refused.value.code is Code.UNKNOWN_BROKER


@scene(replace(SETTLED, replicas=(1, 2, 5), isr=(1, 2)))
async def test_a_broker_that_holds_something_or_runs_is_not_forgotten(scene: Scene) -> None:
    for broker_id, named in ((5, r"holds 1 partitions \(t-0\)"), (4, "is running")):
        with pytest.raises(PenstockError, match=named) as refused:
            await scene.operations.unregister(broker_id)
        assert refused.value.code is Code.NOT_ALLOWED
    assert {4, 5} <= scene.image.members.keys()


@scene()
async def test_a_target_of_a_move_counts_as_held(scene: Scene) -> None:
    await scene.write(SETTLED.move_to((1, 2, 5)))
    await scene.watcher.refresh()
    with pytest.raises(PenstockError, match="holds 1 partitions"):
        await scene.operations.unregister(5)


@scene()
async def test_a_broker_that_has_just_registered_is_not_forgotten(scene: Scene) -> None:
    """The image does not know of it yet."""
    scene.link.watch_lag_s = 5.0
    record = BrokerRecord(5, "b5", 9092, "b5", 9093, "", 1, True)
    await scene.admin.transact(put={keys.broker_key(5): record.encode()})
    async with asyncio.timeout(60):
        with pytest.raises(PenstockError, match="is running") as refused:
            await scene.operations.unregister(5)
    assert refused.value.code is Code.NOT_ALLOWED
    assert scene.etcd.state.get(keys.member_key(5)) is not None


# --- settings


@scene()
async def test_settings_are_kept_while_there_are_any(scene: Scene) -> None:
    operations = scene.operations
    await operations.alter_settings(2, lambda _: {CORDON: DRAINED}, validate_only=False)
    assert scene.settings(2) == {CORDON: DRAINED}
    assert scene.image.drained() == {2}, "the image does not show what was answered"
    await operations.alter_settings(2, lambda _: {}, validate_only=True)
    assert scene.image.drained() == {2}
    await operations.alter_settings(2, lambda _: {}, validate_only=False)
    assert scene.settings(2) is None
    assert scene.image.drained() == frozenset()


@scene()
async def test_settings_that_others_change_at_the_same_time_are_not_lost(scene: Scene) -> None:
    rates = ("follower.replication.throttled.rate", "leader.replication.throttled.rate")
    await asyncio.gather(
        *(
            scene.operations.alter_settings(None, lambda old, name=name: {**old, name: "5"}, validate_only=False)  # type: ignore[misc]
            for name in rates
        )
    )
    assert scene.settings(None) == dict.fromkeys(rates, "5")


@scene()
async def test_wrong_settings_and_unknown_brokers_are_refused(scene: Scene) -> None:
    for broker_id, settings in ((9, {CORDON: DRAINED}), (1, {CORDON: "x"}), (None, {"min.insync.replicas": "2x"})):
        with pytest.raises(PenstockError) as refused:
            await scene.operations.alter_settings(broker_id, lambda _, s=settings: s, validate_only=True)  # type: ignore[misc]
        assert refused.value.code is Code.INVALID_CONFIG
