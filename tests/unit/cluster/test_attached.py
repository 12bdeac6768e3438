"""What is attached to a partition, in a cluster of three: where the partition is, in sync with it, mended and gone."""

import asyncio
from typing import Any

import pytest
from tests.attached_counter import COUNTER
from tests.simulated_broker import append, batch_of
from tests.unit.cluster.trial import Trial, play, trial

from penstock.cluster import keys
from penstock.cluster.image import ACKS_IN_TRANSACTIONS_FROM, ATTACHES_FROM
from penstock.engine.partition import Partition
from penstock.engine.queues.transactional_acks import AckRequest
from penstock.errors import Code, PenstockError

DIRECTORY = "data/logs/t~count/0"


async def step(trial: Trial, name: str) -> int:
    """A step at whoever leads."""
    leader = trial.led()
    assert leader is not None

    async def work(broker: Any) -> int:
        number: int = await broker.counters.step(broker.engine.topics.partition("t", 0), name)
        return number

    result: int = await trial.do(leader, work)
    return result


def attached(trial: Trial, node_id: int) -> Partition:
    return trial.partition(node_id).attached[0]


async def begun(trial: Trial) -> None:
    """Three steps, which all replicas have."""
    await trial.until(lambda: trial.cluster.lives[1].node.image.level >= ATTACHES_FROM)
    assert [await step(trial, name) for name in ("a", "b", "c")] == [1, 2, 3]
    await until_alike(trial)


async def until_alike(trial: Trial) -> None:
    """Everything that is attached is as long as the leader's, on all who are there."""

    def is_so() -> bool:
        lives = trial.cluster.lives
        if not all(trial.knows(node_id, "t") and trial.partition(node_id).attached for node_id in lives):
            return False
        logs = [attached(trial, node_id).log for node_id in lives]
        return None not in logs and len({log.visible_end for log in logs if log is not None}) == 1

    await trial.until(is_so)


@trial
async def test_it_has_the_leader_the_epoch_and_the_replicas_of_its_partition(trial: Trial) -> None:
    await begun(trial)
    for node_id in (1, 2, 3):
        data, beside = trial.partition(node_id), attached(trial, node_id)
        assert (beside.led is not None) == (data.led is not None) == (node_id == 1)
        assert (beside.state, beside.leader_epoch) == (data.state, data.leader_epoch)


@trial
async def test_who_leads_next_goes_on_where_the_last_one_was(trial: Trial) -> None:
    await begun(trial)
    trial.cluster.kill(1)
    await trial.until(lambda: trial.led() in (2, 3))
    assert [await step(trial, name) for name in ("c", "d")] == [3, 4]
    trial.cluster.start(1)
    await trial.until(lambda: trial.states[-1].isr == (1, 2, 3))
    await until_alike(trial)


@trial
async def test_what_it_needs_is_spared_by_who_leads_next(trial: Trial) -> None:
    await begun(trial)

    async def need(broker: Any) -> None:
        await broker.counters.need(broker.engine.topics.partition("t", 0), 6)

    await trial.do(1, need)
    trial.cluster.kill(1)
    await trial.until(lambda: trial.led() in (2, 3))
    leader = trial.led()
    assert leader is not None
    topic = trial.cluster.lives[leader].engine.topics.get("t")
    assert topic is not None
    settings = {"retention.bytes": "0", "segment.bytes": "1024", "min.insync.replicas": "2"}
    await trial.do(leader, lambda broker: broker.engine.alter_topic(topic, lambda _: settings))
    await trial.until(lambda: trial.partition(leader).opened().log_start > 0)
    await asyncio.sleep(10)
    assert 0 < trial.partition(leader).opened().log_start <= 6


@trial
async def test_a_follower_that_lacks_it_is_not_in_sync_however_much_of_the_data_it_has(trial: Trial) -> None:
    await begun(trial)
    following = trial.cluster.lives[3].node._followings[1][1]
    beside = attached(trial, 3)
    following.remove(beside)
    stepping = asyncio.ensure_future(step(trial, "d"))
    await trial.until(lambda: trial.states and trial.states[-1].isr == (1, 2))
    assert await stepping == 4
    assert trial.partition(3).opened().visible_end == trial.partition(1).opened().visible_end
    await asyncio.sleep(5)
    assert trial.states[-1].isr == (1, 2), "it has all of the data"
    following.add(beside)
    await trial.until(lambda: trial.states[-1].isr == (1, 2, 3))


