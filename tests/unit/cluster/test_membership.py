"""Membership: one process for each node id, an incarnation for each start, a registration for as long as it lives."""

import asyncio
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import orjson
import pytest

from penstock.cluster import keys
from penstock.cluster.image import BrokerRecord, ControllerRecord, Image
from penstock.cluster.membership import Membership, NodeIdTaken
from penstock.cluster.watcher import Watcher
from penstock.engine.partition_state import PartitionState
from penstock.engine.topics import TopicRecord
from penstock.ports.metadata import MetadataConflict, MetadataUnavailable
from penstock.testing.memory_metadata import SimulatedEtcd
from penstock.testing.virtual_clock import VirtualClock, run_virtual

TTL_S = 4
TOPIC_ID = UUID(int=5)


class Broker:
    """One start of a broker, as far as membership goes. Its link to the store is that of `node_id`."""

    def __init__(self, etcd: SimulatedEtcd, node_id: int = 1, port: int = 9093, *, listening: bool = True) -> None:
        self.etcd = etcd
        self.node_id = node_id
        self.link = etcd.link(f"broker {node_id}")
        self.image = Image()
        self.failures: list[BaseException] = []
        self.probed: list[tuple[str, int]] = []
        self.listening = listening
        """What a probe of another broker says."""
        store = etcd.client(f"broker {node_id}")
        clock = VirtualClock()
        self.watcher = Watcher(store, self.image, clock, self.failures.append)
        me = BrokerRecord(node_id, "host", port - 1, "host", port, None, 0, clean=False)
        self.member = Membership(store, self.watcher, clock, Random(etcd.random.random()), me, self.probe, TTL_S)
        self._tasks: list[asyncio.Task[None]] = []

    async def probe(self, host: str, port: int) -> bool:
        self.probed.append((host, port))
        return self.listening

    async def start(self, clean_incarnation: int | None = None) -> "Broker":
        await self.watcher.start()
        self.spawn(self.watcher.run())
        await self.member.register(clean_incarnation)
        self.running = self.spawn(self.member.run())
        return self

    def spawn(self, work: Any) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        return task

    async def kill(self) -> None:
        """As kill -9 would, except that tasks hear of it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def record(self) -> BrokerRecord | None:
        """What the store has."""
        entry = self.etcd.state.get(keys.broker_key(self.node_id))
        return None if entry is None else BrokerRecord.decode(entry.value, entry.revision)


async def pass_time(seconds: float) -> None:
    await asyncio.sleep(seconds)


def last_start(etcd: SimulatedEtcd, node_id: int = 1) -> int:
    entry = etcd.state.get(keys.member_key(node_id))
    return 0 if entry is None else orjson.loads(entry.value)["incarnation"]


# --- coming


def test_each_start_has_its_number_and_knows_whether_the_last_stop_was_clean() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        for mark, clean in ((None, True), (1, True), (1, False), (None, False), (4, True), (6, False)):
            broker = await Broker(etcd).start(mark)
            number = last_start(etcd)
            assert broker.member.incarnation == number
            assert broker.member.clean is clean
            assert broker.record is not None
            assert (broker.record.incarnation, broker.record.clean, broker.record.leaving) == (number, clean, False)
            await broker.member.stop()
            assert broker.record is None
            await broker.kill()
        assert number == 6

    run_virtual(main, 1)


def test_a_registration_lives_as_long_as_the_process_and_the_lease_longer_by_its_time() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        broker = await Broker(etcd).start()
        await pass_time(60)
        assert broker.record is not None and broker.member.holds()
        await broker.kill()
        await pass_time(TTL_S - 2)
        assert broker.record is not None
        await pass_time(3)
        assert broker.record is None

    run_virtual(main, 1)


@pytest.mark.parametrize("same_address", [False, True])
def test_what_a_killed_process_left_is_replaced_at_once(same_address: bool) -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        await (await Broker(etcd).start()).kill()
        before = asyncio.get_running_loop().time()
        after = Broker(etcd, port=9093 if same_address else 9999, listening=same_address)
        await after.start()
        assert asyncio.get_running_loop().time() - before < 0.5
        assert after.probed == ([] if same_address else [("host", 9093)])
        assert after.record is not None and after.record.incarnation == 2 and not after.record.clean
        await pass_time(60)  # the end of the old lease takes nothing away
        assert after.record is not None and after.record.incarnation == 2 and after.failures == []

    run_virtual(main, 1)


def test_a_node_id_in_use_is_refused_and_its_owner_undisturbed() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        owner = await Broker(etcd).start()
        loop = asyncio.get_running_loop()
        before = loop.time()
        with pytest.raises(NodeIdTaken, match="node id 1 is in use by host:9093"):
            await Broker(etcd, port=9999).start()
        assert TTL_S < loop.time() - before < TTL_S + 4
        assert last_start(etcd) == 1  # so the owner's clean mark stays good
        assert not owner.running.done() and owner.record is not None

    run_virtual(main, 1)


def test_an_owner_that_goes_while_it_is_waited_for_makes_room() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        owner = await Broker(etcd).start()
        starting = asyncio.ensure_future(Broker(etcd, port=9999).start(1))
        await pass_time(2)
        await owner.member.stop()
        broker = await starting
        assert broker.member.incarnation == 2 and broker.member.clean

    run_virtual(main, 1)


@pytest.mark.parametrize("seed", range(20))
def test_of_two_that_start_at_once_one_stays(seed: int) -> None:
    async def main() -> None:
        etcd = SimulatedEtcd(seed)
        twins = [Broker(etcd, port=9093 + number) for number in range(2)]
        await asyncio.gather(*(twin.start() for twin in twins), return_exceptions=True)
        await pass_time(20)
        staying = [twin for twin in twins if hasattr(twin, "running") and not twin.running.done()]
        assert len(staying) == 1
        assert staying[0].record is not None
        assert staying[0].record.incarnation == staying[0].member.incarnation == last_start(etcd)

    run_virtual(main, seed)


@pytest.mark.parametrize("seed", range(30))
def test_a_start_through_lost_answers_is_one_start_and_as_clean_as_it_was(seed: int) -> None:
    async def main() -> None:
        etcd = SimulatedEtcd(seed, lost_but_made=0.7)
        first = await Broker(etcd).start()
        await first.member.stop()
        await first.kill()
        second = Broker(etcd)
        second.link.loss = 0.5
        await second.start(1)
        assert second.member.clean
        assert second.member.incarnation == last_start(etcd) == 2
        second.link.loss = 0.0
        await pass_time(20)
        assert second.record is not None and second.record.clean and not second.running.done()

    run_virtual(main, seed)


def test_a_start_waits_for_the_store() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        broker = Broker(etcd)
        await broker.watcher.start()
        etcd.down = True
        asyncio.get_running_loop().call_later(40, setattr, etcd, "down", False)
        await broker.member.register(None)
        assert asyncio.get_running_loop().time() >= 40 and broker.record is not None

    run_virtual(main, 1)


# --- staying


def test_the_lease_is_known_to_hold_for_its_time_after_the_last_word_was_sent() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd(expiry_lag_s=0.0, lost_but_made=0.0)
        broker = await Broker(etcd).start()
        await pass_time(10)
        broker.link.cut = True
        held_at = lost_at = 0.0
        loop = asyncio.get_running_loop()
        while broker.record is not None:  # whenever it holds for us, it holds in truth
            if broker.member.holds():
                held_at = loop.time()
            await pass_time(0.01)
        lost_at = loop.time()
        assert not broker.member.holds()
        assert 0 < lost_at - held_at < 0.1

    run_virtual(main, 1)


def test_a_slow_answer_does_not_lengthen_the_lease() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        broker = await Broker(etcd).start()
        await pass_time(5)
        real, loop = broker.member._store.keep_alive, asyncio.get_running_loop()
        sent: list[float] = []

        async def slow(lease: int) -> None:
            sent.append(loop.time())
            await real(lease)
            await asyncio.sleep(1.2)

        broker.member._store.keep_alive = slow
        while not sent:
            await pass_time(0.01)
        await pass_time(1.25)
        broker.member._store.keep_alive = real
        broker.link.cut = True
        while loop.time() < sent[0] + TTL_S - 0.02:
            assert broker.member.holds()
            await pass_time(0.01)
        await pass_time(0.04)
        assert not broker.member.holds()

    run_virtual(main, 1)


def test_a_call_that_hangs_does_not_cost_the_lease() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd(timeout_s=60.0)
        broker = await Broker(etcd).start()
        broker.link.cut = True
        await pass_time(1.5)  # a word is under way, and would wait for a minute
        broker.link.cut = False
        await pass_time(30)
        assert broker.member.holds() and broker.record is not None
        assert broker.record.revision == broker.member._revision

    run_virtual(main, 1)


@pytest.mark.parametrize("clean", [True, False])
def test_after_its_lease_was_lost_a_broker_comes_back_as_the_same_start(clean: bool) -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        await etcd.client("test").transact(put={keys.member_key(1): b'{"incarnation": 6}'})
        broker = await Broker(etcd).start(6 if clean else None)
        lease = broker.member.lease
        broker.link.cut = True
        await pass_time(20)
        assert broker.record is None and not broker.member.holds()
        broker.link.cut = False
        await pass_time(6)
        assert broker.record is not None and broker.member.holds() and broker.member.lease != lease
        # The controller may not have acted upon an unclean start yet.
        assert (broker.record.incarnation, broker.record.clean) == (7, clean)
        await pass_time(60)
        assert broker.record is not None and last_start(etcd) == 7

    run_virtual(main, 1)


def test_a_broker_taken_out_while_alive_is_back_in_a_moment_and_keeps_its_lease() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        broker = await Broker(etcd).start()
        await pass_time(3)
        lease = broker.member.lease
        await etcd.client("test").transact(delete=[keys.broker_key(1)])
        await pass_time(0.1)
        assert broker.record is not None and broker.record.incarnation == 1
        assert broker.member.lease == lease
        await pass_time(60)
        assert broker.record is not None

    run_virtual(main, 1)


def test_a_later_start_elsewhere_stops_the_broker() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        broker = await Broker(etcd).start()
        await Broker(etcd, port=9999, listening=False).start()
        with pytest.raises(
            NodeIdTaken, match=r"node id 1 was taken by the process at host:9999: this is start 1, .* 2"
        ):
            await asyncio.wait_for(broker.running, 1)

    run_virtual(main, 1)


def test_a_sleeper_whose_successor_is_gone_does_not_come_back() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        sleeper = await Broker(etcd).start()
        sleeper.link.cut = True
        await pass_time(10)
        successor = Broker(etcd, port=9999)
        successor.watcher._store = successor.member._store = etcd.client("another")
        await successor.start()
        await successor.member.stop()
        assert sleeper.record is None
        sleeper.link.cut = False
        with pytest.raises(NodeIdTaken, match="start 1, the last one is 2"):
            await asyncio.wait_for(sleeper.running, 10)
        assert sleeper.record is None

    run_virtual(main, 1)


def test_a_start_between_a_look_and_a_registration_wins() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        broker = await Broker(etcd).start()
        real = broker.member._store.transact

        async def overtaken(**arguments: Any) -> int:
            await etcd.client("test").transact(put={keys.member_key(1): b'{"incarnation": 2}'})
            return await real(**arguments)

        broker.member._store.transact = overtaken
        await etcd.client("test").transact(delete=[keys.broker_key(1)])
        with pytest.raises(NodeIdTaken):
            await asyncio.wait_for(broker.running, 5)
        assert broker.record is None

    run_virtual(main, 1)


def test_a_registration_that_arrives_late_does_not_undo_a_later_one() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        broker = await Broker(etcd).start()
        real = broker.member._store.transact
        late: list[dict[str, Any]] = []

        async def lost(**arguments: Any) -> int:
            if not late:
                late.append(arguments)
                raise MetadataUnavailable("lost")
            return await real(**arguments)

        await pass_time(1)
        broker.member._store.transact = lost
        await etcd.client("test").transact(delete=[keys.broker_key(1)])
        await pass_time(3)
        assert await broker.member.leave()
        with pytest.raises(MetadataConflict):
            await real(**late[0])
        assert broker.record is not None and broker.record.leaving

    run_virtual(main, 1)


@pytest.mark.parametrize("seed", range(20))
def test_through_every_fault_a_living_broker_ends_up_registered(seed: int) -> None:
    async def main() -> None:
        etcd = SimulatedEtcd(seed)
        random = Random(seed)
        broker, other = await Broker(etcd).start(), await Broker(etcd, 2, 9193).start()
        for _ in range(30):
            broker.link.loss = random.choice((0.0, 0.5))
            broker.link.cut = random.random() < 0.2
            etcd.down = random.random() < 0.1
            if random.random() < 0.3:
                await other.member.suspect(1)
            await pass_time(random.choice((0.1, 1.0, 6.0)))
        broker.link.loss, broker.link.cut, etcd.down = 0.0, False, False
        await pass_time(15)
        assert not broker.running.done()
        assert broker.record is not None and broker.record.incarnation == 1 == last_start(etcd)
        assert broker.member.holds()
        assert broker.image.brokers == {1: broker.record, 2: other.record}
        await pass_time(30)
        assert broker.record is not None

    run_virtual(main, seed)


# --- suspicion


async def two(etcd: SimulatedEtcd) -> tuple[Broker, Broker]:
    first, second = await Broker(etcd).start(), await Broker(etcd, 2, 9193).start()
    await pass_time(0.1)
    return first, second


def test_a_suspect_is_taken_out_and_its_office_with_it() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        first, second = await two(etcd)
        await etcd.client("test").transact(
            put_leased={keys.CONTROLLER: ControllerRecord(2, 1).encode()}, lease=second.member.lease
        )
        await pass_time(0.1)
        await second.kill()
        await first.member.suspect(2)
        assert second.record is None and etcd.state.get(keys.CONTROLLER) is None
        await first.member.suspect(2)  # gone already, in truth if not in the image
        await first.member.suspect(7)
        await first.member.suspect(1)
        assert first.record is not None

    run_virtual(main, 1)


def test_the_office_of_another_is_left_alone() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        first, second = await two(etcd)
        await etcd.client("test").transact(put={keys.CONTROLLER: ControllerRecord(1, 1).encode()})
        await pass_time(0.1)
        await first.member.suspect(2)
        assert second.record is None and etcd.state.get(keys.CONTROLLER) is not None

    run_virtual(main, 1)


def test_a_broker_that_came_back_is_not_taken_for_the_one_before() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        first, second = await two(etcd)
        await second.kill()
        first.link.watch_lag_s = 5.0
        again = await Broker(etcd, 2, 9193).start()
        await first.member.suspect(2)  # the image still has the one before: a conflict
        assert again.record is not None and again.record.incarnation == 2
        await pass_time(15)
        assert first.image.brokers[2] == again.record
        revision = again.record.revision
        await first.member.suspect(2, 1)
        await pass_time(1)
        assert again.record is not None and again.record.revision == revision
        first.link.cut = True
        await first.member.suspect(2, 2)  # nobody answers, nothing is raised
        first.link.cut = False
        await pass_time(10)
        assert again.record is not None  # if the change was made all the same, it has come back

    run_virtual(main, 1)


# --- going


async def lead(etcd: SimulatedEtcd, *states: PartitionState) -> None:
    """Have a topic with these partitions."""
    put = {keys.partition_key(TOPIC_ID, index): state.encode() for index, state in enumerate(states)}
    put[keys.TOPICS + "t"] = TopicRecord(TOPIC_ID, len(states), {}, 0).encode()
    put[keys.admitted_key(1)] = put[keys.admitted_key(2)] = b'{"incarnation": 1}'
    await etcd.client("test").transact(put=put)


def test_leaving_waits_until_others_lead() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        first, _second = await two(etcd)
        state = PartitionState((1, 2), (1, 2), 1, 0)
        alone = PartitionState((1,), (1,), 1, 0)
        behind = PartitionState((1, 2), (1,), 1, 0)
        await lead(etcd, state, alone, behind)
        await pass_time(0.1)
        leaving = asyncio.ensure_future(first.member.leave())
        await pass_time(5)
        assert first.record is not None and first.record.leaving and not leaving.done()
        await lead(etcd, state.led_by(2), alone, behind)
        assert await asyncio.wait_for(leaving, 1)
        await first.member.stop()
        assert first.record is None and not first.member.holds()
        await pass_time(10)
        assert first.running.done() and first.record is None

    run_virtual(main, 1)


def test_leaving_does_not_wait_for_ever_nor_for_who_leaves_too() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        first, second = await two(etcd)
        await lead(etcd, PartitionState((1, 2), (1, 2), 1, 0))
        await pass_time(0.1)
        loop = asyncio.get_running_loop()
        before = loop.time()
        assert not await first.member.leave(deadline_s=7)
        assert 6.9 < loop.time() - before < 7.1
        waiting = asyncio.ensure_future(first.member.leave(deadline_s=30))
        await pass_time(1)
        assert await second.member.leave(deadline_s=1)
        assert await asyncio.wait_for(waiting, 1)

    run_virtual(main, 1)


def test_a_broker_that_leaves_says_so_after_every_interruption() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd()
        broker = await Broker(etcd).start()
        etcd.down = True
        assert not await broker.member.leave(deadline_s=5)
        etcd.down = False
        await pass_time(10)
        assert broker.record is not None and broker.record.leaving
        await etcd.client("test").transact(delete=[keys.broker_key(1)])
        await pass_time(1)
        assert broker.record is not None and broker.record.leaving

    run_virtual(main, 1)


def test_a_stop_without_a_store_ends_in_time_and_so_does_the_registration() -> None:
    async def main() -> None:
        etcd = SimulatedEtcd(timeout_s=60.0, lost_but_made=0.0)
        broker = await Broker(etcd).start()
        broker.link.cut = True
        loop = asyncio.get_running_loop()
        before = loop.time()
        await broker.member.stop()
        assert loop.time() - before <= TTL_S + 0.1
        assert not broker.member.holds()
        broker.link.cut = False
        await pass_time(TTL_S + 2)
        assert broker.record is None and broker.running.done()

    run_virtual(main, 1)


def test_a_record_comes_back_as_it_was_written() -> None:
    record = BrokerRecord(3, "a", 1, "b", 2, "rack", 9, clean=True, leaving=True)
    assert BrokerRecord.decode(record.encode(), 4) == replace(record, revision=4)
