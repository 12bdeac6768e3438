"""Power cuts under acks=all load: only what was fsynced survives, and all that was acked is part of it."""

import os
import random
from pathlib import Path

import pytest

from tests.chaos.broker_process import BrokerProcess
from tests.chaos.history import History, Kind, report
from tests.chaos.load import ProducerLoad, ReaderLoad, create_topic, read_everything
from tests.chaos.power_mount import PowerCutMount
from tests.chaos.wire import Wire

CUTS = int(os.environ.get("CUTS", "20"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
PARTITIONS = 4


@pytest.mark.slow
@pytest.mark.timeout(120 + 15 * CUTS)
def test_nothing_acked_is_lost_when_the_power_goes(power_mount: PowerCutMount, tmp_path: Path) -> None:
    """Every second cut is torn: a seeded part of the unsynced pages and names survives."""
    coin = random.Random(SEED)
    history = History()
    producer_ids: list[int] = []
    with BrokerProcess(power_mount.path / "data", tmp_path) as broker:
        broker.start()
        create_topic(broker.bootstrap, "t", PARTITIONS, {"segment.bytes": "65536"})
        with (
            ProducerLoad(broker.bootstrap, "t", PARTITIONS, history, value_bytes=200) as load,
            ReaderLoad(broker.bootstrap, "t", PARTITIONS, history),
        ):
            for number in range(CUTS):
                load.wait_for_acks(coin.randrange(1, 400))
                broker.kill()
                kind, seed = ("torn", "drop")[number % 2 == 0], coin.getrandbits(32)
                power_mount.cut(kind, seed)  # type: ignore[arg-type]
                broker.start()
                with Wire(broker.bootstrap) as wire:
                    producer_ids.append(wire.init_producer_id())
                load.settle()
                violations = history.check(read_everything(broker.bootstrap, "t", PARTITIONS))
                assert not violations, f"after cut {number + 1} ({kind}), seed {SEED}: {report(violations)}"
                load.resume()
        assert load.failed == []
    assert len(set(producer_ids)) == len(producer_ids) == CUTS
    state = power_mount.state()
    assert state["cuts"] == CUTS
    # The cuts would prove nothing if there had been nothing to forget.
    assert state["lost_bytes"] > 0
    assert state["file_syncs"] > CUTS


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["drop", "torn"])
def test_a_topic_created_and_a_clean_stop_survive_a_cut(power_mount: PowerCutMount, tmp_path: Path, kind: str) -> None:
    """Besides records: a topic that was confirmed exists, and after a clean stop nothing is missing."""
    history = History()
    with BrokerProcess(power_mount.path / "data", tmp_path) as broker:
        broker.start()
        for name in ("a", "b"):
            create_topic(broker.bootstrap, name, 2)
        broker.kill()
        power_mount.cut(kind, SEED)  # type: ignore[arg-type]
        broker.start()
        with ProducerLoad(broker.bootstrap, "b", 2, history) as load:
            load.wait_for_acks(50)
            load.settle()
        assert broker.stop() == 0
        power_mount.cut(kind, SEED + 1)  # type: ignore[arg-type]
        broker.start()
        assert history.check(read_everything(broker.bootstrap, "b", 2)) == []
        assert all(log.end_offset == 0 for log in read_everything(broker.bootstrap, "a", 2).values())


@pytest.mark.slow
def test_a_topic_left_to_the_operating_system_does_lose(power_mount: PowerCutMount, tmp_path: Path) -> None:
    """The disk and the checker bite: flush=os acks from the page cache, and a cut takes such records away."""
    history = History()
    with BrokerProcess(power_mount.path / "data", tmp_path) as broker:
        broker.start()
        create_topic(broker.bootstrap, "t", 1, {"flush": "os"})
        with ProducerLoad(broker.bootstrap, "t", 1, history) as load:
            load.wait_for_acks(200)
            load.settle()
        broker.kill()
        power_mount.cut()
        broker.start()
        kinds = {violation.kind for violation in history.check(read_everything(broker.bootstrap, "t", 1))}
    assert Kind.LOST in kinds
