"""Places and times as people type them."""

import time
from datetime import UTC, datetime

import pytest

from penstock.cli.position import Kind, Position, now_ms, parse_escapes, parse_position, parse_time


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("start", Position(Kind.START)),
        ("end", Position(Kind.END)),
        ("0", Position(Kind.OFFSET, 0)),
        ("42", Position(Kind.OFFSET, 42)),
        ("-10", Position(Kind.LAST, 10)),
        ("@1777593600000", Position(Kind.TIME, 1_777_593_600_000)),
        ("2026-05-01T00:00:00Z", Position(Kind.TIME, 1_777_593_600_000)),
        ("2026-05-01T02:00+02:00", Position(Kind.TIME, 1_777_593_600_000)),
        ("1960-01-01", Position(Kind.TIME, 0)),
    ],
)
def test_places(word: str, expected: Position) -> None:
    assert parse_position(word) == expected


@pytest.mark.parametrize("word", ["", "beginning", "-", "--5", "5x", "-5m ago", "2026-13-01", "@", "@x", str(2**63)])
def test_what_is_no_place(word: str) -> None:
    with pytest.raises(ValueError, match="is no place in a log; expected start, end"):
        parse_position(word)


@pytest.mark.parametrize(
    ("word", "distance_ms"),
    [
        ("-5m", -300_000),
        ("-2h", -7_200_000),
        ("-1d", -86_400_000),
        ("90s", -90_000),
        ("1w", -604_800_000),
        ("+10s", 10_000),
    ],
)
def test_times_from_now(word: str, distance_ms: int) -> None:
    before = now_ms()
    moment_ms = parse_time(word)
    assert before - 2 <= moment_ms - distance_ms <= now_ms() + 2


def test_a_time_without_a_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert parse_time("2026-05-01T09:00") == datetime(2026, 5, 1, tzinfo=UTC).timestamp() * 1000
    finally:
        monkeypatch.undo()
        time.tzset()


def test_escapes() -> None:
    assert parse_escapes(r"a\n\t\0\x1f\\é") == b"a\n\t\0\x1f\\\xc3\xa9"
    for wrong in ("\\", "\\q", "\\x1"):
        with pytest.raises(ValueError, match="is no escape"):
            parse_escapes(wrong)
