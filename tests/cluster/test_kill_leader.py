"""Leaders die, leave and freeze under load: nothing acked is lost, nothing is there twice, nothing is out of order.

KILLS is the number of leaders killed, with something else after each; CHAOS_SEED says which and when.
"""

import os
import random
import time
from pathlib import Path

import pytest

from tests.chaos.history import History, report
from tests.chaos.load import ProducerLoad, ReaderLoad, read_everything, wait_until
from tests.cluster.cluster_process import ClusterProcess
from tests.cluster.faults import CLEAN_EXITS, Fault, bring_back, plan, strike
from tests.cluster.verifiable import VerifiableProducer

KILLS = int(os.environ.get("KILLS", "1"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
PARTITIONS = 3
RATE = 500
"""Of VerifiableProducer; the other producer goes as fast as it can."""
WINDOW = 20
"""Small, so that the brokers have something of the machine while they start."""
# librdkafka may write twice when a leader changes while it has several requests under way: an answer that is to be
# expected then has it take a new producer epoch (confluentinc/librdkafka issue 4953). The Java client has five of them.
# A broker that stands still is given up after five seconds instead of a minute.
CAREFUL = {"max.in.flight.requests.per.connection": 1, "socket.timeout.ms": 5000, "request.timeout.ms": 5000}
ACKS_BETWEEN = 600
FEW_ACKS = 1000
_TIMEOUT_S = 60


class Stopwatch:
    """What happened how many seconds after the fault, for a person who watches."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._notes: list[str] = []

    def note(self, what: str) -> None:
        self._notes.append(f"{what} {time.monotonic() - self._began:.2f} s")

    def __str__(self) -> str:
        return ", ".join(self._notes)


def test_nothing_acked_is_lost_when_a_leader_is_killed(cluster: ClusterProcess) -> None:
    """Short enough to run each time: a few thousand records, one kill, and everything read again from its successor."""
    topic = f"killed-{SEED}"
    cluster.create_topic(topic, PARTITIONS, cluster.smallest_segments)
    history = History()
    with (
        ProducerLoad(
            cluster.bootstrap, topic, PARTITIONS, history, value_bytes=200, window=WINDOW, config=CAREFUL
        ) as load,
        ReaderLoad(cluster.bootstrap, topic, PARTITIONS, history),
    ):
        load.wait_for_acks(FEW_ACKS, _TIMEOUT_S)
        victim = strike(cluster, Fault("kill", topic, SEED % PARTITIONS, share=0, delay_s=0))
        load.wait_for_acks(FEW_ACKS, _TIMEOUT_S)
        load.settle(_TIMEOUT_S)
        violations = history.check(read_everything(cluster.bootstrap, topic, PARTITIONS))
        assert not violations, f"while broker {victim.id} was dead: {report(violations)}"
        bring_back(victim)
        cluster.wait_whole(topic)
        load.resume()
        load.wait_for_acks(FEW_ACKS, _TIMEOUT_S)
        load.settle(_TIMEOUT_S)
        acked = history.acked
        wait_until(lambda: len(history.seen["r"]) >= acked, _TIMEOUT_S, "the reader saw every acked record")
    assert load.failed == []
    assert acked >= 3 * FEW_ACKS
    violations = history.check(read_everything(cluster.bootstrap, topic, PARTITIONS))
    assert not violations, report(violations)


@pytest.mark.slow
@pytest.mark.timeout(240 + 120 * KILLS)
def test_nothing_acked_is_lost_when_leaders_go(cluster: ClusterProcess, tmp_path: Path) -> None:
    """While the broker is away, every partition goes on; when it is back, every replica gets in sync."""
    own, foreign = f"own-{SEED}", f"foreign-{SEED}"
    cluster.create_topic(own, PARTITIONS, cluster.smallest_segments)
    cluster.create_topic(foreign, PARTITIONS, cluster.smallest_segments)
    history = History()
    with (
        VerifiableProducer(cluster.bootstrap, foreign, tmp_path, rate=RATE) as verifiable,
        ProducerLoad(
            cluster.bootstrap, own, PARTITIONS, history, value_bytes=200, window=WINDOW, config=CAREFUL
        ) as load,
        ReaderLoad(cluster.bootstrap, own, PARTITIONS, history),
    ):
        verifiable.wait_for_acks(1)
        for fault in plan(KILLS, SEED, (own, foreign), PARTITIONS):
            load.wait_for_acks(1 + int(fault.share * ACKS_BETWEEN), _TIMEOUT_S)
            clock = Stopwatch()
            victim = strike(cluster, fault)
            clock.note("moved")
            load.settle(_TIMEOUT_S)
            clock.note("every send answered")
            load.resume()
            load.wait_for_acks(100, _TIMEOUT_S)
            verifiable.wait_for_acks(100, _TIMEOUT_S)
            clock.note("more acks of both")
            bring_back(victim)
            clock.note("back")
            cluster.wait_whole(own, foreign)
            load.settle(_TIMEOUT_S)
            clock.note("in sync")
            print(f"{fault.kind} broker {victim.id}: {clock}; {history.acked:,} acked so far")
            violations = history.check(read_everything(cluster.bootstrap, own, PARTITIONS))
            assert not violations, f"after {fault}, seed {SEED}: {report(violations)}"
            load.resume()
        load.wait_for_acks(1, _TIMEOUT_S)
        load.settle(_TIMEOUT_S)
        said = verifiable.finish()
        acked = history.acked
        wait_until(lambda: len(history.seen["r"]) >= acked, _TIMEOUT_S, "the reader saw every acked record")
    assert load.failed == verifiable.failures() == []
    assert said["sent"] == said["acked"]
    judge(cluster, history, own, verifiable, foreign)
    if KILLS > 1:
        for broker in cluster.nodes.values():
            assert broker.stop() in CLEAN_EXITS
            cluster.wait_moved(broker.id, own, foreign)
            judge(cluster, history, own, verifiable, foreign)
            broker.start()
            cluster.wait_whole(own, foreign)


def judge(cluster: ClusterProcess, history: History, own: str, verifiable: VerifiableProducer, foreign: str) -> None:
    """Both topics as they are now, from whoever leads now."""
    violations = history.check(read_everything(cluster.bootstrap, own, PARTITIONS))
    assert not violations, f"seed {SEED}: {report(violations)}"
    logs = read_everything(cluster.bootstrap, foreign, PARTITIONS)
    violations = verifiable.history(logs).check(logs)
    assert not violations, f"VerifiableProducer, seed {SEED}: {report(violations)}"


@pytest.mark.slow
def test_nothing_acked_is_lost_when_all_are_killed_at_once(cluster: ClusterProcess) -> None:
    topic, coin = f"all-{SEED}", random.Random(SEED)
    cluster.create_topic(topic, PARTITIONS, cluster.smallest_segments)
    history = History()
    with ProducerLoad(cluster.bootstrap, topic, PARTITIONS, history, value_bytes=200, config=CAREFUL) as load:
        for _ in range(max(1, KILLS // 5)):
            load.wait_for_acks(coin.randrange(1, ACKS_BETWEEN), _TIMEOUT_S)
            for broker in cluster.nodes.values():
                broker.kill()
            cluster.start()
            cluster.wait_whole(topic)
            load.settle(_TIMEOUT_S)
            violations = history.check(read_everything(cluster.bootstrap, topic, PARTITIONS))
            assert not violations, f"seed {SEED}: {report(violations)}"
            load.resume()
    assert load.failed == []
