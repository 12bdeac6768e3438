"""Topics of a cluster: made and changed by any broker, once, whoever else tries and whatever the store fails to say."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from penstock.cluster import keys
from penstock.cluster.catalogue import ClusterCatalogue
from penstock.cluster.image import ATTACHES_FROM, BrokerRecord, DeletedTopic, End, Image
from penstock.cluster.watcher import Watcher
from penstock.engine.catalogue import Catalogue, NewTopic
from penstock.engine.coordination.internal_topics import OFFSETS_TOPIC
from penstock.engine.coordination.registry import SETTINGS
from penstock.engine.partition_state import NOBODY, PartitionState
from penstock.engine.topic_config import make_config
from penstock.engine.topics import MAX_QUEUES, Topic, TopicRecord, Topics
from penstock.errors import Code, PenstockError
from penstock.ports.metadata import MetadataConflict, MetadataUnavailable
from penstock.testing.memory_metadata import SimulatedClient, SimulatedEtcd
from penstock.testing.virtual_clock import VirtualClock, run_virtual

STORE = "etcd://etcd1:2379"


class Broker:
    """A catalogue, and an engine that shows what the image says, a little later."""

    def __init__(self, etcd: SimulatedEtcd, node_id: int = 1, lag_s: float = 0.05) -> None:
        self.link = etcd.link(f"broker {node_id}")
        self.store = etcd.client(f"broker {node_id}")
        self.image = Image()
        self.failures: list[BaseException] = []
        self.watcher = Watcher(self.store, self.image, VirtualClock(), self.failures.append, name=STORE)
        self.topics = Topics()
        self.lag_s = lag_s
        self.catalogue = ClusterCatalogue(
            store=self.store,
            watcher=self.watcher,
            image=self.image,
            topics=self.topics,
            randomness=Random(node_id),
            defaults={"retention.ms": "1000"},
            default_partitions=6,
            internal_partitions=4,
        )
        self.watcher.listeners.append(self._show_later)

    def _show_later(self, _: list[str]) -> None:
        asyncio.get_running_loop().call_later(self.lag_s, self.show)

    async def start(self) -> "Broker":
        await self.watcher.start()
        self.running = asyncio.ensure_future(self.watcher.run())
        await asyncio.sleep(self.lag_s)
        return self

    def show(self) -> None:
        for topic in list(self.topics):
            entry = self.image.topics.get(topic.name)
            if entry is None or entry.record.topic_id != topic.topic_id:
                self.topics.remove(topic)
        for name, entry in self.image.topics.items():
            states = self.image.states.get(entry.record.topic_id, {})
            partitions: Any = [
                SimpleNamespace(state=states[at]) for at in range(entry.record.partitions) if at in states
            ]
            config = make_config(entry.record.settings, {})
            topic = self.topics.get(name)
            if topic is None:
                self.topics.add(Topic(name, entry.record.topic_id, config, partitions, queues=entry.record.queues))
            else:
                topic.config, topic.partitions, topic.queues = config, partitions, entry.record.queues
        self.watcher.wake()


class Cluster:
    """Three brokers that are there, one that was, and one that is there but may do nothing yet."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        self.etcd = SimulatedEtcd(seed, **options)
        self.test = self.etcd.client("test")

    async def start(self, *node_ids: int) -> list[Broker]:
        await self.test.transact(put={keys.member_key(node_id): started(1) for node_id in (1, 2, 3, 8, 9)})
        await self.test.transact(put={keys.admitted_key(node_id): started(1) for node_id in (1, 2, 3, 8)})
        await self.test.transact(put={keys.broker_key(node_id): record(node_id).encode() for node_id in (1, 2, 3, 9)})
        return [await Broker(self.etcd, node_id).start() for node_id in node_ids or (1,)]

    def stored(self, name: str) -> TopicRecord | None:
        entry = self.etcd.state.get(keys.TOPICS + name)
        return None if entry is None else TopicRecord.decode(entry.value)

    def states(self, topic_id: UUID) -> list[PartitionState]:
        entries = self.etcd.state.list(f"{keys.PARTITIONS}{topic_id}/")
        return [PartitionState.decode(entry.value, entry.revision) for entry in entries]

    def check(self) -> None:
        """Every topic has its partitions, and no other topic has any."""
        topics = [TopicRecord.decode(entry.value) for entry in self.etcd.state.list(keys.TOPICS)]
        for topic in topics:
            assert len(self.states(topic.topic_id)) == topic.partitions
        orphans = {keys.read_partition_key(entry.key)[0] for entry in self.etcd.state.list(keys.PARTITIONS)}
        assert orphans == {topic.topic_id for topic in topics}


