"""The verdict itself: it must see what it is there for."""

import pytest

from .verdict import Output, key_of, report, value_of, violations

WRITTEN = {0: 3, 1: 2}


def output() -> list[list[Output]]:
    return [[Output(key_of(key), value_of(key, at)) for at in range(count)] for key, count in WRITTEN.items()]


def test_what_was_written_and_nothing_else() -> None:
    assert violations(WRITTEN, output()) == []


def test_a_lost_record() -> None:
    partitions = output()
    del partitions[0][1]
    assert violations(WRITTEN, partitions) == ["lost: b'0:1'"]


@pytest.mark.parametrize("place", [2, 3])
def test_a_record_that_is_there_twice(place: int) -> None:
    partitions = output()
    partitions[0].insert(place, partitions[0][1])
    found = violations(WRITTEN, partitions)
    assert "2 times: b'0:1'" in found


def test_records_out_of_order() -> None:
    partitions = output()
    partitions[0].reverse()
    assert violations(WRITTEN, partitions) == [
        "out of order: b'0:1' behind b'0:2'",
        "out of order: b'0:0' behind b'0:1'",
    ]


def test_a_record_nobody_wrote() -> None:
    partitions = output()
    partitions[1].append(Output(key_of(1), value_of(1, 2)))
    (line,) = violations(WRITTEN, partitions)
    assert line.startswith("from nowhere:")


def test_a_key_in_two_partitions() -> None:
    partitions = output()
    partitions[1].append(partitions[0].pop())
    assert violations(WRITTEN, partitions) == ["in several partitions: b'key-0' in [0, 1]"]


def test_a_report_is_short() -> None:
    assert report(["lost: 1"] * 50).splitlines()[0] == "50 lost"
    assert len(report(["lost: 1"] * 50).splitlines()) == 22