@trial
async def test_rot_in_it_has_it_made_anew_and_the_data_left_alone(trial: Trial) -> None:
    await begun(trial)
    await trial.until(lambda: attached(trial, 3).opened().visible_end > 0)
    path = attached(trial, 3).opened().active.path
    trial.cluster.kill(3)
    trial.cluster.disks[3].flip_byte(path, 40)
    await trial.until(lambda: trial.states and trial.states[-1].isr == (1, 2))
    data = trial.cluster.disks[3].read_durable("data/logs/t/0/partition.meta")
    trial.cluster.disks[3].flip_byte(f"{DIRECTORY}/partition.meta", 20)
    trial.cluster.start(3)
    await trial.until(lambda: trial.states[-1].isr == (1, 2, 3))
    await until_alike(trial)
    await trial.until(lambda: not [path for path in trial.cluster.disks[3].files() if "/~" in path])
    assert trial.cluster.disks[3].read_durable("data/logs/t/0/partition.meta") == data
    assert trial.cluster.lives[3].stats.mended_replicas == 1
    trial.cluster.kill(1)
    await trial.until(lambda: trial.led() in (2, 3))
    assert await step(trial, "d") == 4


@trial
async def test_one_that_is_gone_is_had_from_the_others_before_its_broker_counts(trial: Trial) -> None:
    await begun(trial)
    trial.cluster.kill(2)
    trial.cluster.kill(3)
    await trial.until(lambda: trial.states and trial.states[-1].isr == (1,))
    data = trial.partition(1)
    for number in range(20):  # nobody else has these, and nobody was promised them; they make its history the longest
        append(data, batch_of([b"%d" % number], trial.cluster.clocks[1]))
    await trial.until(lambda: data.opened().durable_end == data.end_offset)
    trial.cluster.kill(1)
    trial.cluster.disks[1].lose(DIRECTORY)
    for node_id in (1, 2, 3):
        trial.cluster.start(node_id)
    await trial.until(lambda: trial.led() is not None and trial.states[-1].isr == (1, 2, 3), 120.0)
    assert [await step(trial, name) for name in ("c", "d")] == [3, 4]


@trial
async def test_an_old_copy_of_it_is_had_from_the_others_before_its_broker_counts(trial: Trial) -> None:
    await begun(trial)
    backup = trial.cluster.disks[1].backup()
    assert [await step(trial, name) for name in ("d", "e")] == [4, 5]
    await until_alike(trial)
    await asyncio.sleep(3)  # until it is on record how far everything is committed
    trial.cluster.kill(2)
    trial.cluster.kill(3)
    await trial.until(lambda: trial.states and trial.states[-1].isr == (1,))
    data = trial.partition(1)
    for number in range(20):
        append(data, batch_of([b"%d" % number], trial.cluster.clocks[1]))
    await trial.until(lambda: data.opened().durable_end == data.end_offset)
    trial.cluster.kill(1)
    trial.cluster.disks[1].restore(DIRECTORY, backup)
    for node_id in (1, 2, 3):
        trial.cluster.start(node_id)
    await trial.until(lambda: trial.led() is not None and trial.states[-1].isr == (1, 2, 3), 120.0)
    assert [await step(trial, name) for name in ("e", "f")] == [5, 6]


@trial
async def test_one_that_only_its_leader_may_lead_and_cannot_is_led_by_who_has_all_of_both(trial: Trial) -> None:
    """The others have started uncleanly, so the one that was stopped leads the records first."""
    await begun(trial)
    backup = trial.cluster.disks[1].backup()
    assert [await step(trial, name) for name in ("d", "e")] == [4, 5]
    await until_alike(trial)
    trial.cluster.kill(3)
    await trial.until(lambda: trial.states and trial.states[-1].isr == (1, 2))
    trial.cluster.kill(2)
    await trial.until(lambda: trial.states[-1].isr == (1,))
    await trial.cluster.stop(1)
    trial.cluster.disks[1].restore(DIRECTORY, backup)
    for node_id in (2, 3, 1):
        trial.cluster.start(node_id)
    await trial.until(lambda: trial.led() == 1)
    assert trial.states[-1].isr == (1,) and attached(trial, 1).offline is not None
    await trial.until(lambda: trial.led() is not None and trial.states[-1].isr == (1, 2, 3), 120.0)
    assert [await step(trial, name) for name in ("e", "f")] == [5, 6]


@trial
async def test_it_goes_with_its_topic_also_where_its_broker_was_down(trial: Trial) -> None:
    await begun(trial)
    trial.cluster.kill(3)

    async def delete(broker: Any) -> None:
        await broker.engine.delete_topic(broker.engine.topics.get("t"))

    await trial.do(1, delete)
    trial.cluster.start(3)
    await trial.until(lambda: trial.cluster.is_up(3))
    for node_id in (1, 2, 3):
        disk = trial.cluster.disks[node_id]
        await trial.until(lambda disk=disk: not [path for path in disk.files() if "/logs/" in path])  # type: ignore[misc]
    assert not trial.cluster.crashes


