"""What the loads print and write, read back."""

from array import array
from pathlib import Path

import pytest
from bench.jvm import parse_fetched, parse_steady
from bench.native import NativeError
from bench.neighbours import Sample, Span, load_samples, percentile, times_between

PERF = """Warmup first 50000 records. Steady state results will print after the complete test summary.
200000 records sent, 100000.0 records/sec (97.66 MB/sec), 30.26 ms avg latency, 369.00 ms max latency.
150000 steady state records sent, 75000.0 records/sec (73.24 MB/sec), 36.67 ms avg latency, 149.00 ms max latency.
"""


def test_the_steady_state_counts() -> None:
    assert parse_steady(PERF, 1000) == {"seconds": 2.0, "records": 150_000, "bytes": 150_000_000}


def test_no_steady_state_is_an_error() -> None:
    with pytest.raises(NativeError, match="no steady state"):
        parse_steady(PERF.splitlines()[1], 1000)


FETCHED = """[2026-01-01 00:00:00,000] WARN something
2026-01-01 00:00:00:000, 2026-01-01 00:00:04:000, 97.6563, 24.4141, 100000, 25000.0000, 1500, 2500, 39.0625, 40000.0
"""


def test_the_time_of_fetching_counts() -> None:
    assert parse_fetched(FETCHED, 100_000) == {"seconds": 2.5, "records": 100_000, "join_s": 1.5}


@pytest.mark.parametrize(("output", "records"), [(FETCHED, 100_001), ("", 1), ("Exiting\n", 1)])
def test_too_few_records_read_are_an_error(output: str, records: int) -> None:
    with pytest.raises(NativeError, match=f"did not read {records} records"):
        parse_fetched(output, records)


def test_samples_are_pairs_of_nanoseconds(tmp_path: Path) -> None:
    path = tmp_path / "samples"
    path.write_bytes(array("q", [2_000_000_000, 1_500_000, 3_000_000_000, 250_000]).tobytes())
    assert load_samples(path) == [Sample(2.0, 1.5), Sample(3.0, 0.25)]


def test_p99_of_the_records_sent_during_a_span() -> None:
    samples = [Sample(number / 100, float(number)) for number in range(400)]
    assert percentile(times_between(samples, Span(1.0, 2.0)), 0.99) == 199.0
    assert percentile(times_between(samples, Span(0.0, 4.0)), 0.99) == 396.0


def test_a_span_without_records_is_an_error() -> None:
    with pytest.raises(NativeError, match="no record"):
        times_between([Sample(1.0, 1.0)], Span(2.0, 3.0))


def test_percentile() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 1.0) == 3.0