def started(incarnation: int) -> bytes:
    return b'{"incarnation": %d}' % incarnation


def record(node_id: int, *, leaving: bool = False) -> BrokerRecord:
    return BrokerRecord(node_id, "host", 9092, "host", 9093, f"r{node_id}", 1, clean=True, leaving=leaving)


def _with(changes: Mapping[str, str], given: Mapping[str, str]) -> Mapping[str, str]:
    return {**given, **changes}


async def refused(work: Awaitable[object]) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        await work
    return caught.value


# --- creation


def test_a_topic_is_there_with_all_its_partitions_when_creation_returns() -> None:
    async def main() -> None:
        cluster = Cluster()
        (broker,) = await cluster.start()
        catalogue: Catalogue = broker.catalogue
        topic = await catalogue.create_topic(NewTopic("orders", settings={"flush": " os "}))
        assert broker.topics.get("orders") is topic
        assert cluster.stored("orders") == TopicRecord(topic.topic_id, 6, {"flush": "os"}, 0)
        states = cluster.states(topic.topic_id)
        assert len(states) == 6
        for state in states:
            assert sorted(state.replicas) == [1, 2, 3] and state.isr == state.replicas
            assert (state.leader, state.leader_epoch, state.elr, state.last) == (state.replicas[0], 0, (), ())
        assert {state.leader for state in states} == {1, 2, 3}
        assert (await catalogue.create_topic(NewTopic("small", 2, 1))).name == "small"
        small = cluster.stored("small")
        assert small is not None and [len(state.replicas) for state in cluster.states(small.topic_id)] == [1, 1]
        assert (await refused(catalogue.create_topic(NewTopic("orders")))).code is Code.TOPIC_EXISTS
        cluster.check()

    run_virtual(main, 1)


def test_what_cannot_be_made_is_refused_and_leaves_nothing() -> None:
    async def main() -> None:
        cluster = Cluster()
        (broker,) = await cluster.start()
        revision = cluster.etcd.state.revision
        for new, code in (
            (NewTopic("a/b"), Code.INVALID_TOPIC),
            (NewTopic("t", 0), Code.INVALID_PARTITIONS),
            (NewTopic("t", 10_001), Code.INVALID_PARTITIONS),
            (NewTopic("t", 1, 4), Code.INVALID_REPLICATION),
            (NewTopic("t", 1, 0), Code.INVALID_REPLICATION),
            (NewTopic("t", settings={"no.such": "1"}), Code.INVALID_CONFIG),
            (NewTopic("t", assignment=[]), Code.INVALID_PARTITIONS),
            (NewTopic("t", assignment=[[]]), Code.INVALID_ASSIGNMENT),
            (NewTopic("t", assignment=[[1, 7]]), Code.INVALID_ASSIGNMENT),
            (NewTopic("t", assignment=[[1, 1]]), Code.INVALID_ASSIGNMENT),
            (NewTopic("t", assignment=[[1, 2], [3]]), Code.INVALID_ASSIGNMENT),
            (NewTopic("t", assignment=[[8]]), Code.INVALID_ASSIGNMENT),
        ):
            error = await refused(broker.catalogue.create_topic(new))
            assert error.code is code, new
            assert new.name in str(error) or code in (Code.INVALID_REPLICATION, Code.INVALID_CONFIG)
        made = await broker.catalogue.create_topic(NewTopic("t", 3, 3), validate_only=True)
        assert (made.name, made.partitions) == ("t", [])
        assert cluster.etcd.state.revision == revision

    run_virtual(main, 1)


def test_a_chosen_assignment_is_kept_and_who_is_not_there_is_not_in_sync() -> None:
    async def main() -> None:
        cluster = Cluster()
        (broker,) = await cluster.start()
        await cluster.test.transact(put={keys.broker_key(3): record(3, leaving=True).encode()})
        await asyncio.sleep(0.1)
        topic = await broker.catalogue.create_topic(NewTopic("t", assignment=[[8, 2, 1], [9, 3, 1], [3, 8, 9]]))
        states = cluster.states(topic.topic_id)
        assert [state.replicas for state in states] == [(8, 2, 1), (9, 3, 1), (3, 8, 9)]
        assert [state.isr for state in states] == [(2, 1), (3, 1), (3,)]
        assert [state.leader for state in states] == [2, 1, 3]  # who is about to stop leads if nobody else can

    run_virtual(main, 1)


