"""`penstock queue schedule` against a real broker; what schedules publish is shown in virtual time elsewhere."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from tests.unit.cli.conftest import Run

from penstock.cli.queue_schedule import _moment, _shown

Schedule = Callable[..., str]
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def schedule(run: Run, topic: str) -> Schedule:
    """`penstock queue schedule COMMAND QUEUE WORDS...` about a queue of the test's own; returns what it prints."""
    assert run("queue", "create", topic).code == 0

    def call(command: str, *words: str, code: int = 0) -> str:
        done = run("queue", "schedule", command, topic, *words)
        assert done.code == code, done
        return done.err if code else done.out

    return call


def listed(schedule: Schedule) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(schedule("list", "-o", "json"))
    return found


def test_made_with_its_next_three_times(schedule: Schedule, topic: str) -> None:
    before = datetime.now(BERLIN)
    lines = schedule("add", "nightly", "30 3 * * *", "make the report", "--zone", "Europe/Berlin").splitlines()
    after = datetime.now(BERLIN)
    assert lines[:2] == [
        f"made schedule nightly of queue {topic}: 30 3 * * * in Europe/Berlin",
        "NEXT IN EUROPE/BERLIN   IN UTC",
    ]
    nights = [before, after]
    for number, night in enumerate(nights):
        at = night.replace(hour=3, minute=30, second=0, microsecond=0)
        nights[number] = at if at > night else at + timedelta(days=1)
    tables = [
        [
            f"{at.isoformat(' ', 'minutes')}  {at.astimezone(UTC):%Y-%m-%d %H:%M}Z"
            for at in (night + timedelta(days=day) for day in range(3))
        ]
        for night in nights
    ]
    assert lines[2:] in tables


def test_listed_paused_resumed_and_removed(schedule: Schedule, topic: str) -> None:
    assert schedule("list") == ""
    schedule("add", "nightly", "30 3 * * *", "report", "-z", "Europe/Berlin", "-k", "k", "-H", "a=b", "-H", "c=")
    schedule("add", "often", "*/5 * * * *", "check")
    assert schedule("pause", "often") == f"paused schedule often of queue {topic}\n"
    header, nightly, often = schedule("list").splitlines()
    assert header.split("  ")[0] == "SCHEDULE"
    assert [word.strip() for word in nightly.split("  ") if word][:3] == ["nightly", "30 3 * * *", "Europe/Berlin"]
    assert nightly.split()[-1] == "active"
    assert often.split() == ["often", "*/5", "*", "*", "*", "*", "UTC", "-", "-", "-", "paused"]
    first, second = listed(schedule)
    assert (first["key"], first["value"], first["value_bytes"], first["state"]) == ("k", "report", 6, "active")
    assert first["headers"] == [{"name": "a", "value": "b"}, {"name": "c", "value": ""}]
    assert (second["state"], second["next"], second["last"]) == ("paused", [], None)
    assert schedule("resume", "often").splitlines()[0] == f"resumed schedule often of queue {topic}"
    assert "say --yes" in schedule("remove", "often", code=2)
    assert schedule("remove", "often", "--yes") == f"removed schedule often of queue {topic}\n"
    assert [row["schedule"] for row in listed(schedule)] == ["nightly"]


def test_messages_from_files_and_empty_ones(schedule: Schedule, tmp_path: Path) -> None:
    (tmp_path / "message").write_bytes(b"\xff\0" * 1000)
    schedule("add", "raw", "0 0 1 1 *", "--file", str(tmp_path / "message"), "-k", "")
    schedule("add", "empty", "0 0 1 1 *", "")
    empty, raw = listed(schedule)
    assert (empty["value"], empty["key"], empty["value_bytes"]) == ("", None, 0)
    assert (raw["value_bytes"], raw["key"]) == (2000, "")
    assert "either MESSAGE or --file" in schedule("add", "none", "* * * * *", code=2)
    assert "either MESSAGE or --file" in schedule(
        "add", "both", "* * * * *", "x", "-f", str(tmp_path / "message"), code=2
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["s", "61 * * * *", "x"], "cron expression '61 * * * *': there is no minute '61'; allowed: 0 to 59"),
        (["s", "0 0 30 2 *", "x"], "never fires: no such month has such a day; the fields are minute, hour"),
        (
            ["s", "* * * * *", "x", "-z", "Europe/Berln"],
            "time zone 'Europe/Berln' is unknown; name it as the IANA does",
        ),
        (["s s", "* * * * *", "x"], "schedule name 's s' is not 1 to 249 of letters"),
        (["s", "* * * * *", "x", "-H", "penstock-sys-schedule=x"], "written by brokers only"),
        (["s", "* * * * *", "x" * 70_000], "value has a length of 70000; allowed: 65536"),
    ],
)
def test_what_is_wrong_is_named_with_the_way_out(schedule: Schedule, words: list[str], told: str) -> None:
    assert told in schedule("add", *words, code=1)


def test_a_mistyped_name(schedule: Schedule, run: Run, topic: str) -> None:
    schedule("add", "nightly", "30 3 * * *", "x")
    assert "there is no schedule 'nigthly'; did you mean nightly?" in schedule("pause", "nigthly", code=1)
    done = run("queue", "schedule", "list", f"{topic[:-1]}-")
    assert (done.code, f"did you mean {topic}" in done.err) == (1, True)


def test_deleted_with_the_queue(schedule: Schedule, run: Run, topic: str) -> None:
    schedule("add", "nightly", "30 3 * * *", "x")
    assert run("queue", "purge", topic, "--yes").code == 0
    assert len(listed(schedule)) == 1
    assert run("queue", "delete", topic, "--yes").code == 0
    assert run("queue", "create", topic).code == 0
    assert listed(schedule) == []


def test_many_are_listed_whole(schedule: Schedule) -> None:
    for number in range(101):
        schedule("add", f"s{number:03}", "0 0 1 1 *", "x")
    assert [row["schedule"] for row in listed(schedule)] == [f"s{number:03}" for number in range(101)]


def test_times_are_shown_in_the_zone_and_in_utc() -> None:
    at = int(datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp() * 1000)
    assert _moment(at, BERLIN) == {"ms": at, "local": "2026-10-25 02:30+02:00", "utc": "2026-10-25 00:30Z"}
    later = at + 3_600_000
    assert _moment(later, BERLIN)["local"] == "2026-10-25 02:30+01:00"
    told = {
        "zone": "Mars/Olympus",
        "paused": False,
        "knows_zone": False,
        "next_ms": [],
        "planned_ms": at,
        "fired_ms": 1,
    }
    shown = _shown({"schedule": "s", **told})
    assert shown["state"] == "zone unknown to the broker"
    assert shown["last"] == {"ms": at, "local": "2026-10-25 00:30+00:00", "utc": "2026-10-25 00:30Z", "fired_ms": 1}
