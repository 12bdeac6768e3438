"""The controller on a simulated etcd: what it writes, in which order, and what it leaves alone."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from uuid import UUID

import orjson
import pytest

from penstock.cluster import keys
from penstock.cluster.controller import Controller, ControllerSettings
from penstock.cluster.fenced_store import Deposed
from penstock.cluster.image import BrokerRecord, ControllerRecord, DeletedTopic, End, Image, TopicEntry
from penstock.cluster.term import Term
from penstock.cluster.watcher import Watcher
from penstock.engine.partition_state import NOBODY, PartitionState
from penstock.engine.topics import TopicRecord
from penstock.ports.metadata import Change
from penstock.testing.memory_metadata import SimulatedEtcd
from penstock.testing.virtual_clock import VirtualClock, run_virtual

TTL_S = 4
SETTINGS = ControllerSettings()


def topic_rules(topic: TopicEntry, replicas: int) -> tuple[int, bool]:
    return int(topic.record.settings.get("min.insync.replicas", 2)), topic.record.settings.get("flush") != "os"


class Cluster:
    """A store, and brokers of which only the registration and the controller are there."""

    def __init__(self, seed: int = 0, settings: ControllerSettings = SETTINGS) -> None:
        self.etcd = SimulatedEtcd(seed)
        self.settings = settings
        self.truth = self.etcd.state
        self.admin = self.etcd.client("admin")
        self.topics: dict[str, UUID] = {}
        self.incarnations: dict[int, int] = {}
        self.leases: dict[int, int] = {}
        self.tasks: dict[int, list[asyncio.Task[None]]] = {}
        self.controllers: dict[int, Controller] = {}
        self.transactions: list[tuple[float, set[str]]] = []
        """When each transaction of a controller was sent, and what it was to put."""

    async def start(self, *broker_ids: int, clean: bool = True, leaving: bool = False, rack: str | None = None) -> None:
        for broker_id in broker_ids:
            await self.kill(broker_id)
            incarnation = self.incarnations[broker_id] = self.incarnations.get(broker_id, 0) + 1
            self.leases[broker_id] = await self.admin.grant(TTL_S)
            await self.register(broker_id, clean=clean, leaving=leaving, rack=rack)
            self.tasks[broker_id] = self._run(broker_id, incarnation)

    async def register(
        self, broker_id: int, *, clean: bool = True, leaving: bool = False, rack: str | None = None
    ) -> None:
        record = BrokerRecord(
            broker_id, "h", 1, "h", 2, rack, self.incarnations[broker_id], clean=clean, leaving=leaving
        )
        await self.admin.transact(
            put_leased={keys.broker_key(broker_id): record.encode()}, lease=self.leases[broker_id]
        )

    def _run(self, broker_id: int, incarnation: int) -> list[asyncio.Task[None]]:
        store = self.etcd.client(f"broker {broker_id}")
        transact = store.transact

        async def counted(**arguments: object) -> int:
            put = arguments.get("put") or {}
            assert isinstance(put, dict)
            self.transactions.append((asyncio.get_running_loop().time(), set(put)))
            return await transact(**arguments)  # type: ignore[arg-type]

        store.transact = counted  # type: ignore[method-assign]
        image, clock = Image(), VirtualClock()
        lease = self.leases[broker_id]
        controller = Controller(
            store, image, clock, lambda: (broker_id, incarnation, lease), topic_rules, self.settings
        )
        self.controllers[broker_id] = controller

        def fail(error: BaseException) -> None:
            raise error

        watcher = Watcher(store, image, clock, fail)
        watcher.listeners.append(lambda _: controller.wake())

        async def live() -> None:
            while True:
                await asyncio.sleep(TTL_S / 4)
                if not store.link.cut and not self.etcd.down:
                    await self.admin.keep_alive(lease)

        works: list[Callable[[], Awaitable[None]]] = [watcher.run, controller.run, live]
        return [asyncio.ensure_future(work()) for work in works]

    async def kill(self, *broker_ids: int) -> None:
        """End it, and its lease."""
        for broker_id in broker_ids:
            self.stop_running(broker_id)
            if broker_id in self.leases:
                await self.admin.revoke(self.leases.pop(broker_id))

    def stop_running(self, broker_id: int) -> None:
        for task in self.tasks.pop(broker_id, []):
            task.cancel()

    async def make_topic(self, name: str, replicas: list[tuple[int, ...]], **settings: str) -> UUID:
        topic_id = self.topics[name] = UUID(int=len(self.topics) + 1)
        for index, members in enumerate(replicas):
            await self.put_state(name, index, PartitionState(members, members, members[0], 0))
        named = {key.replace("_", "."): value for key, value in settings.items()}
        record = TopicRecord(topic_id, len(replicas), named, 0)
        await self.admin.transact(put={keys.TOPICS + name: record.encode()})
        return topic_id

    async def put_state(self, name: str, index: int, state: PartitionState) -> None:
        await self.admin.transact(put={keys.partition_key(self.topics[name], index): state.encode()})

    def state(self, name: str, index: int = 0) -> PartitionState:
        entry = self.truth.get(keys.partition_key(self.topics[name], index))
        assert entry is not None
        return PartitionState.decode(entry.value, entry.revision)

    def admitted(self, broker_id: int) -> bool:
        entry = self.truth.get(keys.admitted_key(broker_id))
        return entry is not None and orjson.loads(entry.value)["incarnation"] == self.incarnations[broker_id]

    def controller(self) -> int | None:
        entry = self.truth.get(keys.CONTROLLER)
        return None if entry is None else ControllerRecord.decode(entry.value, entry.revision).broker_id

    async def until(self, met: Callable[[], bool], deadline_s: float = 10.0) -> float:
        """Wait for a condition; how long that took."""
        began = asyncio.get_running_loop().time()
        while not met():
            for task in [task for tasks in self.tasks.values() for task in tasks if task.done()]:
                task.result()
            assert asyncio.get_running_loop().time() < began + deadline_s, self.truth.snapshot().entries
            await asyncio.sleep(0.001)
        return asyncio.get_running_loop().time() - began


def virtual(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """A test in virtual time, in several orders of events."""

    def run() -> None:
        for seed in range(3):
            run_virtual(test, seed)  # type: ignore[arg-type]

    run.__name__ = test.__name__
    return run


@virtual
async def test_the_first_broker_admits_itself_and_elects() -> None:
    cluster = Cluster()
    await cluster.make_topic("t", [(1, 2)])
    await cluster.put_state("t", 0, PartitionState((1, 2), (1, 2), NOBODY, 4))
    await cluster.start(1)
    await cluster.until(lambda: cluster.state("t").leader == 1, 1.0)
    assert cluster.admitted(1)
    assert cluster.state("t") == replace(
        PartitionState((1, 2), (1,), 1, 5, elr=(2,)), revision=cluster.state("t").revision
    )


@virtual
async def test_a_thousand_leaders_in_ten_transactions_at_once() -> None:
    cluster = Cluster()
    await cluster.start(1, 2, 3)
    await cluster.until(lambda: all(map(cluster.admitted, (1, 2, 3))))
    elector = cluster.controller()
    assert elector is not None
    dead, other = [broker_id for broker_id in (1, 2, 3) if broker_id != elector]
    await cluster.make_topic("t", [(dead, elector, other)] * 1000)
    await asyncio.sleep(1)
    cluster.transactions.clear()
    cluster.etcd.link(f"broker {elector}").watch_lag_s = 0.2
    await cluster.kill(dead)
    took_s = await cluster.until(lambda: all(cluster.state("t", n).leader == elector for n in range(1000)))
    await asyncio.sleep(1)
    sent = [(at, put) for at, put in cluster.transactions if put]
    assert len(sent) == 11
    assert len({at for at, _ in sent}) == 1
    assert took_s < 0.3
    assert cluster.state("t").isr == (elector, other)


@virtual
async def test_one_that_has_changed_does_not_hold_up_the_others() -> None:
    cluster = Cluster()
    await cluster.start(1, 2, 3)
    await cluster.until(lambda: all(map(cluster.admitted, (1, 2, 3))))
    elector = cluster.controller()
    assert elector is not None
    dead, other = [broker_id for broker_id in (1, 2, 3) if broker_id != elector]
    await cluster.make_topic("t", [(dead, elector, other)] * 20)
    await asyncio.sleep(1)
    cluster.etcd.link(f"broker {elector}").watch_lag_s = 0.5
    await cluster.kill(dead)
    await asyncio.sleep(0.4)  # the controller is about to hear of the death, and not yet of this
    changed = PartitionState((dead, elector, other), (dead, elector), dead, 0)
    await cluster.put_state("t", 7, changed)
    await cluster.until(lambda: all(cluster.state("t", n).leader == elector for n in range(20) if n != 7), 0.3)
    assert cluster.state("t", 7) == replace(changed, revision=cluster.state("t", 7).revision)
    await cluster.until(lambda: cluster.state("t", 7).leader == elector, 0.8)
    assert (cluster.state("t", 7).isr, cluster.state("t", 7).elr) == ((elector,), (dead,))


@virtual
async def test_an_unclean_broker_is_admitted_when_every_partition_says_so() -> None:
    cluster = Cluster()
    await cluster.start(1, 2, 3)
    await cluster.until(lambda: all(map(cluster.admitted, (1, 2, 3))))
    await cluster.make_topic("t", [(1, 2, 3)] * 250)
    await asyncio.sleep(1)
    victim = next(broker_id for broker_id in (1, 2, 3) if broker_id != cluster.controller())
    early: list[int] = []

    def look(changes: list[Change]) -> None:
        if cluster.truth.get(keys.admitted_key(victim)) and cluster.admitted(victim):
            early.extend(n for n in range(250) if victim in cluster.state("t", n).isr)

    cluster.truth.on_change = look
    # Its old registration is replaced: nobody has seen it dead.
    cluster.incarnations[victim] += 1
    await cluster.register(victim, clean=False)
    await cluster.until(lambda: cluster.admitted(victim), 1.0)
    assert not early
    assert all(victim not in cluster.state("t", n).isr + cluster.state("t", n).elr for n in range(250))
    assert all(cluster.state("t", n).leader not in (victim, NOBODY) for n in range(250))


@virtual
async def test_a_controller_that_dies_half_way_is_continued() -> None:
    cluster = Cluster()
    await cluster.start(1, 2, 3)
    await cluster.until(lambda: all(map(cluster.admitted, (1, 2, 3))))
    elector = cluster.controller()
    assert elector is not None
    victim, other = [broker_id for broker_id in (1, 2, 3) if broker_id != elector]
    await cluster.make_topic("t", [(victim, elector, other)] * 400)
    await asyncio.sleep(1)

    def cut(changes: list[Change]) -> None:
        if sum(change.key.startswith(keys.PARTITIONS) for change in changes) > 50:
            cluster.stop_running(elector)  # its lease runs on for a while

    cluster.truth.on_change = cut
    await cluster.start(victim, clean=False)
    await cluster.until(lambda: cluster.controller() != elector, TTL_S + 2)
    await cluster.until(lambda: cluster.admitted(victim))
    await cluster.until(lambda: all(cluster.state("t", n).leader == other for n in range(400)))
    assert all(victim not in cluster.state("t", n).isr for n in range(400))


@virtual
async def test_a_clean_start_after_an_unclean_one_that_nobody_saw() -> None:
    cluster = Cluster()
    await cluster.start(1, 2)
    await cluster.until(lambda: cluster.admitted(1) and cluster.admitted(2))
    elector = cluster.controller()
    victim = 1 if elector == 2 else 2
    await cluster.make_topic("t", [(victim, elector)], flush="os")
    await cluster.until(lambda: cluster.state("t").leader == victim)
    await cluster.kill(victim)
    cluster.incarnations[victim] += 1  # a start that was unclean, and ended cleanly before anybody dealt with it
    await cluster.start(victim, clean=True)
    await cluster.until(lambda: cluster.admitted(victim))
    assert victim not in cluster.state("t").isr + cluster.state("t").elr
    assert cluster.state("t").last == (victim,)
    await cluster.kill(victim)
    await cluster.start(victim, clean=True)
    await cluster.until(lambda: cluster.admitted(victim))
    assert cluster.state("t").last == (victim,)


@virtual
async def test_a_controller_cut_off_is_replaced_and_changes_nothing_more() -> None:
    cluster = Cluster()
    await cluster.start(1, 2, 3)
    await cluster.until(lambda: all(map(cluster.admitted, (1, 2, 3))))
    old = cluster.controller()
    assert old is not None
    await cluster.make_topic("t", [(old, 1, 2, 3)[:1] + tuple(n for n in (1, 2, 3) if n != old)])
    await asyncio.sleep(1)
    cluster.etcd.link(f"broker {old}").cut = True
    await cluster.until(lambda: cluster.controller() not in (old, None), TTL_S + 2)
    await cluster.until(lambda: cluster.state("t").leader not in (old, NOBODY))
    revision = cluster.state("t").revision
    cluster.etcd.link(f"broker {old}").cut = False
    await cluster.until(lambda: cluster.controllers[old].epoch == 0, 15.0)
    assert cluster.state("t").revision == revision


@virtual
async def test_the_key_of_an_earlier_start_is_not_waited_for() -> None:
    cluster = Cluster()
    await cluster.start(1)
    await cluster.until(lambda: cluster.controller() == 1)
    cluster.stop_running(1)
    del cluster.leases[1]  # killed: the lease runs on
    await cluster.start(1, clean=False)
    assert await cluster.until(lambda: cluster.admitted(1)) < TTL_S / 2
    assert cluster.controllers[1].epoch


@virtual
async def test_an_outage_of_the_store() -> None:
    cluster = Cluster()
    await cluster.start(1, 2, 3)
    await cluster.until(lambda: all(map(cluster.admitted, (1, 2, 3))))
    elector = cluster.controller()
    assert elector is not None
    dead, other = [broker_id for broker_id in (1, 2, 3) if broker_id != elector]
    await cluster.make_topic("t", [(dead, elector, other)] * 30)
    await asyncio.sleep(1)
    cluster.etcd.link(f"broker {elector}").watch_lag_s = 0.2
    await cluster.kill(dead)
    await asyncio.sleep(0.1)
    cluster.etcd.down = True  # before the controller has heard, or while it writes
    await asyncio.sleep(10)
    assert all(cluster.state("t", n).leader == dead for n in range(30))
    cluster.etcd.down = False
    await cluster.until(lambda: all(cluster.state("t", n).leader == elector for n in range(30)), 15.0)


@virtual
async def test_leaders_return_to_where_they_should_be_a_few_at_a_time() -> None:
    settings = ControllerSettings(preferred_after_s=20.0, preferred_at_once=10, preferred_pause_s=1.0)
    cluster = Cluster(settings=settings)
    await cluster.start(1, 2)
    await cluster.until(lambda: cluster.admitted(1) and cluster.admitted(2))
    await cluster.make_topic("t", [(1, 2)] * 25)
    for index in range(25):
        await cluster.put_state("t", index, PartitionState((1, 2), (1, 2), 2, 3))
    await cluster.put_state("t", 24, PartitionState((1, 2), (2,), 2, 3, elr=(1,)))
    await asyncio.sleep(10)
    await cluster.start(3)  # not quiet
    led: list[int] = []

    def count(changes: list[Change]) -> None:
        led.append(sum(change.key.startswith(keys.PARTITIONS) for change in changes))

    cluster.truth.on_change = count
    await asyncio.sleep(19)
    assert not any(led)
    await cluster.until(lambda: all(cluster.state("t", n).leader == 1 for n in range(24)))
    assert [changed for changed in led if changed] == [10, 10, 4]
    assert cluster.state("t", 24).leader == 2
    await cluster.put_state("t", 24, PartitionState((1, 2), (1, 2), 2, 3))
    await cluster.until(lambda: cluster.state("t", 24).leader == 1, 21.0)


@virtual
async def test_a_leaving_broker_hands_over() -> None:
    cluster = Cluster()
    await cluster.start(1, 2)
    await cluster.until(lambda: cluster.admitted(1) and cluster.admitted(2))
    await cluster.make_topic("t", [(1, 2)])
    await cluster.register(1, leaving=True)
    assert await cluster.until(lambda: cluster.state("t").leader == 2) < 0.1
    assert cluster.state("t").isr == (1, 2)


@virtual
async def test_internal_topics_grow_with_the_cluster_one_replica_after_the_other() -> None:
    cluster = Cluster()
    await cluster.start(1)
    await cluster.until(lambda: cluster.admitted(1))
    await cluster.make_topic("__consumer_offsets", [(1,)] * 6)
    await cluster.make_topic("plain", [(1,)])
    await cluster.start(2, 3, 4)
    await cluster.until(lambda: all(len(cluster.state("__consumer_offsets", n).replicas) == 2 for n in range(6)))
    await asyncio.sleep(3)
    for n in range(6):
        state = cluster.state("__consumer_offsets", n)
        assert (len(state.replicas), state.isr, state.leader, state.leader_epoch) == (2, (1,), 1, 0)
        await cluster.put_state("__consumer_offsets", n, replace(state, isr=state.replicas))
    await cluster.until(lambda: all(len(cluster.state("__consumer_offsets", n).replicas) == 3 for n in range(6)))
    await asyncio.sleep(3)
    grown = [cluster.state("__consumer_offsets", n) for n in range(6)]
    assert {member for state in grown for member in state.replicas} == {1, 2, 3, 4}
    assert {(len(state.replicas), len(state.isr), state.leader_epoch) for state in grown} == {(3, 2, 0)}
    assert cluster.state("plain").replicas == (1,)


@virtual
async def test_after_a_power_cut_the_longest_leads_and_reports_are_removed() -> None:
    cluster = Cluster()
    topic_id = await cluster.make_topic("t", [(1, 2, 3)])
    await cluster.start(1, 2, 3)
    await cluster.until(lambda: all(map(cluster.admitted, (1, 2, 3))))
    await cluster.until(lambda: cluster.state("t").leader != NOBODY)
    await cluster.put_state("t", 0, PartitionState((1, 2, 3), (1, 2, 3), 1, 5))
    await cluster.kill(1, 2, 3)
    await cluster.start(2, 3, clean=False)
    await cluster.until(lambda: cluster.admitted(2) and cluster.admitted(3))
    assert cluster.state("t").last == (2, 3)
    began = asyncio.get_running_loop().time()

    async def report(broker_id: int, incarnation: int, end: int) -> None:
        await cluster.admin.transact(put={keys.end_key(topic_id, 0, broker_id): End(incarnation, 5, end).encode()})

    await report(3, 2, 100)
    await report(2, 2, 90)
    await asyncio.sleep(25)  # for 1, which may come back
    assert cluster.state("t").leader == NOBODY
    await report(2, 1, 999)  # of its start before
    await asyncio.sleep(10)
    assert cluster.state("t").leader == NOBODY
    await report(2, 2, 90)
    await cluster.until(lambda: cluster.state("t").leader == 3, 0.1)
    assert asyncio.get_running_loop().time() - began > 30
    assert cluster.state("t").last == (2,)
    assert cluster.truth.list(keys.ENDS)
    await cluster.put_state("t", 0, PartitionState((1, 2, 3), (2, 3), 3, cluster.state("t").leader_epoch))
    await cluster.until(lambda: not cluster.truth.list(keys.ENDS))


@virtual
async def test_reports_are_kept_while_they_are_needed() -> None:
    cluster = Cluster()
    topic_id = await cluster.make_topic("t", [(1, 2, 3)])
    await cluster.put_state("t", 0, PartitionState((1, 2, 3), (), NOBODY, 5, last=(1, 2, 3)))
    await cluster.start(1)
    await cluster.until(lambda: cluster.admitted(1))
    key = keys.end_key(topic_id, 0, 1)
    await cluster.admin.transact(put={key: End(1, 5, 10).encode()})
    await asyncio.sleep(60)
    assert cluster.truth.get(key) is not None
    assert cluster.state("t").leader == NOBODY


@virtual
async def test_the_wait_begins_when_nobody_leads() -> None:
    cluster = Cluster()
    topic_id = await cluster.make_topic("t", [(1, 2, 3, 4)])
    await cluster.put_state("t", 0, PartitionState((1, 2, 3, 4), (4,), 4, 5, last=(1, 2)))
    await cluster.admin.transact(put={keys.end_key(topic_id, 0, n): End(1, 5, 10).encode() for n in (1, 2)})
    await cluster.start(1, 2, 3, 4)
    await cluster.until(lambda: cluster.state("t").leader == 4)
    await asyncio.sleep(60)
    await cluster.kill(4)
    assert await cluster.until(lambda: cluster.state("t").leader == 1, 40.0) >= 30.0


@virtual
async def test_partitions_of_a_creation_cut_short_are_removed() -> None:
    cluster = Cluster()
    await cluster.start(1)
    await cluster.until(lambda: cluster.admitted(1))
    cluster.topics = {name: UUID(int=100 + n) for n, name in enumerate(("orphan", "deleted", "slow"))}
    state = PartitionState((1,), (1,), 1, 0)
    for name in cluster.topics:
        for index in range(120):
            await cluster.put_state(name, index, state)
    deleted = DeletedTopic("deleted", (1,))
    await cluster.admin.transact(put={f"{keys.DELETED}{cluster.topics['deleted']}": deleted.encode()})
    gone: list[str] = []
    cluster.truth.on_change = lambda changes: gone.extend(change.key for change in changes if change.value is None)
    await asyncio.sleep(58)
    record = TopicRecord(cluster.topics["slow"], 120, {}, 0)
    await cluster.admin.transact(put={f"{keys.TOPICS}slow": record.encode()})
    assert not gone
    await cluster.until(lambda: len(gone) >= 120)
    await asyncio.sleep(100)
    assert gone == [keys.partition_key(cluster.topics["orphan"], index) for index in range(120)]


async def old_image(cluster: Cluster) -> tuple[Image, int]:
    """How a cluster is now whose controller is broker 1, which nobody will keep up to date; and the epoch."""
    cluster.leases[1] = await cluster.admin.grant(600)
    record = {keys.CONTROLLER: ControllerRecord(1, 1).encode()}
    epoch = await cluster.admin.transact(put_leased=record, lease=cluster.leases[1])
    image = Image()
    image.replace(cluster.truth.snapshot())
    return image, epoch


@virtual
async def test_nobody_is_admitted_on_an_old_image() -> None:
    cluster = Cluster()
    cluster.leases = {1: await cluster.admin.grant(600), 2: await cluster.admin.grant(600)}
    cluster.incarnations = {1: 2, 2: 1}
    await cluster.register(1, clean=False)
    await cluster.register(2)
    await cluster.admin.transact(put={keys.admitted_key(2): b'{"incarnation": 1}'})
    await cluster.make_topic("t", [(1, 2)])
    await cluster.put_state("t", 0, PartitionState((1, 2), (2,), 2, 3))
    image, epoch = await old_image(cluster)
    await cluster.put_state("t", 0, PartitionState((1, 2), (1, 2), 2, 3))
    term = Term(cluster.admin, image, VirtualClock(), topic_rules, SETTINGS, epoch)
    await term.look()
    assert not cluster.truth.get(keys.admitted_key(1))
    image.replace(cluster.truth.snapshot())
    await term.look()
    assert cluster.admitted(1)
    assert 1 not in cluster.state("t").isr


@virtual
async def test_nothing_is_removed_on_an_old_image() -> None:
    cluster = Cluster()
    cluster.topics = {"made": UUID(int=1), "not made": UUID(int=2), "deleted": UUID(int=3)}
    for name in cluster.topics:
        await cluster.put_state(name, 0, PartitionState((1,), (1,), 1, 0))
    image, epoch = await old_image(cluster)
    await cluster.admin.transact(
        put={
            f"{keys.TOPICS}made": TopicRecord(cluster.topics["made"], 1, {}, 0).encode(),
            f"{keys.DELETED}{cluster.topics['deleted']}": DeletedTopic("deleted", (1,)).encode(),
        }
    )
    term = Term(cluster.admin, image, VirtualClock(), topic_rules, SETTINGS, epoch)
    await term.look()
    await asyncio.sleep(61)
    await term.look()
    left = [keys.partition_key(cluster.topics[name], 0) for name in ("made", "deleted")]
    assert [entry.key for entry in cluster.truth.list(keys.PARTITIONS)] == left


@virtual
async def test_a_term_that_is_over_writes_nothing() -> None:
    cluster = Cluster()
    cluster.incarnations[1] = 1
    await cluster.make_topic("t", [(1, 2)])
    image, epoch = await old_image(cluster)
    await cluster.register(1)
    await old_image(cluster)
    before = cluster.truth.snapshot()
    with pytest.raises(Deposed):
        await Term(cluster.admin, image, VirtualClock(), topic_rules, SETTINGS, epoch).look()
    assert cluster.truth.snapshot() == before


async def spoil(cluster: Cluster, broker_id: int, random: Random) -> None:
    link = cluster.etcd.link(f"broker {broker_id}")
    fault = random.choice(["kill", "start", "start", "cut", "lag", "loss", "heal"])
    if fault == "kill":
        await cluster.kill(broker_id)
    elif fault == "start":
        await cluster.start(broker_id)
    elif fault == "cut":
        link.cut = True
    elif fault == "lag":
        link.watch_lag_s, link.watch_repeats, link.watch_losses = random.random() * 3, 0.3, 0.1
    elif fault == "loss":
        link.loss = 0.2
    else:
        heal(cluster, broker_id)


def heal(cluster: Cluster, broker_id: int) -> None:
    link = cluster.etcd.link(f"broker {broker_id}")
    link.cut, link.watch_lag_s, link.loss, link.watch_losses = False, 0.0, 0.0, 0.0


@pytest.mark.parametrize("seed", range(15))
def test_under_faults(seed: int) -> None:
    """Brokers die and start, links fail; in the end every partition is led, and no rule was broken on the way."""

    async def run() -> None:
        random = Random(seed)
        cluster = Cluster(seed)
        before: dict[str, PartitionState] = {}
        wrong: list[tuple[PartitionState, PartitionState]] = []

        def check(changes: list[Change]) -> None:
            for change in changes:
                if change.key.startswith(keys.PARTITIONS) and change.value is not None:
                    state = PartitionState.decode(change.value, change.revision)
                    old = before.get(change.key, state)
                    is_next = (state.leader != old.leader) == (state.leader_epoch > old.leader_epoch)
                    if not is_next or state.leader not in (old.leader, NOBODY, *old.isr, *old.elr, *old.last):
                        wrong.append((old, state))
                    before[change.key] = state

        cluster.truth.on_change = check
        await cluster.start(1, 2, 3)
        await cluster.until(lambda: all(map(cluster.admitted, (1, 2, 3))))
        await cluster.make_topic("t", [tuple(random.sample((1, 2, 3), 3)) for _ in range(130)])
        for _ in range(12):
            await spoil(cluster, random.randint(1, 3), random)
            await asyncio.sleep(random.random() * 4)
        for broker_id in (1, 2, 3):
            heal(cluster, broker_id)
            await cluster.start(broker_id)
        await cluster.until(lambda: all(map(cluster.admitted, (1, 2, 3))), 30.0)
        await cluster.until(lambda: all(cluster.state("t", n).leader != NOBODY for n in range(130)), 30.0)
        assert not wrong
        assert sum(controller.epoch > 0 for controller in cluster.controllers.values()) == 1

    run_virtual(run, seed)