def test_a_broker_admitted_a_moment_ago_gets_replicas_although_who_is_asked_has_not_heard_of_it() -> None:
    async def main() -> None:
        cluster = Cluster()
        (broker,) = await cluster.start()
        broker.link.watch_lag_s = 0.5
        await cluster.test.transact(put={keys.admitted_key(9): started(1)})
        topic = await broker.catalogue.create_topic(NewTopic("t", 1, 4))
        assert {*cluster.states(topic.topic_id)[0].replicas} == {1, 2, 3, 9}
        await cluster.test.transact(put={keys.broker_key(8): record(8).encode()})
        await broker.catalogue.create_partitions(topic, 2, assignment=[[8, 1, 2, 3]])
        assert cluster.states(topic.topic_id)[1].isr == (8, 1, 2, 3)

    run_virtual(main, 1)


def test_the_default_is_as_many_replicas_as_there_are_brokers() -> None:
    async def main() -> None:
        cluster = Cluster()
        (broker,) = await cluster.start()
        gone = [*map(keys.broker_key, (3, 9)), *map(keys.member_key, (3, 8, 9))]
        await cluster.test.transact(delete=gone)
        await asyncio.sleep(0.1)
        topic = await broker.catalogue.create_topic(NewTopic("t"))
        assert {len(state.replicas) for state in cluster.states(topic.topic_id)} == {2}
        await cluster.test.transact(delete=[keys.broker_key(1), keys.broker_key(2)])
        await asyncio.sleep(0.1)
        error = await refused(broker.catalogue.create_topic(NewTopic("u")))
        assert error.code is Code.NOT_AVAILABLE and error.retriable

    run_virtual(main, 1)


def test_a_topic_made_while_brokers_are_down_has_replicas_there_and_is_led_by_who_is_up() -> None:
    async def main() -> None:
        cluster = Cluster()
        (broker,) = await cluster.start()
        await cluster.test.transact(
            put={keys.config_key(9): b'{"penstock.cordon": "drained"}'}, delete=[keys.broker_key(3)]
        )
        await asyncio.sleep(0.1)
        states = cluster.states((await broker.catalogue.create_topic(NewTopic("t"))).topic_id)
        assert {len(state.replicas) for state in states} == {3}
        assert {replica for state in states for replica in state.replicas} == {1, 2, 3, 8}, "9 takes nothing"
        assert {state.isr for state in states} == {(1, 2), (2, 1)}
        assert Counter(state.replicas[2] for state in states) == {3: 3, 8: 3}
        asked_for = await refused(broker.catalogue.create_topic(NewTopic("u", 1, 3)))
        assert asked_for.code is Code.INVALID_REPLICATION, "who names a number means brokers that are there"

    run_virtual(main, 1)


def test_a_broker_takes_so_many_replicas_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        cluster = Cluster()
        (broker,) = await cluster.start()
        await broker.catalogue.create_topic(NewTopic("big", 19, 3))
        error = await refused(broker.catalogue.create_topic(NewTopic("t", 2, 3)))
        assert error.code is Code.LIMIT_EXCEEDED and "limit of 20 on broker" in str(error)
        small = await broker.catalogue.create_topic(NewTopic("t", 2, 1))
        assert (await refused(broker.catalogue.create_partitions(small, 4))).code is Code.LIMIT_EXCEEDED
        await broker.catalogue.create_partitions(small, 3)
        assert (await refused(broker.catalogue.create_topic(NewTopic("u", 1, 1)))).code is Code.LIMIT_EXCEEDED
        own = await broker.catalogue.internal_topic(OFFSETS_TOPIC)  # or nobody gets a group
        assert len(own.partitions) == 4

    monkeypatch.setattr("penstock.cluster.catalogue.MAX_PARTITIONS", 20)
    run_virtual(main, 1)


def test_creation_waits_for_leaders_and_says_so_when_there_are_none() -> None:
    async def main() -> None:
        cluster = Cluster()
        (broker,) = await cluster.start()
        broker.lag_s = 3.0
        creating = asyncio.ensure_future(broker.catalogue.create_topic(NewTopic("t", 1)))
        await asyncio.sleep(1)
        stored = cluster.stored("t")
        assert stored is not None and not creating.done()
        (state,) = cluster.states(stored.topic_id)
        key = keys.partition_key(stored.topic_id, 0)
        await cluster.test.transact(put={key: state.led_by(NOBODY).encode()})
        await asyncio.sleep(10)
        assert broker.topics.get("t") is not None and not creating.done()
        await cluster.test.transact(put={key: state.led_by(2).encode()})
        assert (await creating).topic_id == stored.topic_id

        broker.lag_s = 100.0
        before = asyncio.get_running_loop().time()
        error = await refused(broker.catalogue.create_topic(NewTopic("u", 1)))
        assert error.code is Code.TIMED_OUT and "'u' is there" in str(error)
        assert 30 <= asyncio.get_running_loop().time() - before < 31

    run_virtual(main, 1)


