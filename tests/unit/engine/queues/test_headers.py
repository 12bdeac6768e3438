"""Headers of queues: what is read of them, what is not and why, and what only a broker writes."""

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.queues import headers
from penstock.engine.queues.headers import (
    LAST_MOMENT_MS,
    LONGEST_DETAIL,
    LONGEST_MS,
    NOTHING_SAID,
    Death,
    QueueHeaders,
    Reason,
    Unread,
    make_death_headers,
    read_headers,
    strip_reserved,
)

calm = settings(deadline=None)  # a busy machine is no failure

READ = tuple(f"penstock-{word}" for word in ("ttl-ms", "id", "priority", "deliver-at", "delay-ms", "tenant"))
DEATH = Death(
    Reason.REJECTED,
    "orders",
    UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
    7,
    1 << 40,
    "bílling",
    3,
    5,
    1_777_593_600_000,
    1_777_593_700_000,
    "no such customer",
)


def read(name: str, value: bytes | None) -> QueueHeaders:
    return read_headers((("trace", b"1"), (name, value), ("penstock-reply-to", b"replies")))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("penstock-ttl-ms", b"1", QueueHeaders(ttl_ms=1)),
        ("penstock-ttl-ms", b"0060000", QueueHeaders(ttl_ms=60_000)),
        ("penstock-ttl-ms", str(LONGEST_MS).encode(), QueueHeaders(ttl_ms=LONGEST_MS)),
        ("penstock-id", b"x", QueueHeaders(message_id="x")),
        ("penstock-id", "ö".encode() * 128, QueueHeaders(message_id="ö" * 128)),
        ("penstock-priority", b"0", QueueHeaders(priority=0)),
        ("penstock-priority", b"9", QueueHeaders(priority=9)),
        ("penstock-priority", b"critical", QueueHeaders(priority=8)),
        ("penstock-priority", b"high", QueueHeaders(priority=6)),
        ("penstock-priority", b"normal", QueueHeaders(priority=4)),
        ("penstock-priority", b"low", QueueHeaders(priority=2)),
        ("penstock-priority", b"background", QueueHeaders(priority=0)),
        ("penstock-deliver-at", b"0", QueueHeaders(deliver_at_ms=0)),
        ("penstock-deliver-at", b"1777638600000", QueueHeaders(deliver_at_ms=1_777_638_600_000)),
        ("penstock-deliver-at", b"2026-05-01T12:30:00Z", QueueHeaders(deliver_at_ms=1_777_638_600_000)),
        ("penstock-deliver-at", b"2026-05-01t14:30:00.5+02:00", QueueHeaders(deliver_at_ms=1_777_638_600_500)),
        ("penstock-deliver-at", b"2026-05-01 12:30:00.000000001z", QueueHeaders(deliver_at_ms=1_777_638_600_001)),
        ("penstock-deliver-at", b"9999-12-31T23:59:59.999Z", QueueHeaders(deliver_at_ms=LAST_MOMENT_MS)),
        ("penstock-delay-ms", b"0", QueueHeaders(delay_ms=0)),
        ("penstock-delay-ms", b"86400000", QueueHeaders(delay_ms=86_400_000)),
        ("penstock-tenant", b"acme" * 32, QueueHeaders(tenant="acme" * 32)),
    ],
)
def test_what_is_read(name: str, value: bytes, said: QueueHeaders) -> None:
    assert read(name, value) == said


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("penstock-ttl-ms", None, "it has no value"),
        ("penstock-ttl-ms", b"", "it has no value"),
        ("penstock-ttl-ms", b"0", "'0' is not a number of milliseconds from 1 to 3153600000000"),
        ("penstock-ttl-ms", b"-1", "'-1' is not a number"),
        ("penstock-ttl-ms", b"1.5", "'1.5' is not a number"),
        ("penstock-ttl-ms", b"1e3", "'1e3' is not a number"),
        ("penstock-ttl-ms", b" 1", "' 1' is not a number"),
        ("penstock-ttl-ms", b"1_000", "'1_000' is not a number"),
        ("penstock-ttl-ms", "٣".encode(), "'٣' is not a number"),
        ("penstock-ttl-ms", str(LONGEST_MS + 1).encode(), "is not a number"),
        ("penstock-ttl-ms", b"9" * 60, f"'{'9' * 40}' is not a number"),
        ("penstock-ttl-ms", b"9" * 100_000, "it has 100000 bytes, 64 at most are allowed"),
        ("penstock-ttl-ms", b"\xff", "it is not UTF-8"),
        ("penstock-id", b"", "it has no value"),
        ("penstock-id", b"x" * 257, "it has 257 bytes, 256 at most"),
        ("penstock-id", b"a\xffb", "it is not UTF-8"),
        ("penstock-priority", b"10", "'10' is not 0 to 9, or critical, high, normal, low, background"),
        ("penstock-priority", b"-1", "'-1' is not 0 to 9"),
        ("penstock-priority", b"urgent", "'urgent' is not 0 to 9"),
        ("penstock-deliver-at", b"tomorrow", "'tomorrow' is not a time such as 2026-05-01T12:30:00Z, or milliseconds"),
        ("penstock-deliver-at", b"2026-05-01", "is not a time"),
        ("penstock-deliver-at", b"2026-05-01T12:30:00", "is not a time"),
        ("penstock-deliver-at", b"2026-02-30T12:30:00Z", "is not a time"),
        ("penstock-deliver-at", b"2026-05-01T12:30:60Z", "is not a time"),
        ("penstock-deliver-at", b"2026-05-01T12:30:00+24:00", "is not a time"),
        ("penstock-deliver-at", b"0000-01-01T00:00:00Z", "is not a time"),
        ("penstock-deliver-at", b"1969-12-31T23:59:59Z", "is before 1970 or after 9999"),
        ("penstock-deliver-at", b"0001-01-01T00:00:00+23:59", "is before 1970"),
        ("penstock-deliver-at", b"9999-12-31T23:59:59.9999Z", "after 9999"),
        ("penstock-deliver-at", b"9999-12-31T23:59:59-23:59", "after 9999"),
        ("penstock-deliver-at", str(LAST_MOMENT_MS + 1).encode(), "is not a time"),
        ("penstock-deliver-at", b"-1", "is not a time"),
        ("penstock-delay-ms", b"-1", "'-1' is not a number of milliseconds from 0"),
        ("penstock-delay-ms", str(LONGEST_MS + 1).encode(), "is not a number"),
        ("penstock-tenant", b"x" * 129, "it has 129 bytes, 128 at most"),
        ("penstock-tenant", b"\xc3", "it is not UTF-8"),
    ],
)
def test_what_is_not_is_as_if_absent_and_told(name: str, value: bytes | None, why: str) -> None:
    said = read(name, value)
    assert said._replace(unread=()) == NOTHING_SAID
    (unread,) = said.unread
    assert unread.name == name
    assert why in unread.why


