"""kill -9 under load, again and again on one data directory: nothing acked is lost, nothing is doubled."""

import os
import random
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.chaos.broker_process import BrokerExitedError, BrokerProcess
from tests.chaos.history import History, Kind, report
from tests.chaos.load import ProducerLoad, ReaderLoad, create_topic, read_everything, wait_until
from tests.chaos.wire import Wire

KILLS = int(os.environ.get("KILLS", "20"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
PARTITIONS = 3
SMALL_SEGMENTS = {"segment.bytes": "65536"}


def segments(data_dir: Path, topic: str) -> int:
    return len(list((data_dir / "logs" / topic).glob("*/*.log")))


@pytest.mark.slow
@pytest.mark.timeout(120 + 8 * KILLS)
def test_nothing_acked_is_lost_when_the_broker_is_killed(broker: BrokerProcess) -> None:
    """One topic kept whole, one trimmed by retention, and producer ids, which are never given out twice."""
    coin = random.Random(SEED)
    kept, trimmed = History(), History()
    producer_ids: list[int] = []
    broker.start()
    create_topic(broker.bootstrap, "kept", PARTITIONS, SMALL_SEGMENTS)
    create_topic(broker.bootstrap, "trimmed", 1, {**SMALL_SEGMENTS, "retention.bytes": "131072"})
    with (
        ProducerLoad(broker.bootstrap, "kept", PARTITIONS, kept, value_bytes=200) as load,
        ProducerLoad(broker.bootstrap, "trimmed", 1, trimmed, name="t", value_bytes=1000, window=20) as other,
        ReaderLoad(broker.bootstrap, "kept", PARTITIONS, kept),
    ):
        for round_number in range(KILLS):
            load.wait_for_acks(coin.randrange(1, 400))
            broker.kill()
            if round_number % 5 == 4:
                # Recovery is killed too, somewhere on its way.
                broker.launch()
                _pass_time(coin.uniform(0.05, 0.6))
                broker.kill()
            broker.start()
            with Wire(broker.bootstrap) as wire:
                producer_ids += [wire.init_producer_id() for _ in range(2)]
            load.settle()
            other.settle()
            violations = kept.check(read_everything(broker.bootstrap, "kept", PARTITIONS))
            assert not violations, f"after kill {round_number + 1}, seed {SEED}: {report(violations)}"
            violations = trimmed.check(read_everything(broker.bootstrap, "trimmed", 1), trimmed=True)
            assert not violations, f"trimmed, after kill {round_number + 1}, seed {SEED}: {report(violations)}"
            load.resume()
            other.resume()
        load.wait_for_acks(1)
        load.settle()
        other.settle()
        acked = kept.acked
        wait_until(lambda: len(kept.seen["r"]) >= acked, 30, "the reader saw every acked record")
    assert load.failed == other.failed == []
    assert len(set(producer_ids)) == len(producer_ids) == 2 * KILLS
    assert broker.stop() == 0
    broker.start()
    violations = kept.check(read_everything(broker.bootstrap, "kept", PARTITIONS))
    assert not violations, f"after a clean stop: {report(violations)}"
    # The run would prove little if nothing had been rolled or removed.
    if KILLS >= 20:
        assert segments(broker.data_dir, "kept") > 2 * PARTITIONS
        assert read_everything(broker.bootstrap, "trimmed", 1)[0].start_offset > 0


def _pass_time(seconds: float) -> None:
    """Not waiting for anything: the moment of the kill is what the seed chooses."""
    time.sleep(seconds)


@pytest.mark.slow
def test_deleted_records_are_noticed(broker: BrokerProcess) -> None:
    """The check bites: a segment whose bytes disappear between two runs does not pass unseen."""
    history = History()
    broker.start()
    create_topic(broker.bootstrap, "t", 1, SMALL_SEGMENTS)
    with ProducerLoad(broker.bootstrap, "t", 1, history, value_bytes=1000) as load:
        load.wait_for_acks(300)
        load.settle()
    broker.kill()
    files = sorted(f for f in (broker.data_dir / "logs" / "t" / "0").glob("*.log") if f.stat().st_size)
    assert len(files) > 2
    files[-1].write_bytes(b"")
    try:
        broker.start()
        kinds = {violation.kind for violation in history.check(read_everything(broker.bootstrap, "t", 1))}
    except BrokerExitedError:
        return  # refusing to start on such a log, or to serve it, is as good
    except KafkaException as refusal:
        if refusal.args[0].code() != KafkaError.KAFKA_STORAGE_ERROR:
            raise
        return
    assert Kind.LOST in kinds
