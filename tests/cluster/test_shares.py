"""A share group on three brokers, one of which is killed: nothing acknowledged comes again, nothing is lost."""

import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from tests.cluster.penstock_cluster import PenstockCluster
from tests.conformance.clients.confluent_shares import ConfluentShareMember
from tests.conformance.clients.shares import ACCEPT, EXPLICIT, Taken

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
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True})
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
