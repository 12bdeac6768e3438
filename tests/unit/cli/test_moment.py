"""Points in time as people write them."""

import time

import click
import pytest

from penstock.cli.moment import Moment


def read(text: str) -> int:
    return Moment().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "moment_ms"),
    [
        ("1777593600000", 1_777_593_600_000),
        ("2026-05-01T00:00:00Z", 1_777_593_600_000),
        ("2026-05-01T02:00:00.250+02:00", 1_777_593_600_250),
        (" 2026-05-01T00:00Z ", 1_777_593_600_000),
        ("0", 0),
        ("1969-12-31T23:59:59.999Z", 0),  # -1 would be Kafka's word for the end
        ("9" * 30, 2**63 - 1),
        ("999999999999w", 0),
    ],
)
def test_points(text: str, moment_ms: int) -> None:
    assert read(text) == moment_ms


def test_a_time_without_a_zone_is_this_machine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC+3")
    time.tzset()
    try:
        assert read("2026-05-01") == 1_777_593_600_000 + 3 * 3_600_000
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "ago_ms"), [("500ms", 500), ("90s", 90_000), ("1.5h", 5_400_000), ("7d", 604_800_000), ("1w", 604_800_000)]
)
def test_how_long_ago(text: str, ago_ms: int) -> None:
    before = time.time() * 1000
    moment_ms = read(text)
    after = time.time() * 1000
    assert before - ago_ms - 1 <= moment_ms <= after - ago_ms


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "5y", "2026-13-01", "1h30m"])
def test_what_is_none_is_told_with_what_would_be(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is no point in time; write 2026-05-01"):
        read(text)