def test_a_topic_deleted_while_its_creation_is_waited_for() -> None:
    async def main() -> None:
        cluster = Cluster()
        one, two = await cluster.start(1, 2)
        one.lag_s = 5.0
        creating = asyncio.ensure_future(one.catalogue.create_topic(NewTopic("t", 1)))
        await asyncio.sleep(1)
        topic = two.topics.get("t")
        assert topic is not None
        await two.catalogue.delete_topic(topic)
        assert (await refused(creating)).code is Code.UNKNOWN_TOPIC
        assert asyncio.get_running_loop().time() < 5

    run_virtual(main, 1)


@pytest.mark.parametrize("partitions", [1, 97, 98, 99, 196, 250])
@pytest.mark.parametrize("seed", range(5))
def test_of_many_creators_one_wins_and_nothing_of_the_others_stays(seed: int, partitions: int) -> None:
    async def main() -> None:
        cluster = Cluster(seed)
        brokers = await cluster.start(1, 2, 3)
        new = NewTopic("t", partitions)
        answers: list[Any] = await asyncio.gather(
            *(broker.catalogue.create_topic(new) for broker in brokers), return_exceptions=True
        )
        made = [answer for answer in answers if isinstance(answer, Topic)]
        lost = [answer for answer in answers if isinstance(answer, PenstockError)]
        assert len(made) == 1 and [error.code for error in lost] == [Code.TOPIC_EXISTS] * 2
        cluster.check()

    run_virtual(main, seed)


def test_an_internal_topic_is_made_once_whoever_asks() -> None:
    async def main() -> None:
        cluster = Cluster(3)
        brokers = await cluster.start(1, 2, 3)
        topics = await asyncio.gather(*(b.catalogue.internal_topic(OFFSETS_TOPIC) for b in brokers for _ in range(3)))
        assert len({topic.topic_id for topic in topics}) == 1
        stored = cluster.stored(OFFSETS_TOPIC)
        assert stored is not None and stored.partitions == 4 and stored.settings["cleanup.policy"] == "compact"
        cluster.check()
        for verb in (
            brokers[0].catalogue.delete_topic(topics[0]),
            brokers[0].catalogue.create_partitions(topics[0], 9),
        ):
            assert (await refused(verb)).code is Code.NOT_ALLOWED
        cluster.etcd.down = True
        error = await refused(brokers[0].catalogue.internal_topic("__transaction_state"))
        assert error.code is Code.COORDINATOR_NOT_AVAILABLE and STORE in str(error)

    run_virtual(main, 1)


class Interrupted(SimulatedClient):
    """Calls that change something fail after so many, made or not, and then so many reads fail too."""

    def __init__(self, etcd: SimulatedEtcd, after: int, *, made: bool, reads_lost: int = 0) -> None:
        super().__init__(etcd, etcd.link("broker 1"))
        self.left = after
        self.made = made
        self.reads_lost = reads_lost

    async def transact(self, **arguments: Any) -> int:
        self.left -= 1
        if self.left == -1:
            if self.made:
                await super().transact(**arguments)
            self.link.cut = True
            try:
                await super().transact(expect={"cluster": 1 << 60})
            finally:
                self.link.cut = False
        return await super().transact(**arguments)

    async def get(self, key: str) -> Any:
        if self.left < 0 and self.reads_lost:
            self.reads_lost -= 1
            self.link.cut = True
            try:
                await super().get(key)
            finally:
                self.link.cut = False
        return await super().get(key)


def interrupt(cluster: Cluster, broker: Broker, after: int, *, made: bool, reads_lost: int = 0) -> None:
    broker.catalogue._store = Interrupted(cluster.etcd, after, made=made, reads_lost=reads_lost)


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize(("partitions", "transactions"), [(5, 1), (250, 3)])
def test_creation_through_a_lost_answer(partitions: int, transactions: int, made: bool) -> None:
    async def main() -> None:
        for after in range(transactions):
            cluster = Cluster()
            (broker,) = await cluster.start()
            interrupt(cluster, broker, after, made=made)
            creating = broker.catalogue.create_topic(NewTopic("t", partitions))
            if made and after == transactions - 1:
                await creating
                assert cluster.stored("t") is not None
            else:
                error = await refused(creating)
                assert error.code is Code.NOT_AVAILABLE and STORE in str(error) and "'t'" in str(error)
                assert cluster.stored("t") is None
            cluster.check()

    run_virtual(main, 1)


def test_creation_that_cannot_be_looked_up_is_left_as_it_is() -> None:
    async def main() -> None:
        cluster = Cluster()
        (broker,) = await cluster.start()
        interrupt(cluster, broker, 2, made=True, reads_lost=1)
        error = await refused(broker.catalogue.create_topic(NewTopic("t", 250)))
        assert error.code is Code.NOT_AVAILABLE and "may or may not" in str(error)
        assert cluster.stored("t") is not None  # it was made, so nothing of it may be taken away
        cluster.check()

    run_virtual(main, 1)


