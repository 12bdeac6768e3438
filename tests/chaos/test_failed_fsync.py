"""A sync that fails stops the broker: that write is never acked, and what was acked before is kept."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.broker_process import BrokerExitedError, BrokerProcess
from tests.chaos.load import create_topic, read_everything, wait_until
from tests.chaos.trace import find_answer, parse, strace_command, why_not
from tests.chaos.wire import Wire

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

# Which sync of each thread fails. A soak may name more.
NTH = [int(n) for n in os.environ.get("SYNC_FAULTS", "1,2,3,5,8").split(",")]
SYNCS = "fdatasync,fsync,syncfs"
MOST_PRODUCES = 2000


@contextmanager
def failing_syncs(broker: BrokerProcess, output: Path, nth: int) -> Iterator[None]:
    """From now on the nth sync of each of the broker's threads answers EIO, once."""
    errors = output.with_suffix(".err")
    with errors.open("wb") as sink:
        command = strace_command(output, inject=f"{SYNCS}:error=EIO:when={nth}", attach=broker.pid)
        tracer = subprocess.Popen(command, stderr=sink)
    try:
        wait_until(lambda: b"attached" in errors.read_bytes(), 20, "strace is attached")
        yield
    finally:
        try:
            tracer.wait(20)
        except subprocess.TimeoutExpired:
            tracer.terminate()
            tracer.wait()


def produce_until_it_ends(broker: BrokerProcess, acked: dict[int, str]) -> dict[int, str]:
    """Correlation id → value of each ack, until the broker refuses or is gone; adds the acks to `acked`."""
    correlations: dict[int, str] = {}
    try:
        with Wire(broker.bootstrap) as wire:
            for number in range(MOST_PRODUCES):
                value = f"late-{number}"
                answer = wire.produce_one("t", f"{value}:".encode())
                if answer.error_code != 0:
                    break
                acked[answer.base_offset] = value
                correlations[wire.last_correlation] = value
    except OSError:
        pass
    return correlations


def assert_kept(broker: BrokerProcess, acked: dict[int, str]) -> None:
    broker.wrapper = []
    broker.start()
    records = {record.offset: record.value for record in read_everything(broker.bootstrap, "t", 1)[0].records}
    assert {offset: records.get(offset) for offset in acked} == acked


@pytest.mark.parametrize("nth", NTH)
def test_the_write_of_a_failed_sync_is_not_acked(broker: BrokerProcess, tmp_path: Path, nth: int) -> None:
    """The fault begins under load, after the start."""
    acked: dict[int, str] = {}
    output = tmp_path / "trace"
    broker.start()
    create_topic(broker.bootstrap, "t", 1)
    with Wire(broker.bootstrap) as wire:
        for number in range(10):
            acked[wire.produce_one("t", f"early-{number}:".encode()).base_offset] = f"early-{number}"
    with failing_syncs(broker, output, nth):
        late = produce_until_it_ends(broker, acked)
        assert broker.wait() not in (0, None)
    calls = parse(output.read_text().splitlines())
    failed_at = min(call.ended for call in calls if call.injected)
    answers = {value: find_answer(calls, correlation) for correlation, value in late.items()}
    too_late = [value for value, answer in answers.items() if answer is None or answer.started > failed_at]
    assert too_late == []
    assert len(acked) >= 10
    assert_kept(broker, acked)


@pytest.mark.parametrize("nth", NTH)
def test_a_sync_that_fails_at_any_time_stops_the_broker(broker: BrokerProcess, tmp_path: Path, nth: int) -> None:
    """The fault is there from the first moment: in the metadata store or a log, at the start or later."""
    acked: dict[int, str] = {}
    broker.start()
    create_topic(broker.bootstrap, "t", 1)
    with Wire(broker.bootstrap) as wire:
        acked[wire.produce_one("t", b"early:").base_offset] = "early"
    broker.kill()
    output = tmp_path / "trace"
    broker.wrapper = strace_command(output, inject=f"{SYNCS}:error=EIO:when={nth}")
    try:
        broker.start()
        produce_until_it_ends(broker, acked)
        returncode = broker.wait()
    except BrokerExitedError as early:
        returncode = early.returncode
    assert returncode > 0
    assert any(call.injected for call in parse(output.read_text().splitlines()))
    assert_kept(broker, acked)
