"""Coordinators die: groups go on where they committed, transactions end as they were asked to, each record once.

KILLS is the number of faults of the long run, which is skipped without; CHAOS_SEED says which and when.
"""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.chaos.history import Outcome
from tests.chaos.load import DOWN, QUICK
from tests.chaos.transactional_history import report
from tests.chaos.transactional_load import LASTING
from tests.chaos.transactional_run import read_committed
from tests.cluster.cluster_process import ClusterProcess
from tests.cluster.coordinators import CalmRun, ClusterRun

KILLS = int(os.environ.get("KILLS", "0"))
FAULTS_PER_RUN = 10
RUNS = max(1, KILLS // FAULTS_PER_RUN)
RECORDS = int(os.environ.get("RECORDS", "30000"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
FEW_RECORDS = 3000
PARTITIONS = 2
CALL_S = 60.0


@pytest.fixture
def topic(cluster: ClusterProcess, request: pytest.FixtureRequest) -> str:
    name = f"{request.node.name[5:25]}-{SEED}".replace("_", "-")
    cluster.create_topic(name, PARTITIONS)
    return name


def write(cluster: ClusterProcess, topic: str, number: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, **QUICK})
    for index in range(number):
        producer.produce(topic, str(index).encode(), partition=index % PARTITIONS)
    assert producer.flush(CALL_S) == 0


class Member:
    """The only one of its group, which commits what it is asked to."""

    def __init__(self, cluster: ClusterProcess, group: str, topic: str) -> None:
        settings = {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 30_000,
            **QUICK,
        }
        self.consumer = Consumer(settings)
        self.consumer.subscribe([topic])

    def read(self, number: int) -> list[tuple[int, int]]:
        """Partition and offset of so many records."""
        found: list[Message] = []
        for _ in range(int(CALL_S / 0.1)):
            if len(found) == number:
                break
            message = self.consumer.poll(0.1)
            if message is None:
                continue
            if (error := message.error()) is None:
                found.append(message)
            elif error.code() not in DOWN and not error.retriable():
                raise KafkaException(error)
        assert len(found) == number, f"only {len(found)} of {number} records came"
        return [(message.partition() or 0, message.offset() or 0) for message in found]

    def commit(self, topic: str, read: Sequence[tuple[int, int]]) -> dict[int, int]:
        following = {partition: offset + 1 for partition, offset in read}
        wanted = [TopicPartition(topic, partition, offset) for partition, offset in following.items()]
        done = self.consumer.commit(offsets=wanted, asynchronous=False)
        assert [each for each in done or () if each.error is not None] == []
        return following


def test_a_group_goes_on_where_it_committed(cluster: ClusterProcess, topic: str) -> None:
    """The member stays a member, and a later one begins at the offsets of both commits."""
    group = f"{topic}-group"
    write(cluster, topic, 300)
    member = Member(cluster, group, topic)
    before = member.read(100)
    committed = member.commit(topic, before)
    cluster.wait_whole(topic)
    victim = cluster.nodes[cluster.group_coordinator(group)]
    victim.kill()
    after = member.read(100)
    committed |= member.commit(topic, after)
    member.consumer.close()
    assert len({*before, *after}) == 200, "a record was given twice to a member that stayed"
    assert cluster.group_coordinator(group) != victim.id

    follower = Member(cluster, group, topic)
    places = [TopicPartition(topic, partition) for partition in committed]
    kept = follower.consumer.committed(places, timeout=CALL_S)
    assert {each.partition: each.offset for each in kept} == committed
    rest = follower.read(100)
    follower.consumer.close()
    victim.start()
    cluster.wait_whole(topic)
    everything = sorted([*before, *after, *rest])
    assert everything == [(partition, offset) for partition in range(PARTITIONS) for offset in range(150)]


@pytest.mark.slow
def test_a_transactional_producer_goes_on(cluster: ClusterProcess, topic: str) -> None:
    """Killed within a transaction, and again between the writing and the abort: all of one, nothing of the other."""
    name = f"{topic}-writer"
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": name, **LASTING}
    producer = Producer(settings)
    producer.init_transactions(CALL_S)

    def write_within(words: Sequence[str]) -> None:
        producer.begin_transaction()
        for index, word in enumerate(words):
            producer.produce(topic, word.encode(), partition=index % PARTITIONS)
        producer.flush(CALL_S)

    def lose_coordinator() -> None:
        cluster.wait_whole(topic)
        victim = cluster.nodes[cluster.transaction_coordinator(name)]
        victim.kill()
        cluster.wait_moved(victim.id, topic)
        lost.append(victim.id)

    lost: list[int] = []
    kept = [f"kept-{index}" for index in range(50)]
    write_within(kept)
    lose_coordinator()
    producer.commit_transaction(CALL_S)
    cluster.nodes[lost[-1]].start()
    write_within([f"dropped-{index}" for index in range(50)])
    lose_coordinator()
    producer.abort_transaction(CALL_S)
    more = [f"more-{index}" for index in range(50)]
    write_within(more)
    producer.commit_transaction(CALL_S)
    cluster.nodes[lost[-1]].start()
    cluster.wait_whole(topic)

    logs = read_committed(cluster.bootstrap, topic, PARTITIONS)
    for partition in range(PARTITIONS):
        values = [record.value for record in logs[topic, partition].records]
        assert values == [*kept[partition::PARTITIONS], *more[partition::PARTITIONS]]


def test_each_record_is_copied_exactly_once_while_brokers_die(cluster: ClusterProcess, tmp_path: Path) -> None:
    """Short enough to run each time: the coordinator of a group is killed, then one of transactions."""
    with CalmRun(cluster, tmp_path / "run", seed=SEED, records=FEW_RECORDS, faults=2) as run:
        run.play()
        violations = run.verdict()
    assert not violations, f"seed {SEED}: {report(violations)}"
    assert len(run.prey.killed) == 2


@pytest.mark.slow
@pytest.mark.skipif(not KILLS, reason="takes minutes; KILLS says how many faults")
@pytest.mark.timeout(600 * RUNS)
def test_each_record_is_copied_exactly_once_while_everybody_dies(cluster: ClusterProcess, tmp_path: Path) -> None:
    for seed in range(SEED + 1000, SEED + 1000 + RUNS):
        with ClusterRun(cluster, tmp_path / f"run-{seed}", seed=seed, records=RECORDS, faults=FAULTS_PER_RUN) as run:
            run.play()
            violations = run.verdict()
        assert not violations, f"seed {seed}: {report(violations)}"
        outcomes = Counter(attempt.outcome for attempt in run.history().attempts.values())
        print(f"seed {seed}: brokers killed {run.prey.killed}, transactions {dict(outcomes)}, hung {run.hung}")
        assert outcomes[Outcome.OK] > RECORDS // 1000
        assert len(run.prey.killed) >= FAULTS_PER_RUN // 2