def test_a_creation_that_arrives_while_it_is_undone_is_left_whole() -> None:
    async def main() -> None:
        cluster = Cluster()
        (broker,) = await cluster.start()
        store: Any = cluster.etcd.client("broker 1")
        transact, get = store.transact, store.get
        late: list[dict[str, Any]] = []

        async def lose_the_last(**arguments: Any) -> int:
            if not late and keys.TOPICS + "t" in (arguments.get("put") or {}):
                late.append(arguments)
                raise MetadataUnavailable("lost")
            return await transact(**arguments)

        async def look_too_early(key: str) -> Any:
            found = await get(key)
            if late and found is None:
                await transact(**late[0])
            return found

        store.transact, store.get = lose_the_last, look_too_early
        broker.catalogue._store = store
        await broker.catalogue.create_topic(NewTopic("t", 150))
        assert cluster.stored("t") is not None
        cluster.check()

    run_virtual(main, 1)


def test_a_large_creation_and_the_removal_of_its_partitions_exclude_each_other() -> None:
    """Whichever of the last step and a removal as orphans comes first, the other one fails."""

    async def main() -> None:
        for removal_first in (True, False):
            cluster = Cluster()
            (broker,) = await cluster.start()
            seen: dict[str, int] = {}

            async def transact(
                *,
                cluster: Cluster = cluster,
                first: bool = removal_first,
                seen: dict[str, int] = seen,
                **arguments: Any,
            ) -> int:
                if keys.TOPICS + "t" in (arguments.get("put") or {}):
                    entries = cluster.etcd.state.list(keys.PARTITIONS)[:90]
                    seen |= {entry.key: entry.revision for entry in entries}
                    if first:
                        await cluster.test.transact(expect=seen, delete=seen)
                return await cluster.test.transact(**arguments)

            store: Any = cluster.etcd.client("broker 1")
            store.transact = transact
            broker.catalogue._store = store
            if removal_first:
                assert (await refused(broker.catalogue.create_topic(NewTopic("t", 150)))).code is Code.NOT_AVAILABLE
                assert cluster.stored("t") is None
            else:
                await broker.catalogue.create_topic(NewTopic("t", 150))
                with pytest.raises(MetadataConflict):
                    await cluster.test.transact(expect=seen, delete=seen)
            cluster.check()

    run_virtual(main, 1)


# --- growth


def test_a_topic_grows_and_what_it_had_stays() -> None:
    async def main() -> None:
        cluster = Cluster()
        (broker,) = await cluster.start()
        topic = await broker.catalogue.create_topic(NewTopic("t", 2, 2, {"flush": "os"}))
        before = cluster.states(topic.topic_id)
        await broker.catalogue.create_partitions(topic, 300, validate_only=True)
        assert len(topic.partitions) == 2
        await broker.catalogue.create_partitions(topic, 300)
        assert len(topic.partitions) == 300
        after = cluster.states(topic.topic_id)
        assert after[:2] == before and {len(state.replicas) for state in after} == {2}
        assert cluster.stored("t") == TopicRecord(topic.topic_id, 300, {"flush": "os"}, 0)
        await broker.catalogue.create_partitions(topic, 301, assignment=[[3, 1]])
        assert cluster.states(topic.topic_id)[-1].replicas == (3, 1)
        for count, assignment, code in (
            (301, None, Code.INVALID_PARTITIONS),
            (10, None, Code.INVALID_PARTITIONS),
            (303, [[1, 2]], Code.INVALID_ASSIGNMENT),
            (302, [[1, 2, 3]], Code.INVALID_ASSIGNMENT),
        ):
            error = await refused(broker.catalogue.create_partitions(topic, count, assignment=assignment))
            assert error.code is code
        cluster.check()

    run_virtual(main, 1)


