"""A full disk: a clear error that a client may retry, reads that go on, and service once there is space."""

import errno
import os
from pathlib import Path

import pytest
from aiokafka.errors import for_code  # type: ignore[import-untyped]

from tests.chaos.broker_process import BrokerExitedError, BrokerProcess
from tests.chaos.history import History, report
from tests.chaos.load import ProducerLoad, create_topic, read_everything, wait_until
from tests.chaos.wire import Wire

pytestmark = pytest.mark.slow

VALUE = b"x" * 16_000


def fill(path: Path, leave_bytes: int) -> None:
    """Take all space but `leave_bytes`, also while a producer takes some of it."""
    with path.open("wb") as filler:
        while True:
            filler.truncate(0)
            free = os.statvfs(path.parent)
            size = free.f_bavail * free.f_frsize - leave_bytes
            if size <= 0:
                return
            try:
                os.posix_fallocate(filler.fileno(), 0, size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            else:
                return


def produce_until_refused(broker: BrokerProcess, acked: dict[int, str]) -> int:
    """The first error code; acks before it are added to `acked`."""
    with Wire(broker.bootstrap) as wire:
        for number in range(2000):
            value = f"w-{len(acked)}-{number}"
            answer = wire.produce_one("t", value.encode() + b":" + VALUE)
            if answer.error_code:
                return answer.error_code
            acked[answer.base_offset] = value
    raise AssertionError("the disk never got full")


def values(broker: BrokerProcess) -> dict[int, str]:
    return {record.offset: record.value for record in read_everything(broker.bootstrap, "t", 1)[0].records}


def test_a_full_disk_refuses_politely_and_recovers(small_disk: Path, tmp_path: Path) -> None:
    acked: dict[int, str] = {}
    filler = small_disk / "filler"
    with BrokerProcess(small_disk / "data", tmp_path) as broker:
        broker.start()
        create_topic(broker.bootstrap, "t", 1, {"segment.bytes": "1048576"})
        fill(filler, 4 << 20)
        for _ in range(3):
            error = for_code(produce_until_refused(broker, acked))
            assert getattr(error, "retriable", False), f"{error.__name__} tells the client to give up"
            assert values(broker) == acked
        assert broker.process.poll() is None
        assert len(acked) > 50
        filler.unlink()

        def works_again() -> bool:
            with Wire(broker.bootstrap) as wire:
                answer = wire.produce_one("t", b"again-%d:" % len(acked))
            if answer.error_code == 0:
                acked[answer.base_offset] = f"again-{len(acked)}"
            return answer.error_code == 0

        wait_until(works_again, 30, "produce works again after space was freed")
        assert broker.starts == 1
        assert values(broker) == acked
        broker.kill()
        broker.start()
        assert values(broker) == acked


def test_an_idempotent_producer_rides_out_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    """Its retries end in neither loss nor doubles, with segments rolling at the edge of the space."""
    history = History()
    filler = small_disk / "filler"
    with BrokerProcess(small_disk / "data", tmp_path) as broker:
        broker.start()
        create_topic(broker.bootstrap, "t", 2, {"segment.bytes": "65536"})
        create_topic(broker.bootstrap, "probe", 1)
        with ProducerLoad(broker.bootstrap, "t", 2, history, value_bytes=2000, window=50) as load:
            load.wait_for_acks(20)
            fill(filler, 1 << 20)
            with Wire(broker.bootstrap) as wire:

                def refused() -> bool:
                    return wire.produce_one("probe", VALUE).error_code != 0

                wait_until(refused, 60, "the disk is full")
            filler.unlink()
            load.wait_for_acks(200)
            load.settle()
        assert load.failed == []
        for restarted in (False, True):
            if restarted:
                broker.kill()
                broker.start()
            violations = history.check(read_everything(broker.bootstrap, "t", 2))
            assert not violations, report(violations)


def test_a_broker_killed_on_a_full_disk_keeps_its_acks(small_disk: Path, tmp_path: Path) -> None:
    """It may refuse to start without space, but must not harm the log; with space all is there."""
    acked: dict[int, str] = {}
    filler = small_disk / "filler"
    with BrokerProcess(small_disk / "data", tmp_path) as broker:
        broker.start()
        create_topic(broker.bootstrap, "t", 1, {"segment.bytes": "262144"})
        fill(filler, 2 << 20)
        produce_until_refused(broker, acked)
        broker.kill()
        broker.launch()
        wait_until(
            lambda: broker.process.poll() is not None or b"ready" in broker.output().encode(),
            30,
            "a decision",
        )
        broker.kill()
        filler.unlink()
        broker.start()
        assert values(broker) == acked


def test_a_start_without_room_says_so_and_loses_nothing(small_disk: Path, tmp_path: Path) -> None:
    acked: dict[int, str] = {}
    filler = small_disk / "filler"
    with BrokerProcess(small_disk / "data", tmp_path) as broker:
        broker.start()
        create_topic(broker.bootstrap, "t", 1)
        fill(filler, 2 << 20)
        produce_until_refused(broker, acked)
        broker.kill()  # an unclean stop: the next start has a new leader epoch to note
        fill(small_disk / "rest", 0)
        with pytest.raises(BrokerExitedError) as refusal:
            broker.start()
        assert refusal.value.returncode == 1
        assert "make room and start again" in refusal.value.output
        assert "Traceback" not in refusal.value.output
        (small_disk / "rest").unlink()
        filler.unlink()
        broker.start()
        assert {offset: value for offset, value in values(broker).items() if offset in acked} == acked
