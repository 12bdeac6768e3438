"""Times and sizes as people write them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.quantities import format_duration, format_size, parse_duration_ms, parse_size

calm = settings(deadline=None)  # a busy machine is no failure


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0ms", 0),
        ("1500ms", 1500),
        (" 30s ", 30_000),
        ("1.5m", 90_000),
        ("0.001s", 1),
        ("12h", 43_200_000),
        ("14d", 1_209_600_000),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "30",
        "s",
        "-1s",
        "+1s",
        "1 s",
        "1S",
        "1.s",
        ".5s",
        "1.5.5s",
        "1h30m",
        "1w",
        "1e3s",
        "٣s",
        "0.5ms",
        "9" * 20 + "s",
    ],
)
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"unit"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0B", 0),
        ("1500B", 1500),
        ("10kB", 10_000),
        ("10MB", 10_000_000),
        ("64KiB", 65_536),
        (" 512mib ", 512 << 20),
        ("1.5GiB", 3 << 29),
        ("2TB", 2 * 10**12),
        ("1125899906842623B", (1 << 50) - 1),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "10000", "1k", "1iB", "1 GiB", "-1B", "1.5B", "1XB", "1\u212aB", "9" * 20 + "B"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r"unit"):
        parse_size(text)


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0ms"), (1, "1ms"), (90_000, "90s"), (86_400_000, "1d"), (90_000_000, "25h"), (1500, "1500ms")]
)
def test_a_duration_has_the_largest_unit_that_divides_it(ms: int, text: str) -> None:
    assert format_duration(ms) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0B"), (1000, "1000B"), (1 << 30, "1GiB"), (3 << 29, "1536MiB")])
def test_a_size_has_the_largest_unit_that_divides_it(size: int, text: str) -> None:
    assert format_size(size) == text


# Multiples of units, too: by chance alone nearly every number is one of the smallest.
amounts = st.builds(
    int.__mul__, st.integers(0, 10**6), st.sampled_from([1, 1000, 1024, 3_600_000, 86_400_000, 1 << 30])
)


@calm
@given(amounts | st.integers(0, 1 << 60))
def test_what_is_written_is_read_again(amount: int) -> None:
    assert parse_duration_ms(format_duration(amount)) == amount
    assert parse_size(format_size(amount)) == amount