@pytest.mark.parametrize("seed", range(20))
def test_brokers_that_grow_one_topic_at_once_harm_nothing_that_exists(seed: int) -> None:
    async def main() -> None:
        cluster = Cluster(seed)
        brokers = await cluster.start(1, 2, 3)
        topic = await brokers[0].catalogue.create_topic(NewTopic("t", 2))
        await asyncio.sleep(0.2)
        living: dict[str, int] = {}

        def watch(changes: list[Any]) -> None:
            """A leader changes a partition as soon as it exists; after that nobody may put it back to its beginning."""
            for change in changes:
                if change.key in living and change.value is not None:
                    assert PartitionState.decode(change.value, 0).leader_epoch > 0, change.key

        cluster.etcd.state.on_change = watch

        async def lead() -> None:
            while True:
                stored = cluster.stored("t")
                assert stored is not None
                for index in range(2, stored.partitions):
                    key = keys.partition_key(topic.topic_id, index)
                    if key not in living:
                        living[key] = 1
                        state = PartitionState.decode(cluster.etcd.state.get(key).value, 0)
                        await cluster.test.transact(put={key: state.led_by(state.leader).encode()})
                await asyncio.sleep(0.001)

        leading = asyncio.ensure_future(lead())
        answers: list[Any] = await asyncio.gather(
            *(
                broker.catalogue.create_partitions(broker.topics.get("t"), count)
                for broker, count in zip(brokers, (250, 320, 250), strict=True)
            ),
            return_exceptions=True,
        )
        leading.cancel()
        assert None in answers
        assert all(answer is None or answer.code is Code.INVALID_PARTITIONS for answer in answers)
        stored = cluster.stored("t")
        assert stored is not None and stored.partitions in (250, 320)
        assert len(cluster.states(topic.topic_id)) >= stored.partitions

    run_virtual(main, seed)


@pytest.mark.parametrize("made", [True, False])
def test_growth_through_a_lost_answer(made: bool) -> None:
    async def main() -> None:
        for after in range(3):
            cluster = Cluster()
            (broker,) = await cluster.start()
            topic = await broker.catalogue.create_topic(NewTopic("t", 2))
            interrupt(cluster, broker, after, made=made)
            growing = broker.catalogue.create_partitions(topic, 250)
            if made and after == 2:
                await growing
            else:
                assert (await refused(growing)).code is Code.NOT_AVAILABLE
                assert len(topic.partitions) == 2
                await broker.catalogue.create_partitions(topic, 260)  # over what the first one left
            cluster.check()

    run_virtual(main, 1)


# --- settings


def test_settings_change_and_those_of_two_at_once_both_count() -> None:
    async def main() -> None:
        cluster = Cluster()
        one, two = await cluster.start(1, 2)
        topic = await one.catalogue.create_topic(NewTopic("t", 1, settings={"flush": "os"}))
        await asyncio.sleep(0.2)

        def setting(name: str, value: str) -> Any:
            return lambda given: {**given, name: value}

        await one.catalogue.alter_topic(topic, setting("segment.ms", "5"), validate_only=True)
        error = await refused(one.catalogue.alter_topic(topic, setting("segment.ms", "x")))
        assert error.code is Code.INVALID_CONFIG
        assert cluster.stored("t").settings == {"flush": "os"}
        await asyncio.gather(
            one.catalogue.alter_topic(topic, setting("segment.ms", " 5")),
            two.catalogue.alter_topic(two.topics.get("t"), setting("retention.ms", "7")),
        )
        assert cluster.stored("t").settings == {"flush": "os", "segment.ms": "5", "retention.ms": "7"}
        await asyncio.sleep(0.2)
        assert topic.config.given == cluster.stored("t").settings
        revision = cluster.etcd.state.revision
        await one.catalogue.alter_topic(topic, setting("segment.ms", "5"))
        assert cluster.etcd.state.revision == revision

        one.lag_s = 0.5
        await one.catalogue.alter_topic(topic, setting("segment.ms", "9"))
        assert topic.config.given["segment.ms"] == "9"

    run_virtual(main, 1)


@pytest.mark.parametrize("made", [True, False])
def test_new_settings_through_a_lost_answer(made: bool) -> None:
    async def main() -> None:
        cluster = Cluster()
        (broker,) = await cluster.start()
        topic = await broker.catalogue.create_topic(NewTopic("t", 1))
        interrupt(cluster, broker, 0, made=made)
        altering = broker.catalogue.alter_topic(topic, lambda _: {"flush": "os"})
        if made:
            await altering
            assert topic.config.given == {"flush": "os"}
        else:
            error = await refused(altering)
            assert error.code is Code.NOT_AVAILABLE and STORE in str(error)
            assert topic.config.given == {}

    run_virtual(main, 1)


# --- queues


async def with_queues(cluster: Cluster, *node_ids: int) -> list[Broker]:
    """Brokers of a cluster in which topics may have queues."""
    await cluster.test.transact(put={keys.FEATURES: b'{"level": %d}' % ATTACHES_FROM})
    return await cluster.start(*node_ids)


def queue(group: str, **settings: str) -> Any:
    return lambda queues: {**queues, group: settings}


