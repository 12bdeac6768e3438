import pytest

from penstock.pipelines.drawing.quantity import format_count, format_rate, format_seconds, plural


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (9999, "9,999"),
        (10_000, "10k"),
        (12_345, "12.3k"),
        (999_499, "999k"),
        (999_600, "1M"),
        (1_234_567, "1.23M"),
        (999_999_999, "1G"),
        (5_000_000_000_000, "5,000G"),
        (-12_345, "-12.3k"),
    ],
)
def test_counts(number: int, text: str) -> None:
    assert format_count(number) == text


@pytest.mark.parametrize(("rate", "text"), [(0, "0 rows/s"), (0.44, "0.4 rows/s"), (12_345.6, "12.3k rows/s")])
def test_rates(rate: float, text: str) -> None:
    assert format_rate(rate) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0804, "80 ms"), (1.54, "1.5 s"), (125, "2 min 5 s"), (12_000, "3 h 20 min")]
)
def test_spans(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("number", "thing", "text"), [(1, "row", "1 row"), (2, "row", "2 rows"), (0, "batch", "0 batches")]
)
def test_plurals(number: int, thing: str, text: str) -> None:
    assert plural(number, thing) == text
