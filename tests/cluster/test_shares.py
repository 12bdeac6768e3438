"""A share group on three brokers, one of which is killed: nothing acknowledged comes again, nothing is lost.

What is said to a group's coordinator reaches all that lead its partitions, or whoever said it is told that it did not.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.penstock_cluster import PenstockCluster
from tests.conformance.clients.confluent_shares import ConfluentShareMember
from tests.conformance.clients.shares import ACCEPT, EXPLICIT, Taken
from tests.conformance.wire import Wire

PARTITIONS = 6
MESSAGES = 300
"""Before the kill, and as many after it."""
_DEADLINE_S = 120.0
_POLL_S = 0.5


class Reader:
    """A member that acknowledges whatever it gets."""

    def __init__(self, member: ConfluentShareMember) -> None:
        self._member = member
        self.acked: dict[tuple[int, int], bytes] = {}
        self.again: list[Taken] = []
        """What came although it was acknowledged."""

    def read_until(self, is_over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not is_over():
            assert time.monotonic() < deadline, f"{len(self.acked)} messages acknowledged"
            taken = self._member.poll(_POLL_S)
            for each in taken:
                if (each.partition, each.offset) in self.acked:
                    self.again.append(each)
                self._member.acknowledge(each, ACCEPT)
            failed = self._member.commit() if taken else {}
            for each in taken:
                if not failed.get(each.partition, 0):
                    self.acked[each.partition, each.offset] = each.value


def test_what_was_acknowledged_stays_so_when_a_leader_is_killed(tmp_path: Path) -> None:
    with PenstockCluster(tmp_path, members=1) as cluster:
        cluster.start()
        cluster.create_topic("t", PARTITIONS)
        producer = cluster_producer(cluster)
        member = ConfluentShareMember(cluster.bootstrap, "g", "t", EXPLICIT)
        reader = Reader(member)
        try:
            reader.read_until(lambda: len(_joined(reader, producer)) > 0)
            before = len(reader.acked)
            _send(producer, MESSAGES)
            reader.read_until(lambda: len(reader.acked) >= before + MESSAGES)
            victim = cluster.nodes[2]
            victim.kill()
            _send(producer, MESSAGES)
            reader.read_until(lambda: len(reader.acked) >= before + 2 * MESSAGES)
            victim.start()
        finally:
            member.leave()
    assert reader.again == []
    values = list(reader.acked.values())
    assert len(values) == len(set(values))


def test_a_group_is_altered_and_deleted_wherever_its_partitions_are_led(tmp_path: Path) -> None:
    with PenstockCluster(tmp_path, members=1) as cluster:
        cluster.start()
        cluster.create_topic("t", PARTITIONS)
        _make_unreplicated(cluster, "u")
        for topic in ("t", "u"):
            _send_to(cluster, topic)
        operator = Operator(cluster)
        everything = {(topic, index): (0, 10) for topic in ("t", "u") for index in range(PARTITIONS)}
        assert operator.alter(dict.fromkeys(everything, 0)) == dict.fromkeys(everything, 0)
        assert operator.stands() == everything
        assert operator.alter({("t", index): index for index in range(PARTITIONS)}) == {
            ("t", index): 0 for index in range(PARTITIONS)
        }
        moved = everything | {("t", index): (index, 10 - index) for index in range(PARTITIONS)}
        assert operator.stands() == moved

        victim = cluster.nodes[next(number for number in cluster.nodes if number != operator.coordinator)]
        victim.kill()
        cluster.wait_moved(victim.id, "t")
        lost = operator.unreachable()
        assert lost and {topic for topic, _ in lost} == {"u"}, "others lead what has replicas"
        assert operator.delete() == COORDINATOR_NOT_AVAILABLE
        assert operator.unreachable() == lost
        assert operator.stands() == {spot: where for spot, where in moved.items() if spot not in lost}, (
            "it was to be all of it or nothing"
        )
        cluster.start()
        cluster.wait_whole("t")
        assert operator.delete_until_done() == 0
        assert operator.stands() == {}
        member = ConfluentShareMember(cluster.bootstrap, "g", "t", EXPLICIT)
        reader, producer = Reader(member), cluster_producer(cluster)
        try:
            reader.read_until(lambda: len(_joined(reader, producer)) > 0)
        finally:
            member.leave()
        values = reader.acked.values()
        assert all(value.startswith(b"first-") for value in values), "it is as new, and begins at the end"


COORDINATOR_NOT_AVAILABLE = 15
Spot = tuple[str, int]


class Operator:
    """Asks the coordinator of group g."""

    def __init__(self, cluster: PenstockCluster) -> None:
        self._cluster = cluster

    @property
    def coordinator(self) -> int:
        return self._cluster.group_coordinator("g")

    def _call(self, api: str, version: int, **values: Any) -> Any:
        with Wire(self._cluster.nodes[self.coordinator].bootstrap) as wire:
            return wire.call(api, version, **values)

    def _rows(self) -> dict[Spot, Any]:
        (group,) = self._call("describe_share_group_offsets", 1, groups=[{"group_id": "g", "topics": None}]).groups
        assert group.error_code.value == 0, group
        return {(topic.topic_name, row.partition_index): row for topic in group.topics for row in topic.partitions}

    def stands(self) -> dict[Spot, tuple[int, int]]:
        """Start and lag, where they can be told."""
        rows = self._rows().items()
        return {spot: (row.start_offset, row.lag) for spot, row in rows if row.error_code.value == 0}

    def unreachable(self) -> set[Spot]:
        return {spot for spot, row in self._rows().items() if row.error_code.value != 0}

    def alter(self, offsets: dict[Spot, int]) -> dict[Spot, int]:
        topics = [
            {"topic_name": name, "partitions": [{"partition_index": index, "start_offset": offset}]}
            for (name, index), offset in offsets.items()
        ]
        answer = self._call("alter_share_group_offsets", 0, group_id="g", topics=topics)
        assert answer.error_code.value == 0, answer
        return {
            (topic.topic_name, row.partition_index): row.error_code.value
            for topic in answer.responses
            for row in topic.partitions
        }

    def delete(self) -> int:
        (result,) = self._call("delete_groups", 2, groups_names=("g",)).results
        return int(result.error_code.value)

    def delete_until_done(self) -> int:
        """As clients do, which take the refusal for what passes."""
        deadline = time.monotonic() + _DEADLINE_S
        while (code := self.delete()) == COORDINATOR_NOT_AVAILABLE and time.monotonic() < deadline:
            pass  # the broker takes its time before it says so
        return code


def _make_unreplicated(cluster: PenstockCluster, topic: str) -> None:
    """One whose partitions nobody leads when their broker is gone."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 3})
    wanted = NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)
    admin.create_topics([wanted])[topic].result(_DEADLINE_S)
    cluster.agreed(topic)


def cluster_producer(cluster: PenstockCluster) -> Producer:
    return Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True})


def _send_to(cluster: PenstockCluster, topic: str) -> None:
    """Ten messages into every partition."""
    producer = cluster_producer(cluster)
    for number in range(10 * PARTITIONS):
        producer.produce(topic, b"old", partition=number % PARTITIONS)
    assert producer.flush(_DEADLINE_S) == 0


def _joined(reader: Reader, producer: Producer) -> dict[tuple[int, int], bytes]:
    """A group begins at the end of a topic when its partitions are read first: so something is sent until it comes."""
    for index in range(PARTITIONS):
        producer.produce("t", b"first-%d-%d" % (index, time.monotonic_ns()), partition=index)
    producer.flush(_DEADLINE_S)
    return reader.acked if len({partition for partition, _ in reader.acked}) == PARTITIONS else {}


def _send(producer: Producer, count: int) -> None:
    now = time.monotonic_ns()
    for number in range(count):
        producer.produce("t", b"%d-%d" % (now, number), partition=number % PARTITIONS)
    assert producer.flush(_DEADLINE_S) == 0