def test_queues_change_and_those_of_two_at_once_both_count() -> None:
    async def main() -> None:
        cluster = Cluster()
        one, two = await with_queues(cluster, 1, 2)
        topic = await one.catalogue.create_topic(NewTopic("t", 1, settings={"flush": "os"}))
        await asyncio.sleep(0.2)
        seen = two.topics.get("t")
        await asyncio.gather(
            one.catalogue.alter_queues(topic, queue("a", ttl="1h")),
            two.catalogue.alter_queues(seen, queue("b")),
            one.catalogue.alter_topic(topic, lambda given: {**given, "segment.ms": "5"}),
        )
        queues = {"a": {"ttl": "1h"}, "b": {}}
        assert cluster.stored("t").queues == queues
        assert cluster.stored("t").settings == {"flush": "os", "segment.ms": "5"}
        await asyncio.sleep(0.2)
        assert topic.queues == seen.queues == queues
        revision = cluster.etcd.state.revision
        await one.catalogue.alter_queues(topic, queue("b"))
        assert cluster.etcd.state.revision == revision

        one.lag_s = 0.5
        await one.catalogue.create_partitions(topic, 2)
        await one.catalogue.alter_queues(topic, queue("b", ttl="2h"))
        assert topic.queues["b"] == {"ttl": "2h"}, "in effect when it returns"
        assert (cluster.stored("t").partitions, cluster.stored("t").queues) == (2, {**queues, "b": {"ttl": "2h"}})

    run_virtual(main, 1)


def test_queues_that_are_refused_change_nothing() -> None:
    async def main() -> None:
        cluster = Cluster()
        (broker,) = await with_queues(cluster)
        topic = await broker.catalogue.create_topic(NewTopic("t", 1))
        await broker.catalogue.alter_queues(topic, queue("a"))
        too_many = {f"q{number}": {"ttl": "1h"} for number in range(MAX_QUEUES + 1)}
        error = await refused(broker.catalogue.alter_queues(topic, lambda _: too_many))
        assert error.code is Code.LIMIT_EXCEEDED
        assert cluster.stored("t").queues == topic.queues == {"a": {}}
        await broker.catalogue.delete_topic(topic)
        assert (await refused(broker.catalogue.alter_queues(topic, queue("b")))).code is Code.UNKNOWN_TOPIC

    run_virtual(main, 1)


def test_there_are_no_queues_before_every_broker_knows_what_is_attached() -> None:
    async def main() -> None:
        cluster = Cluster()
        (broker,) = await cluster.start()
        topic = await broker.catalogue.create_topic(NewTopic("t", 1))
        error = await refused(broker.catalogue.alter_queues(topic, queue("a")))
        assert error.code is Code.NOT_AVAILABLE and "feature level 0" in str(error) and error.help
        assert cluster.stored("t").queues == {}

    run_virtual(main, 1)


@pytest.mark.parametrize("made", [True, False])
def test_new_queues_through_a_lost_answer(made: bool) -> None:
    async def main() -> None:
        cluster = Cluster()
        (broker,) = await with_queues(cluster)
        topic = await broker.catalogue.create_topic(NewTopic("t", 1))
        interrupt(cluster, broker, 0, made=made)
        altering = broker.catalogue.alter_queues(topic, queue("a"))
        if made:
            await altering
            assert topic.queues == {"a": {}}
        else:
            error = await refused(altering)
            assert error.code is Code.NOT_AVAILABLE and "may or may not" in str(error)
            assert topic.queues == {}

    run_virtual(main, 1)


# --- deletion


@pytest.mark.parametrize("partitions", [2, 250])
def test_a_deleted_topic_leaves_a_note_of_who_has_files_and_nothing_else(partitions: int) -> None:
    async def main() -> None:
        cluster = Cluster()
        (broker,) = await cluster.start()
        topic = await broker.catalogue.create_topic(NewTopic("t", assignment=[[2, 8]] * partitions))
        await cluster.test.transact(put={keys.end_key(topic.topic_id, 0, 2): End(1, 0, 5).encode()})
        await broker.catalogue.delete_topic(topic)
        assert broker.topics.get("t") is None and cluster.stored("t") is None
        assert cluster.etcd.state.list(keys.ENDS) == []
        (note,) = cluster.etcd.state.list(keys.DELETED)
        assert note.key == keys.DELETED + str(topic.topic_id)
        assert DeletedTopic.decode(note.value, 0) == DeletedTopic("t", (2, 8))
        cluster.check()
        assert (await refused(broker.catalogue.delete_topic(topic))).code is Code.UNKNOWN_TOPIC
        again = await broker.catalogue.create_topic(NewTopic("t", 1))
        assert again.topic_id != topic.topic_id
        for verb in (
            broker.catalogue.delete_topic(topic),
            broker.catalogue.create_partitions(topic, 9),
            broker.catalogue.alter_topic(topic, _same),
        ):
            assert (await refused(verb)).code is Code.UNKNOWN_TOPIC
        assert cluster.stored("t") is not None

    run_virtual(main, 1)


