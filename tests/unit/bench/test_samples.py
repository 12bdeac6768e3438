"""What the loads print and write, read back."""

from array import array
from pathlib import Path

import pytest
from bench.jvm import parse_steady
from bench.native import NativeError
from bench.neighbours import Sample, Span, load_samples, p99_between, percentile

PERF = """Warmup first 50000 records. Steady state results will print after the complete test summary.
200000 records sent, 100000.0 records/sec (97.66 MB/sec), 30.26 ms avg latency, 369.00 ms max latency.
150000 steady state records sent, 75000.0 records/sec (73.24 MB/sec), 36.67 ms avg latency, 149.00 ms max latency.
"""


def test_the_steady_state_counts() -> None:
    assert parse_steady(PERF, 1000) == {"seconds": 2.0, "records": 150_000, "bytes": 150_000_000}


def test_no_steady_state_is_an_error() -> None:
    with pytest.raises(NativeError, match="no steady state"):
        parse_steady(PERF.splitlines()[1], 1000)


def test_samples_are_pairs_of_nanoseconds(tmp_path: Path) -> None:
    path = tmp_path / "samples"
    path.write_bytes(array("q", [2_000_000_000, 1_500_000, 3_000_000_000, 250_000]).tobytes())
    assert load_samples(path) == [Sample(2.0, 1.5), Sample(3.0, 0.25)]


def test_p99_of_the_records_sent_during_a_span() -> None:
    samples = [Sample(number / 100, float(number)) for number in range(400)]
    assert p99_between(samples, Span(1.0, 2.0)) == 199.0
    assert p99_between(samples, Span(0.0, 4.0)) == 396.0


def test_a_span_without_records_is_an_error() -> None:
    with pytest.raises(NativeError, match="no record"):
        p99_between([Sample(1.0, 1.0)], Span(2.0, 3.0))


def test_percentile() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 1.0) == 3.0