@trial
async def test_a_topic_that_grows_has_it_everywhere(trial: Trial) -> None:
    await begun(trial)
    topic = trial.cluster.lives[1].engine.topics.get("t")
    assert topic is not None
    await trial.do(1, lambda broker: broker.engine.create_partitions(topic, 2, assignment=[[1, 2, 3]]))
    await trial.until(lambda: len(trial.partition(1).topic) and topic.partitions[1].attached[0].led is not None)

    async def work(broker: Any) -> int:
        number: int = await broker.counters.step(broker.engine.topics.partition("t", 1), "a")
        return number

    assert await trial.do(1, work) == 1


def test_nothing_is_attached_while_a_broker_of_an_earlier_release_may_come() -> None:
    async def refuse(trial: Trial) -> None:
        await trial.until(lambda: trial.cluster.lives[1].node.image.level >= ATTACHES_FROM)
        trial.cluster.lives[1].node.image.level = ATTACHES_FROM - 1
        with pytest.raises(PenstockError, match="every broker") as refused:
            await step(trial, "a")
        assert refused.value.code is Code.NOT_AVAILABLE
        entry = trial.cluster.etcd.state.get(f"{keys.TOPICS}t")
        assert entry is not None and COUNTER.kind.encode() not in entry.value

    play(refuse)


@trial
async def test_a_transaction_finds_it_by_its_name_and_hears_when_it_is_gone(trial: Trial) -> None:
    await begun(trial)
    for node_id in (1, 2, 3):
        broker = trial.cluster.lives[node_id]
        topics = broker.engine.topics
        assert topics.place("t~count", 0) is attached(trial, node_id)
        assert topics.place("t", 0) is trial.partition(node_id)
        for name, index in (("t~count", 1), ("t~other", 0), ("others~count", 0), ("t", 1)):
            with pytest.raises(PenstockError) as unknown:
                topics.place(name, index)
            assert unknown.value.code is Code.UNKNOWN_TOPIC
    node = trial.cluster.lives[2].node
    assert [await node.is_gone(name) for name in ("t~count", "t", "t~other", "others~count")] == [
        False,
        False,
        True,
        True,
    ]
    topic = trial.cluster.lives[1].engine.topics.get("t")
    assert topic is not None
    await trial.do(1, lambda broker: broker.engine.delete_topic(topic))
    assert [await node.is_gone(name) for name in ("t~count", "t")] == [True, True]


@trial
async def test_no_queue_is_in_a_transaction_while_a_broker_of_an_earlier_release_may_come(trial: Trial) -> None:
    broker = trial.cluster.lives[1]
    await trial.until(lambda: broker.node.image.level >= ACKS_IN_TRANSACTIONS_FROM)
    request = AckRequest("x", 1, 0, "t", {("t", 0): ""})
    (error,) = (await trial.do(1, lambda broker: broker.engine.transactional_acks.acknowledge(request))).values()
    assert error is not None and "no receipts" in str(error)
    broker.node.image.level = ACKS_IN_TRANSACTIONS_FROM - 1
    with pytest.raises(PenstockError, match="feature level 2, and level 3 needs every broker") as refused:
        await trial.do(1, lambda broker: broker.engine.transactional_acks.acknowledge(request))
    assert refused.value.code is Code.INVALID_REQUEST
    broker.node.image.level = ACKS_IN_TRANSACTIONS_FROM


async def _moved(trial: Trial, target: tuple[int, int]) -> None:
    outcomes = await trial.do(2, lambda broker: broker.node.operations.move({("t", 0): list(target)}))
    assert set(outcomes.values()) == {None}
    await trial.until(lambda: trial.states[-1].isr == target and not trial.states[-1].target)
    (left,) = {1, 2, 3} - set(target)
    await trial.until(lambda: not trial.cluster.disks[left].is_dir(DIRECTORY))
    await trial.until(lambda: trial.led() == target[0] and attached(trial, target[0]).led is not None)


@trial
async def test_moves_take_it_along(trial: Trial) -> None:
    await begun(trial)
    for target in ((2, 3), (3, 1)):
        await _moved(trial, target)
        assert await step(trial, "c") == 3


@trial
async def test_every_broker_knows_the_queues_of_a_topic_and_so_does_one_that_starts(trial: Trial) -> None:
    await begun(trial)
    topics = {node_id: trial.cluster.lives[node_id].engine.topics.get("t") for node_id in (1, 2, 3)}
    queues = {"orders": {"ttl": "1h"}, "others": {}}

    async def alter(broker: Any) -> None:
        topic = broker.engine.topics.get("t")
        await broker.engine.alter_queues(topic, lambda _: queues)
        assert topic.queues == queues

    await trial.do(2, alter)
    await trial.until(lambda: all(topic is not None and topic.queues == queues for topic in topics.values()))
    trial.cluster.kill(3)
    trial.cluster.start(3)
    await trial.until(lambda: trial.cluster.is_up(3) and trial.knows(3, "t"))
    found = trial.cluster.lives[3].engine.topics.get("t")
    assert found is not None and found.queues == queues and found.attached.keys() == {"count"}