def _same(settings: Mapping[str, str]) -> Mapping[str, str]:
    return settings


@pytest.mark.parametrize("seed", range(10))
def test_deletion_beside_growth_and_new_settings_leaves_nothing(seed: int) -> None:
    async def main() -> None:
        cluster = Cluster(seed)
        brokers = await cluster.start(1, 2, 3)
        topic = await brokers[0].catalogue.create_topic(NewTopic("t", 20))
        await asyncio.sleep(0.2)
        seen = [broker.topics.get("t") for broker in brokers]
        answers: tuple[Any, ...] = await asyncio.gather(
            brokers[0].catalogue.delete_topic(topic),
            brokers[1].catalogue.create_partitions(seen[1], 80),
            brokers[2].catalogue.alter_topic(seen[2], lambda _: {"flush": "os"}),
            return_exceptions=True,
        )
        assert answers[0] is None
        assert all(answer is None or answer.code is Code.UNKNOWN_TOPIC for answer in answers)
        assert cluster.stored("t") is None
        cluster.check()

    run_virtual(main, seed)


@pytest.mark.parametrize("made", [True, False])
def test_deletion_through_a_lost_answer(made: bool) -> None:
    async def main() -> None:
        cluster = Cluster()
        (broker,) = await cluster.start()
        topic = await broker.catalogue.create_topic(NewTopic("t", 1))
        interrupt(cluster, broker, 0, made=made)
        deleting = broker.catalogue.delete_topic(topic)
        if made:
            await deleting
            assert broker.topics.get("t") is None
        else:
            error = await refused(deleting)
            assert error.code is Code.NOT_AVAILABLE and "may or may not" in str(error)
            assert broker.topics.get("t") is topic
        cluster.check()

    run_virtual(main, 1)


@pytest.mark.parametrize("seed", range(20))
def test_through_lost_and_late_answers_every_topic_is_whole_and_every_answer_true(seed: int) -> None:
    async def main() -> None:
        cluster = Cluster(seed)
        brokers = await cluster.start(1, 2)
        random = Random(seed)
        for broker in brokers:
            broker.link.loss = 0.15
        codes = set()
        for _ in range(15):
            broker, name = random.choice(brokers), f"t{random.randrange(3)}"
            topic = broker.topics.get(name)
            try:
                if topic is None:
                    made = await broker.catalogue.create_topic(NewTopic(name, random.choice((1, 120))))
                    assert cluster.stored(name).topic_id == made.topic_id
                elif random.random() < 0.5:
                    await broker.catalogue.delete_topic(topic)
                    stored = cluster.stored(name)
                    assert stored is None or stored.topic_id != topic.topic_id
                else:
                    await broker.catalogue.create_partitions(topic, len(topic.partitions) + random.choice((1, 130)))
            except PenstockError as error:
                codes.add(error.code)
            await asyncio.sleep(random.random())
        assert codes <= {Code.NOT_AVAILABLE, Code.TOPIC_EXISTS, Code.UNKNOWN_TOPIC, Code.INVALID_PARTITIONS}
        for broker in brokers:
            broker.link.loss = 0.0
        await asyncio.sleep(30)  # what was lost may still arrive
        for entry in cluster.etcd.state.list(keys.TOPICS):
            stored = TopicRecord.decode(entry.value)
            assert len(cluster.states(stored.topic_id)) >= stored.partitions  # the rest is of a growth cut short
        await asyncio.gather(*(broker.watcher.refresh() for broker in brokers))
        assert [broker.failures for broker in brokers] == [[], []]

    run_virtual(main, seed)


def test_settings_that_keep_groups_stay() -> None:
    async def main() -> None:
        cluster = Cluster()
        (broker,) = await cluster.start()
        topic = await broker.catalogue.internal_topic(OFFSETS_TOPIC)
        for changes in ({"cleanup.policy": "delete"}, {"flush": "os"}, {"min.insync.replicas": "1"}):
            error = await refused(broker.catalogue.alter_topic(topic, partial(_with, changes)))
            assert error.code is Code.NOT_ALLOWED
        error = await refused(broker.catalogue.create_topic(NewTopic("__transaction_state", settings={"flush": "os"})))
        assert error.code is Code.NOT_ALLOWED
        await broker.catalogue.alter_topic(topic, lambda given: {"segment.ms": "3600000"})
        stored = cluster.stored(OFFSETS_TOPIC)
        assert stored is not None
        assert stored.settings == {**SETTINGS, "segment.ms": "3600000"}

    run_virtual(main, 1)
