"""Brokers that are registered and do not prove that they are of the cluster: they are given nothing.

Real brokers in virtual time; those of an earlier release write records that prove nothing, and check none.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from tests.simulation.cluster import SimulatedBroker
from tests.unit.cluster.trial import SMALL, Trial, play

from penstock.cluster import keys
from penstock.cluster.image import FEATURE_LEVEL, BrokerRecord, ControllerRecord, Image
from penstock.cluster.node import NodeSettings
from penstock.cluster.secret import ClusterSecret
from penstock.errors import WrongSettings
from penstock.ports.metadata import Change

OURS, THEIRS = ClusterSecret(b"o" * 32), ClusterSecret(b"t" * 32)
RECORD = BrokerRecord(4, "h", 1, "i", 2, None, 7, clean=True, level=1)
_PROOF_BEFORE_ENDPOINTS = "1:cf1228e187e9b3526bc101b0bcca573c8da7b93f5894ee1cf1a1513417052970"
"""What the release before endpoints wrote for this record, in cluster c with our secret."""


class EarlierBroker(SimulatedBroker):
    """Of a release before this one."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        node: Any = self.node
        node._secret = None

        async def nothing() -> None:
            return None

        def begun(incarnation: int, revision: int) -> None:
            node.membership.incarnation, node.membership._member_revision = incarnation, revision

        node._check_secret = SimpleNamespace(run=nothing)
        node.membership._begun = begun


class World(Trial):
    """Three brokers of an earlier release, that have one secret."""

    def __init__(self, settings: NodeSettings) -> None:
        super().__init__(settings)
        self.cluster.secrets = dict.fromkeys(self.cluster.ids, OURS)
        self.cluster.make_broker = EarlierBroker

    async def restart(self, node_id: int, release: type[SimulatedBroker]) -> None:
        if self.cluster.is_up(node_id):
            await self.cluster.stop(node_id)
        self.cluster.make_broker = release
        self.cluster.start(node_id)
        await self.until(lambda: self.cluster.is_up(node_id))

    def key(self, key: str) -> Any:
        entry = self.cluster.etcd.state.get(key)
        return orjson.loads(entry.value) if entry is not None else None

    def all_say(self, node_ids: set[int], says: Callable[[Image], bool]) -> bool:
        return all(self.cluster.is_up(each) and says(self.cluster.lives[each].node.image) for each in node_ids)


def played(test: Callable[[World], Any]) -> Callable[[], None]:
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def run() -> None:
        play(test, make=World)  # type: ignore[arg-type]

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@played
async def test_an_upgrade_there_and_back_and_for_good(world: World) -> None:
    new, old = SimulatedBroker, EarlierBroker
    for node_id, release in ((1, new), (2, new), (2, old), (1, old), (1, new), (2, new)):
        await world.restart(node_id, release)
        await world.until(lambda: world.all_say({1, 2, 3}, lambda image: set(image.live()) == {1, 2, 3}))
        await world.until(lambda: world.state().isr == (1, 2, 3))
        await world.cluster.stop(3)  # who is away may be of any release: the level waits for it
        await asyncio.sleep(3)
        assert world.key(keys.FEATURES) is None
        await world.restart(3, old)
    await world.until(lambda: world.state().isr == (1, 2, 3))
    await world.restart(3, new)
    await world.until(lambda: world.key(keys.FEATURES) == {"level": FEATURE_LEVEL})
    await world.until(lambda: world.state().isr == (1, 2, 3))

    await world.restart(3, old)
    await world.until(lambda: world.all_say({1, 2}, lambda image: set(image.strangers) == {3}))
    assert "upgrade it" in world.cluster.lives[1].node.image.strangers[3].why_strange
    await asyncio.sleep(10)
    assert world.all_say({1, 2}, lambda image: set(image.live()) == {1, 2})
    assert world.state().isr == (1, 2)
    await world.do(1, lambda broker: broker.engine.create_topic("u", 4, {}))
    assert all(world.key(keys.partition_key(_id(world, "u"), n))["replicas"] in ([1, 2], [2, 1]) for n in range(4))

    await world.restart(3, new)
    await world.until(lambda: world.state().isr == (1, 2, 3))
    assert not world.cluster.crashes


@played
async def test_a_stranger_is_not_the_controller_for_long(world: World) -> None:
    for node_id in (1, 2, 3):
        await world.restart(node_id, SimulatedBroker)
    await world.until(lambda: world.key(keys.FEATURES) == {"level": FEATURE_LEVEL})
    await world.cluster.stop(3)
    store = world.cluster.etcd.client("test")
    lease = await store.grant(60)
    record = replace(RECORD, proof="1:" + "0" * 64)
    for stranger in (record, replace(record, proof=""), replace(record, proof="\u00e4")):
        put = {
            keys.broker_key(4): stranger.encode(),
            keys.CONTROLLER: ControllerRecord(4, stranger.incarnation).encode(),
        }
        await store.transact(put={keys.member_key(4): b'{"incarnation":7}'}, put_leased=put, lease=lease)
        await world.until(lambda: world.key(keys.CONTROLLER)["id"] in (1, 2))
        await asyncio.sleep(3)
        assert world.key(keys.CONTROLLER)["id"] in (1, 2)
        assert world.key(keys.admitted_key(4)) is None
        assert world.all_say({1, 2}, lambda image: 4 in image.strangers and 4 not in image.reachable())
    await world.restart(3, SimulatedBroker)
    await world.do(1, lambda broker: broker.engine.create_topic("u", 6, {}))
    assert not any(4 in world.key(keys.partition_key(_id(world, "u"), n))["replicas"] for n in range(6))
    with pytest.raises(Exception, match="unknown broker 4; known: 1, 2, 3"):
        await world.do(1, lambda broker: broker.engine.create_topic("v", 1, SMALL, assignment=[[1, 4]]))