def test_one_that_is_wrong_does_not_hide_the_others() -> None:
    said = read_headers((("penstock-priority", b"11"), ("penstock-ttl-ms", b"5"), ("penstock-tenant", None)))
    assert said.ttl_ms == 5
    assert [each.name for each in said.unread] == ["penstock-priority", "penstock-tenant"]


def test_of_several_the_last_counts() -> None:
    assert read_headers((("penstock-ttl-ms", b"5"), ("penstock-ttl-ms", b"6"))) == QueueHeaders(ttl_ms=6)
    said = read_headers((("penstock-ttl-ms", b"5"), ("penstock-ttl-ms", b"soon")))
    assert said.ttl_ms is None
    assert len(said.unread) == 1


def test_many_wrong_ones_are_told_of_once() -> None:
    said = read_headers(tuple((name, b"\xff") for name in READ) * 10_000)
    assert said == NOTHING_SAID._replace(unread=tuple(Unread(name, "it is not UTF-8") for name in READ))


def test_a_message_without_any_costs_no_object() -> None:
    assert read_headers(()) is NOTHING_SAID
    assert read_headers((("trace", b"1"), ("Penstock-Ttl-Ms", b"1"), ("penstock-ttl", b"1"))) is NOTHING_SAID


@calm
@given(st.lists(st.tuples(st.sampled_from(READ) | st.text(max_size=20), st.none() | st.binary(max_size=300))))
def test_whatever_somebody_sends_is_bounded(sent: list[tuple[str, bytes | None]]) -> None:
    said = read_headers(tuple(sent))
    assert said.ttl_ms is None or 1 <= said.ttl_ms <= LONGEST_MS
    assert said.delay_ms is None or 0 <= said.delay_ms <= LONGEST_MS
    assert said.deliver_at_ms is None or 0 <= said.deliver_at_ms <= LAST_MOMENT_MS
    assert said.priority is None or 0 <= said.priority <= 9
    assert said.message_id is None or 1 <= len(said.message_id.encode()) <= 256
    assert said.tenant is None or 1 <= len(said.tenant.encode()) <= 128
    assert len(said.unread) <= len(READ)
    assert all(len(each.why) < 600 for each in said.unread)


zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(datetime(1970, 1, 3), datetime(9999, 12, 29), timezones=zones)


@calm
@given(moments)
def test_a_moment_is_never_earlier_than_written_and_less_than_a_millisecond_later(moment: datetime) -> None:
    text = moment.isoformat(timespec="microseconds")
    due = read("penstock-deliver-at", text.encode()).deliver_at_ms
    assert due is not None
    exact = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert exact <= due * 1000 < exact + 1000


@calm
@given(st.integers(0, LAST_MOMENT_MS))
def test_a_moment_in_milliseconds_is_itself(moment: int) -> None:
    assert read("penstock-deliver-at", str(moment).encode()).deliver_at_ms == moment


class TestDeadLetters:
    def test_they_say_where_they_are_from_and_why(self) -> None:
        assert dict(make_death_headers(DEATH)) == {
            "penstock-sys-reason": b"rejected",
            "penstock-sys-detail": b"no such customer",
            "penstock-sys-topic": b"orders",
            "penstock-sys-topic-id": b"6ba7b810-9dad-11d1-80b4-00c04fd430c8",
            "penstock-sys-partition": b"7",
            "penstock-sys-offset": b"1099511627776",
            "penstock-sys-group": "bílling".encode(),
            "penstock-sys-attempts": b"3",
            "penstock-sys-deliveries": b"5",
            "penstock-sys-first-time-ms": b"1777593600000",
            "penstock-sys-dead-time-ms": b"1777593700000",
            "__dlq.errors.topic": b"orders",
            "__dlq.errors.partition": b"7",
            "__dlq.errors.offset": b"1099511627776",
            "__dlq.errors.group": "bílling".encode(),
            "__dlq.errors.delivery.count": b"5",
            "__dlq.errors.message": b"Offset rejected by client.",
        }

    def test_no_name_comes_twice(self) -> None:
        names = [name for name, _ in make_death_headers(DEATH)]
        assert len(set(names)) == len(names)

    @pytest.mark.parametrize("reason", Reason)
    def test_each_reason_has_kafkas_words(self, reason: Reason) -> None:
        made = dict(make_death_headers(DEATH._replace(reason=reason)))
        assert made[headers.REASON] == str(reason).encode()
        wanted = {
            Reason.ATTEMPTS: b"Offset delivery count exceeded the threshold.",
            Reason.DELIVERIES: b"Offset delivery count exceeded the threshold.",
        }
        assert made[headers.KAFKA_MESSAGE] == wanted.get(reason, made[headers.KAFKA_MESSAGE])
        assert made[headers.KAFKA_MESSAGE]

    def test_what_a_consumer_says_has_an_end_and_may_be_no_text(self) -> None:
        assert headers.DETAIL not in dict(make_death_headers(DEATH._replace(detail="")))
        made = dict(make_death_headers(DEATH._replace(detail="\ud800" + "x" * 100_000)))
        assert made[headers.DETAIL] == b"?" + b"x" * (LONGEST_DETAIL - 1)

    def test_clients_have_no_say_in_them(self) -> None:
        sent = (("trace", b"1"), ("penstock-ttl-ms", b"5"), ("penstock-system", None), ("__dlq", b"2"))
        assert strip_reserved((*make_death_headers(DEATH), *sent, ("penstock-sys-deaths", None))) == sent
        assert strip_reserved(sent) is sent
        assert strip_reserved(()) == ()
