"""The acks of VerifiableProducer are judged; a program that prints such lines by itself stands in for it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.history import Kind, PartitionLog, Record
from tests.cluster.faults import OTHERS, plan
from tests.cluster.verifiable import VerifiableProducer


def acked(value: int, offset: int) -> dict[str, Any]:
    return {"name": "producer_send_success", "value": str(value), "partition": 0, "offset": offset}


def failed(value: int) -> dict[str, Any]:
    return {"name": "producer_send_error", "value": str(value)}


def judge(directory: Path, lines: list[dict[str, Any]], *log: int) -> set[Kind]:
    producer = VerifiableProducer("127.0.0.1:1", "t", directory)
    (directory / "verifiable.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    records = [Record(0, offset, str(value)) for offset, value in enumerate(log)]
    logs = {0: PartitionLog(0, len(log), records)}
    return {violation.kind for violation in producer.history(logs).check(logs)}


@pytest.mark.parametrize(
    ("lines", "log", "kinds"),
    [
        ([acked(0, 0), acked(1, 1)], (0, 1), set()),
        ([acked(0, 0), acked(1, -1)], (0, 1), set()),  # sent before, and nobody knows where it went
        ([acked(0, 0), failed(1)], (0,), set()),
        ([acked(0, 0), failed(1)], (0, 1), set()),  # given up by the client, and written all the same
        ([acked(0, 0), acked(1, 1)], (0,), {Kind.LOST}),
        ([acked(0, 0), acked(1, 1)], (0, 1, 1), {Kind.DUPLICATE}),
        ([acked(0, 1), acked(1, 0)], (1, 0), {Kind.REORDERED}),
        ([acked(0, 0)], (0, 7), {Kind.PHANTOM}),
    ],
)
def test_judgement(tmp_path: Path, lines: list[dict[str, Any]], log: tuple[int, ...], kinds: set[Kind]) -> None:
    assert judge(tmp_path, lines, *log) == kinds


def test_a_plan_has_as_many_kills_as_asked_and_every_kind_of_fault() -> None:
    faults = list(plan(2 * len(OTHERS), 1, ("a", "b"), 3))
    assert [fault.kind for fault in faults[::2]] == ["kill"] * 2 * len(OTHERS)
    assert {fault.kind for fault in faults[1::2]} == set(OTHERS)
    assert list(plan(2, 1, ("a", "b"), 3)) == faults[:4]


def test_the_shortest_plan_is_a_kill_and_a_stop() -> None:
    assert [fault.kind for fault in plan(1, 1, ("a",), 1)] == ["kill", "stop"]
