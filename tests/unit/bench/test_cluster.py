"""What a run of the cluster's benchmark consists of, and what a gap in the flow of acks is."""

import math

import pytest
from bench.cluster import FULL_KILLS, GROUPS, complete, gaps_of, parse
from bench.cluster_gaps import PAUSE_S, STEADY_S, is_steady, longest_gap_s
from bench.cluster_throughput import CELLS, PARTITIONS


def test_everything_by_default_is_complete() -> None:
    options = parse([])
    assert options.only == list(GROUPS)
    assert complete(options)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rounds", "2"],
        ["--share", "0.5"],
        ["--kills", str(FULL_KILLS - 1)],
        ["--stops", "1"],
        ["--only", "killed"],
        ["--brokers", "penstock"],
        ["--output", "a.json"],
        ["--quick"],
    ],
)
def test_anything_less_is_not(arguments: list[str]) -> None:
    assert not complete(parse(arguments))


@pytest.mark.parametrize(
    "arguments", [["--only", "planned,speed"], ["--brokers", "kafka,redis"], ["--rounds", "0"], ["--kills", "-1"]]
)
def test_nonsense_is_refused_by_name(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
    assert arguments[1].split(",")[-1] in capsys.readouterr().err.splitlines()[-1]


def test_every_partition_gets_a_record() -> None:
    assert all(cell.records(1e-9) == PARTITIONS for cell in CELLS)


def acks(*spans: tuple[float, float]) -> list[float]:
    """One each hundredth of a second in each of the spans."""
    return [begin + step / 100 for begin, end in spans for step in range(round((end - begin) * 100))]


def test_the_gap_begins_with_the_last_ack_before_the_signal() -> None:
    times = acks((0, 5.2), (7.5, 9))
    assert longest_gap_s(times, 5.3, 9) == pytest.approx(7.5 - 5.19)


def test_a_gap_before_the_signal_or_after_the_span_does_not_count() -> None:
    times = acks((0, 1), (4, 6), (6.5, 8), (20, 21))
    assert longest_gap_s(times, 5, 9) == pytest.approx(0.51)


def test_the_longest_of_several_gaps_counts() -> None:
    assert longest_gap_s(acks((0, 5), (5.2, 6), (6.7, 8)), 4.9, 8) == pytest.approx(0.71)


def test_no_ack_is_no_gap() -> None:
    assert math.isnan(longest_gap_s([], 0, 9))


@pytest.mark.parametrize(
    ("times", "begin_s", "end_s", "steady"),
    [
        (acks((0, 3)), 1, 1 + STEADY_S, True),
        (acks((0, 3)), 1, 1 + STEADY_S / 2, False),  # too short to tell
        (acks((0, 1.2), (1.3 + PAUSE_S, 4)), 1, 3, False),  # a pause within
        (acks((0, 1), (1.1 + PAUSE_S, 4)), 1, 3, False),  # begins with a pause
        (acks((0, 2)), 1, 2.1 + PAUSE_S, False),  # ends with one
        ([], 1, 3, False),
    ],
)
def test_steady_is_a_second_without_a_pause(times: list[float], begin_s: float, end_s: float, steady: bool) -> None:
    assert is_steady(times, begin_s, end_s) is steady


def test_a_brief_run_kills_kafka_less_and_penstock_as_often() -> None:
    whole, brief = parse([]), parse(["--brief"])
    assert complete(brief)
    assert gaps_of("penstock", whole) == gaps_of("penstock", brief) == {"planned": 10, "killed": 30, "follower": 10}
    assert gaps_of("kafka", whole) == {"planned": 10, "killed": 10, "follower": 10}
    assert gaps_of("kafka", brief) == {"planned": 10, "killed": 5, "follower": 5}
