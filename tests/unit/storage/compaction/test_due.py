"""When a pass is due, by Kafka's rules."""

from typing import Any, NamedTuple

import pytest

from penstock.storage.compaction.due import Plan, plan


class Sealed(NamedTuple):
    base: int
    next_offset: int
    size: int
    max_timestamp: int


SEGMENTS = [Sealed(number * 10, number * 10 + 10, 100, 1000 + number) for number in range(5)]


def planned(segments: list[Sealed] = SEGMENTS, **changes: float) -> Plan[Sealed] | None:
    facts = {"dirty_from": 0, "stable_end": 1000, "active_base": 40, "now_ms": 10_000, "min_dirty_ratio": 0.5}
    return plan(segments, **{**facts, **changes})  # type: ignore[arg-type]


def ends(found: Plan[Sealed] | None) -> tuple[int, int, int] | None:
    return None if found is None else (len(found.segments), found.dirty_from, found.until)


def test_all_but_the_active_segment() -> None:
    assert ends(planned()) == (4, 0, 40)
    assert ends(planned(active_base=0)) is None
    assert planned([]) is None


@pytest.mark.parametrize(("stable_end", "expected"), [(40, (4, 0, 40)), (39, (3, 0, 30)), (10, (1, 0, 10)), (9, None)])
def test_never_past_what_is_decided(stable_end: int, expected: tuple[int, int, int] | None) -> None:
    assert ends(planned(stable_end=stable_end)) == expected


@pytest.mark.parametrize(
    ("dirty_from", "ratio", "due"),
    [(10, 0.74, True), (10, 0.75, False), (30, 0.24, True), (30, 0.25, False), (40, 0.0, False), (39, 0.0, True)],
)
def test_enough_of_it_must_be_dirty(dirty_from: int, ratio: float, due: bool) -> None:
    found = planned(dirty_from=dirty_from, min_dirty_ratio=ratio)
    assert ends(found) == ((4, dirty_from, 40) if due else None)


def test_the_numbers_it_decided_by() -> None:
    found = planned(dirty_from=25, min_dirty_ratio=0.1)
    assert found is not None and (found.clean_bytes, found.dirty_bytes) == (200, 200), "amid a segment: it is dirty"


def test_a_young_record_keeps_its_segment_and_those_behind_it_out() -> None:
    assert ends(planned(now_ms=3001, min_lag_ms=2000, min_dirty_ratio=0.0)) == (2, 0, 20)
    assert ends(planned(now_ms=2999, min_lag_ms=2000)) is None
    assert ends(planned(now_ms=3001, min_lag_ms=2000, dirty_from=30, min_dirty_ratio=0.0)) is None
    assert ends(planned(now_ms=1000, min_lag_ms=0)) == (4, 0, 40)


def test_what_is_clean_already_may_be_young() -> None:
    segments = [Sealed(0, 10, 100, 9_999), Sealed(10, 20, 100, 100)]
    assert ends(planned(segments, active_base=20, dirty_from=10, min_lag_ms=2000, min_dirty_ratio=0.1)) == (2, 10, 20)


def test_an_old_record_is_reason_enough() -> None:
    little: dict[str, Any] = {"dirty_from": 30, "min_dirty_ratio": 0.9, "max_lag_ms": 5000}
    assert ends(planned(now_ms=6003, **little)) is None
    assert ends(planned(now_ms=6004, **little)) == (4, 30, 40)
    assert ends(planned(now_ms=6003, oldest_dirty_ms=1002, **little)) == (4, 30, 40)
    assert ends(planned(now_ms=6004, **{**little, "dirty_from": 40})) is None


def test_a_segment_without_times_is_neither_young_nor_old() -> None:
    segments = [Sealed(0, 10, 100, -1)]
    assert ends(planned(segments, active_base=10, min_lag_ms=20_000)) == (1, 0, 10)
    assert planned(segments, active_base=10, min_dirty_ratio=1.0, max_lag_ms=0) is None


def test_a_start_outside_the_log_is_the_logs_own() -> None:
    assert ends(planned(SEGMENTS[2:], dirty_from=5)) == (2, 20, 40)
    assert ends(planned(dirty_from=51)) == (4, 0, 40)
    assert ends(planned([Sealed(0, 10, 0, -1)], active_base=10)) is None, "nothing to read"
