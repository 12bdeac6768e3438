"""When expressions fire: beside the calendar, minute by minute, and on the days the clocks are changed."""

from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.queues.schedules.cron import LONGEST, Cron
from penstock.errors import Code, PenstockError

BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")
MINUTE_MS, DAY_MS = 60_000, 86_400_000


def ms(text: str, zone: tzinfo = UTC, fold: int = 0) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp() * 1000)


def fires(cron: Cron, after_ms: int, until_ms: int) -> list[int]:
    found: list[int] = []
    at: int | None = after_ms
    while at is not None and (at := cron.next_after(at)) is not None and at <= until_ms:
        found.append(at)
    return found


def shown(times: list[int], zone: tzinfo) -> list[str]:
    return [f"{datetime.fromtimestamp(each / 1000, zone):%H:%M %z}" for each in times]


@pytest.mark.parametrize(
    ("expression", "day", "zone", "expected"),
    [
        # Clocks go from 02:00 to 03:00: what does not exist fires when they have.
        ("30 2 * * *", "2026-03-29", BERLIN, ["03:00 +0200"]),
        ("0,30 2 * * *", "2026-03-29", BERLIN, ["03:00 +0200"]),
        ("30 2,3 * * *", "2026-03-29", BERLIN, ["03:00 +0200", "03:30 +0200"]),
        ("0 3 * * *", "2026-03-29", BERLIN, ["03:00 +0200"]),
        ("30 1 * * *", "2026-03-29", BERLIN, ["01:30 +0100"]),
        ("30 2 * * *", "2026-03-08", NEW_YORK, ["03:00 -0400"]),
        ("15 2,14 * * *", "2026-03-08", NEW_YORK, ["03:00 -0400", "14:15 -0400"]),
        # They go from 03:00 back to 02:00, in New York from 02:00 to 01:00: what exists twice fires the first time.
        ("30 2 * * *", "2026-10-25", BERLIN, ["02:30 +0200"]),
        ("0,30 2 * * *", "2026-10-25", BERLIN, ["02:00 +0200", "02:30 +0200"]),
        ("0 3 * * *", "2026-10-25", BERLIN, ["03:00 +0100"]),
        ("30 1 * * *", "2026-11-01", NEW_YORK, ["01:30 -0400"]),
        ("45 0,1,2 * * *", "2026-11-01", NEW_YORK, ["00:45 -0400", "01:45 -0400", "02:45 -0500"]),
        # What has a * in front goes by the time that passes.
        ("*/30 2 * * *", "2026-03-29", BERLIN, []),
        ("*/30 2 * * *", "2026-10-25", BERLIN, ["02:00 +0200", "02:30 +0200", "02:00 +0100", "02:30 +0100"]),
        ("*/30 1 * * *", "2026-11-01", NEW_YORK, ["01:00 -0400", "01:30 -0400", "01:00 -0500", "01:30 -0500"]),
    ],
)
def test_days_on_which_clocks_are_changed(expression: str, day: str, zone: tzinfo, expected: list[str]) -> None:
    cron, begin = Cron(expression, zone), ms(f"{day}T00:00", zone)
    end = ms(f"{datetime.fromisoformat(day) + timedelta(days=1):%Y-%m-%d}T00:00", zone)
    times = fires(cron, begin - 1, end - 1)
    assert shown(times, zone) == expected
    for moment in range(begin, end, 7 * MINUTE_MS):  # wherever it is asked from, it is the same times
        following = cron.next_after(moment)
        assert following == next((each for each in times if each > moment), following)
        assert following is not None and (following in times or following >= end)


@pytest.mark.parametrize(
    ("zone", "spring", "autumn"), [(BERLIN, "2026-03-29", "2026-10-25"), (NEW_YORK, "2026-03-08", "2026-11-01")]
)
def test_every_hour_is_every_hour_also_where_clocks_are_changed(zone: tzinfo, spring: str, autumn: str) -> None:
    for day in (spring, autumn):
        begin = ms(f"{day}T00:30", zone)
        times = fires(Cron("0 * * * *", zone), begin, begin + 6 * 3_600_000)
        assert [later - earlier for earlier, later in pairwise(times)] == [3_600_000] * 5
        assert len(fires(Cron("* * * * *", zone), begin, begin + 6 * 3_600_000)) == 360


def test_between_the_two_of_a_time_that_exists_twice_the_first_one_is_over() -> None:
    cron = Cron("30 2 * * *", BERLIN)
    for minute in ("00", "10", "30", "45"):
        second = ms(f"2026-10-25T02:{minute}", BERLIN, fold=1)
        assert cron.next_after(second) == ms("2026-10-26T02:30", BERLIN)


