"""What the kernel saw: a completed sync lies between each log write and the answer that acknowledges it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.chaos.broker_process import BrokerProcess
from tests.chaos.load import create_topic
from tests.chaos.trace import SYNCS, check_synced, parse, strace_command, why_not
from tests.chaos.wire import Wire

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

PRODUCES = 50


def traced_problems(
    tmp_path: Path, partitions: Sequence[int], produces: int, config: Mapping[str, str] | None = None
) -> tuple[list[str], set[str]]:
    """Problems of so many acked requests, each to all these partitions; and the kinds of sync seen."""
    output = tmp_path / "trace"
    with BrokerProcess(tmp_path / "data", tmp_path, wrapper=strace_command(output)) as broker:
        broker.start()
        create_topic(broker.bootstrap, "traced", len(partitions), config)
        correlations = []
        with Wire(broker.bootstrap) as wire:
            for number in range(produces):
                value = f"v-{number}:".encode()
                answers = wire.produce("traced", {partition: [value] for partition in partitions})
                assert {(answer.error_code, answer.base_offset) for answer in answers} == {(0, number)}
                correlations.append(wire.last_correlation)
        assert broker.stop(30) == 0
    calls = parse(output.read_text().splitlines())
    used = {call.name for call in calls if call.name in SYNCS and ("/traced/" in call.path or call.name == "syncfs")}
    return check_synced(calls, correlations, "/logs/traced/"), used


def test_each_ack_follows_a_sync_of_its_write(tmp_path: Path) -> None:
    problems, _ = traced_problems(tmp_path, [0], PRODUCES)
    assert problems == []


def test_each_ack_of_many_partitions_follows_a_sync_of_all(tmp_path: Path) -> None:
    """Enough dirty files in one round that the broker may choose one syncfs over many fdatasyncs."""
    problems, used = traced_problems(tmp_path, range(6), PRODUCES // 2)
    assert problems == []
    assert used


def test_without_flush_there_is_no_sync_to_be_found(tmp_path: Path) -> None:
    """The check bites: on a flush=os topic each ack leaves with its write unsynced."""
    problems, _ = traced_problems(tmp_path, [0], PRODUCES, {"flush": "os"})
    assert len(problems) == PRODUCES
    assert all("no sync since the write" in problem for problem in problems)