@played
async def test_brokers_stop_when_the_secret_is_another_one(world: World) -> None:
    await world.restart(1, SimulatedBroker)
    store = world.cluster.etcd.client("test")
    await store.transact(put={keys.SECRET: THEIRS.make_verifier(world.cluster.random)})
    await world.until(lambda: world.cluster.crashes)
    ((node_id, error),) = world.cluster.crashes
    assert node_id == 1
    assert isinstance(error, WrongSettings)
    world.cluster.start(1)
    await world.until(lambda: len(world.cluster.crashes) == 2)
    assert "have another cluster secret than this one" in str(world.cluster.crashes[1][1])
    for node_id in (2, 3):
        await world.cluster.stop(node_id)
    world.cluster.settings = replace(world.cluster.settings, accept_new_secret=True)
    world.cluster.start(1)
    await world.until(lambda: world.cluster.is_up(1))
    assert OURS.fits(world.cluster.etcd.state.get(keys.SECRET).value)  # type: ignore[union-attr]


@played
async def test_certificates_need_no_proof_and_a_secret_does_not_come_by_accident(world: World) -> None:
    world.cluster.secrets.clear()
    for node_id in (1, 2, 3):
        await world.restart(node_id, SimulatedBroker)
    await world.until(lambda: world.key(keys.FEATURES) == {"level": FEATURE_LEVEL})
    await world.until(lambda: world.all_say({1, 2, 3}, lambda image: set(image.live()) == {1, 2, 3}))
    await world.cluster.stop(3)
    world.cluster.secrets[3] = OURS
    world.cluster.start(3)
    await world.until(lambda: world.cluster.crashes)
    assert "by certificates alone" in str(world.cluster.crashes[0][1])
    assert world.key(keys.SECRET) is None


@played
async def test_a_release_that_knows_less_than_the_cluster_relies_on_does_not_start(world: World) -> None:
    await world.restart(1, SimulatedBroker)
    store = world.cluster.etcd.client("test")
    await world.cluster.stop(1)
    await store.transact(put={keys.FEATURES: b'{"level":9}'})
    world.cluster.start(1)
    await world.until(lambda: world.cluster.crashes)
    assert "feature level 9" in str(world.cluster.crashes[0][1])


def _id(world: World, topic: str) -> Any:
    return world.cluster.lives[1].engine.topics.get(topic).topic_id  # type: ignore[union-attr]


# --- the record


def test_a_proof_is_good_for_one_cluster_broker_start_and_place() -> None:
    proven = replace(RECORD, proof=OURS.prove("c", RECORD))
    assert OURS.proves("c", proven)
    assert OURS.proves("c", replace(proven, leaving=True, revision=9))
    assert not THEIRS.proves("c", proven)
    assert not OURS.proves("d", proven)
    others: dict[str, Any] = {
        "broker_id": 5,
        "incarnation": 8,
        "host": "x",
        "port": 3,
        "internal_host": "x",
        "internal_port": 3,
    }
    for name, value in others.items():
        assert not OURS.proves("c", replace(proven, **{name: value})), name


def test_a_proof_is_the_one_that_earlier_releases_make_and_endpoints_have_one_of_their_own() -> None:
    served = replace(RECORD, endpoints={"kafka": ("h", 1), "outside": ("o", 9)})
    assert OURS.prove("c", RECORD) == OURS.prove("c", served) == _PROOF_BEFORE_ENDPOINTS
    proven = replace(served, proof=OURS.prove("c", served), endpoints_proof=OURS.prove_endpoints("c", served))
    assert OURS.proves("c", proven)
    assert OURS.proves("c", replace(RECORD, proof=_PROOF_BEFORE_ENDPOINTS))
    assert not THEIRS.proves("c", proven)
    moved: dict[str, tuple[str, int]] = {"kafka": ("h", 1), "outside": ("elsewhere", 9)}
    for forged in (
        replace(proven, endpoints=moved),
        replace(proven, endpoints={"kafka": ("h", 1)}),
        replace(proven, endpoints_proof=""),
        replace(proven, endpoints_proof=proven.proof),
        replace(proven, incarnation=8, proof=OURS.prove("c", replace(proven, incarnation=8))),
    ):
        assert not OURS.proves("c", forged)


def test_records_are_told_apart_by_the_level_whenever_it_comes() -> None:
    proven = replace(RECORD, broker_id=1)
    proven = replace(proven, proof=OURS.prove("c", proven))
    silent, forged = replace(RECORD, broker_id=2, level=0), replace(RECORD, broker_id=3, proof="1:0")
    image = Image()
    image.apply(Change(keys.broker_key(each.broker_id), each.encode(), 1) for each in (proven, silent, forged))
    assert set(image.brokers) == {1, 2, 3}
    image.trust(lambda broker: OURS.proves("c", broker))
    assert (set(image.brokers), set(image.strangers)) == ({1, 2}, {3})
    image.apply([Change(keys.FEATURES, b'{"level":1}', 4)])
    assert (set(image.brokers), set(image.strangers)) == ({1}, {2, 3})
    better = replace(silent, proof=OURS.prove("c", silent))
    image.apply([Change(keys.broker_key(2), better.encode(), 5), Change(keys.broker_key(3), None, 6)])
    assert (set(image.brokers), set(image.strangers), image.departed) == ({1, 2}, set(), {})