def test_every_day_has_one() -> None:
    """Of a year, also those on which the clocks are changed."""
    for zone in (BERLIN, NEW_YORK):
        for hour in range(24):
            begin = ms("2026-01-01T00:00", zone)
            times = fires(Cron(f"30 {hour} * * *", zone), begin, begin + 365 * DAY_MS)
            days = [datetime.fromtimestamp(each / 1000, zone).date() for each in times]
            assert len(days) == len(set(days)) == 365, (zone, hour)


_MINUTES = st.sampled_from(["*", "*/7", "0", "30", "59", "5,25", "10-20/5"])
_HOURS = st.sampled_from(["*", "*/5", "0", "2", "1-3", "23"])
_DAYS = st.sampled_from(["*", "1", "15", "L", "29-31", "*/2"])
_MONTHS = st.sampled_from(["*", "3", "OCT-NOV", "2"])
_WEEKDAYS = st.sampled_from(["*", "0", "MON-FRI", "7", "SUN#1", "5L"])
_ZONES = st.sampled_from([UTC, BERLIN, NEW_YORK])
_EXPRESSIONS = st.tuples(_MINUTES, _HOURS, _DAYS, _MONTHS, _WEEKDAYS).map(" ".join)


@given(_EXPRESSIONS, _ZONES, st.integers(ms("2026-01-01T00:00"), ms("2029-01-01T00:00")), st.integers(0, 400 * DAY_MS))
@settings(deadline=None)
def test_the_latest_is_the_last_of_all(expression: str, zone: tzinfo, after_ms: int, span_ms: int) -> None:
    try:
        cron = Cron(expression, zone)
    except PenstockError:
        return
    first = cron.next_after(after_ms)
    if first is None:
        return
    until_ms = first + span_ms
    latest = cron.latest(first, until_ms)
    following = cron.next_after(latest)
    assert first <= latest <= until_ms
    assert following is None or following > until_ms
    assert latest == first or latest in fires(cron, max(first, latest - 2 * DAY_MS), latest)


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(["*/13 * * * *", "7 */3 * * *", "0 12 1 * *", "15 8 * * 1"]), st.integers(0, 10**7))
def test_it_fires_when_its_fields_say_so(expression: str, minutes: int) -> None:
    """In UTC, beside every minute of the next weeks."""
    begin = ms("2026-01-01T00:00") + minutes * MINUTE_MS % (400 * DAY_MS)
    following = Cron(expression).next_after(begin)

    def fits(at_ms: int) -> bool:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
        return {
            "*/13 * * * *": at.minute % 13 == 0,
            "7 */3 * * *": at.minute == 7 and at.hour % 3 == 0,
            "0 12 1 * *": (at.minute, at.hour, at.day) == (0, 12, 1),
            "15 8 * * 1": (at.minute, at.hour, at.weekday()) == (15, 8, 0),
        }[expression]

    at = begin - begin % MINUTE_MS + MINUTE_MS
    while not fits(at):
        at += MINUTE_MS
    assert following == at


@given(st.text("0123456789*/,-#LWMONJA ", max_size=30) | st.text(max_size=LONGEST + 10))
@settings(deadline=None, max_examples=300)
def test_whatever_a_client_sends_is_read_or_refused(text: str) -> None:
    refused = []
    try:
        cron = Cron(text, BERLIN)
    except PenstockError as error:
        refused.append(error.code)
    if refused:
        assert refused == [Code.INVALID_SCHEDULE]
        return
    following = cron.next_after(ms("2026-01-01T00:00"))
    assert following is None or following % MINUTE_MS == 0


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("61 * * * *", "there is no minute '61'"),
        ("* 24 * * *", "there is no hour '24'"),
        ("* * 0 * *", "there is no day of the month '0'"),
        ("* * * 13 *", "there is no month '13'"),
        ("* * * * 8", "there is no day of the week '8'"),
        ("*/0 * * * *", "there is no minute '*/0'"),
        ("0 0 30 2 *", "never fires: no such month has such a day"),
        ("* * * *", "has 4 fields, not 5"),
        ("* * * * * *", "has 6 fields, not 5"),
        ("@daily", "has 1 fields, not 5"),
        ("", "has 0 fields, not 5"),
        ("1," * LONGEST + "1 * * * *", f"has {2 * LONGEST + 9} characters; allowed: {LONGEST}"),
        ("9" * 5000, "has 5000 characters"),
    ],
)
def test_what_is_wrong_is_named(expression: str, why: str) -> None:
    with pytest.raises(PenstockError) as refused:
        Cron(expression)
    assert refused.value.code is Code.INVALID_SCHEDULE
    assert why in str(refused.value)
    assert refused.value.help


def test_beyond_the_calendar_there_is_no_time() -> None:
    cron = Cron("* * * * *")
    assert cron.next_after(253_402_300_799_999) is None
    assert cron.next_after(1 << 62) is None
    assert cron.latest(0, 1 << 40) == (1 << 40) - (1 << 40) % MINUTE_MS
