"""What can be set for a group: defaults, bounds as Kafka has them, and what comes of it."""

from collections.abc import Mapping

import pytest

from penstock.engine.groups.group_config import (
    GROUP_SETTINGS,
    OffsetReset,
    broker_values,
    check_group_settings,
    make_group_config,
    parse_offset_reset,
    tidy_group_settings,
)
from penstock.errors import Code, PenstockError

NOTHING: Mapping[str, str] = {}
BOUNDS = {
    "consumer.heartbeat.interval.ms": (5000, 15000),
    "consumer.session.timeout.ms": (45000, 60000),
    "share.delivery.count.limit": (2, 10),
    "share.heartbeat.interval.ms": (5000, 15000),
    "share.partition.max.record.locks": (100, 4000),
    "share.record.lock.duration.ms": (15000, 60000),
    "share.session.timeout.ms": (45000, 60000),
}
WORDS = {
    "errors.deadletterqueue.copy.record.enable": ("true", "false"),
    "errors.deadletterqueue.topic.name": ("", "dlq.orders"),
    "share.auto.offset.reset": ("earliest", "latest", "by_duration:PT1H"),
    "share.isolation.level": ("read_committed", "read_uncommitted"),
    "share.renew.acknowledge.enable": ("true", "false"),
}


def refusal(after: Mapping[str, str], before: Mapping[str, str] = NOTHING, broker: Mapping[str, str] = NOTHING) -> str:
    with pytest.raises(PenstockError) as refused:
        check_group_settings(after, before, broker)
    assert refused.value.code is Code.INVALID_CONFIG
    return str(refused.value)


# --- what may be set


def test_there_are_these_settings_and_each_takes_its_default() -> None:
    assert list(GROUP_SETTINGS) == sorted([*BOUNDS, *WORDS])
    check_group_settings({name: setting.default for name, setting in GROUP_SETTINGS.items()}, NOTHING, NOTHING)
    assert all(setting.documentation for setting in GROUP_SETTINGS.values())


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_are_those_of_kafka(name: str) -> None:
    low, high = BOUNDS[name]
    for number in (str(low), str(high), f"+{low}"):
        check_group_settings({name: number}, NOTHING, NOTHING)
    for wrong in (str(low - 1), str(high + 1), "soon", "", "-1", "1e4", "9" * 11, "\u0665" * 5):
        text = refusal({name: wrong})
        assert name in text and repr(wrong) in text and f"from {low} to {high}" in text


@pytest.mark.parametrize("name", WORDS)
def test_words_are_those_of_kafka(name: str) -> None:
    for word in WORDS[name]:
        check_group_settings({name: word}, NOTHING, NOTHING)
    text = refusal({name: "none"})
    assert name in text and "'none'" in text and "allowed: " in text


@pytest.mark.parametrize("name", ["orders", "__dlq.orders", "dlq./", "dlq." + "x" * 250, "Dlq.x", ".."])
def test_a_topic_for_dead_letters_is_named_as_one(name: str) -> None:
    assert "begins with 'dlq.'" in refusal({"errors.deadletterqueue.topic.name": name})


def test_an_unknown_name_is_refused_with_what_it_may_mean() -> None:
    assert "did you mean share.session.timeout.ms?" in refusal({"share.session.timeout": "1"})
    assert "'no.such' is unknown" in refusal({"no.such": "1"})


def test_a_session_is_longer_than_the_time_between_two_reports() -> None:
    wide = {"share.session.timeout.ms": "15000", "consumer.session.timeout.ms": "15000"}
    for kind in ("share", "consumer"):
        heartbeat = {f"{kind}.heartbeat.interval.ms": "15000"}
        check_group_settings(heartbeat, NOTHING, NOTHING)
        text = refusal(heartbeat, NOTHING, wide)
        assert f"{kind}.session.timeout.ms is 15000; it must be greater than {kind}.heartbeat.interval.ms" in text
        check_group_settings({**heartbeat, "share.delivery.count.limit": "3"}, heartbeat, wide)
        assert "must be greater" in refusal(heartbeat, {**heartbeat, f"{kind}.session.timeout.ms": "45000"}, wide)


def test_what_is_not_changed_is_left_alone() -> None:
    """It was set when the broker had other values, or by a later release."""
    before = {"consumer.session.timeout.ms": "6000", "later.setting": "x"}
    check_group_settings({**before, "share.delivery.count.limit": "3"}, before, NOTHING)
    refusal({**before, "consumer.session.timeout.ms": "6001"}, before)
    check_group_settings({}, before, NOTHING)


def test_bounds_are_wide_enough_for_the_broker() -> None:
    broker = {"consumer.session.timeout.ms": "6000", "consumer.heartbeat.interval.ms": "200"}
    check_group_settings({"consumer.session.timeout.ms": "6000"}, NOTHING, broker)
    assert "from 6000 to 60000" in refusal({"consumer.session.timeout.ms": "5999"}, NOTHING, broker)
    check_group_settings({"consumer.heartbeat.interval.ms": "300"}, NOTHING, broker)
    check_group_settings({"consumer.session.timeout.ms": "600000"}, NOTHING, {"consumer.session.timeout.ms": "600000"})


def test_settings_are_kept_without_what_means_nothing() -> None:
    given = {"share.renew.acknowledge.enable": " FALSE", "errors.deadletterqueue.topic.name": " dlq.X ", "other": " A "}
    assert tidy_group_settings(given) == {
        "share.renew.acknowledge.enable": "false",
        "errors.deadletterqueue.topic.name": "dlq.X",
        "other": "A",
    }


# --- what comes of it


def test_a_group_for_which_nothing_is_set_goes_by_the_defaults_of_kafka() -> None:
    config = make_group_config(NOTHING, NOTHING)
    assert (config.consumer_session_timeout_ms, config.consumer_heartbeat_interval_ms) == (45_000, 5_000)
    assert (config.share_session_timeout_ms, config.share_heartbeat_interval_ms) == (45_000, 5_000)
    assert (config.record_lock_ms, config.delivery_limit, config.max_record_locks) == (30_000, 5, 2_000)
    assert (config.offset_reset, config.reads_committed, config.may_renew) == (OffsetReset("latest"), False, True)


def test_what_is_set_goes_before_what_the_broker_has() -> None:
    broker = {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "6000"}
    given = {
        "consumer.session.timeout.ms": "55000",
        "share.record.lock.duration.ms": "20000",
        "share.auto.offset.reset": "earliest",
        "share.isolation.level": "read_committed",
        "share.renew.acknowledge.enable": "false",
    }
    config = make_group_config(given, broker)
    assert (config.consumer_session_timeout_ms, config.consumer_heartbeat_interval_ms) == (55_000, 6_000)
    assert config.record_lock_ms == 20_000
    assert (config.offset_reset, config.reads_committed, config.may_renew) == (OffsetReset("earliest"), True, False)


def test_what_is_out_of_bounds_by_now_counts_as_the_nearest_within() -> None:
    assert make_group_config({"consumer.session.timeout.ms": "6000"}, NOTHING).consumer_session_timeout_ms == 45_000
    assert make_group_config({"share.delivery.count.limit": "25"}, NOTHING).delivery_limit == 10


@pytest.mark.parametrize(
    ("given", "topic", "copies"),
    [
        ({}, "", True),
        ({"copy.record.enable": "false"}, "", False),
        ({"topic.name": ""}, None, True),
        ({"topic.name": "dlq.x"}, "dlq.x", True),
        ({"topic.name": "dlq.x", "copy.record.enable": "false"}, "dlq.x", False),
        ({"topic.name": "dlq.x", "copy.record.enable": "true"}, "dlq.x", True),
    ],
)
def test_dead_letters_are_copied_to_a_topic_of_their_own_unless_somebody_says_otherwise(
    given: dict[str, str], topic: str | None, copies: bool
) -> None:
    config = make_group_config({f"errors.deadletterqueue.{name}": text for name, text in given.items()}, NOTHING)
    assert (config.dead_letter_topic, config.copies_dead_letters) == (topic, copies)


@pytest.mark.parametrize(
    ("duration", "back_ms"),
    [
        ("PT0S", 0),
        ("P2D", 172_800_000),
        ("PT1H", 3_600_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("pt1.0019s", 1_001),
        ("PT90M", 5_400_000),
    ],
)
def test_a_duration_is_read_as_iso_8601_has_it(duration: str, back_ms: int) -> None:
    assert parse_offset_reset(f"by_duration:{duration}") == OffsetReset("by_duration", back_ms)


@pytest.mark.parametrize(
    "text",
    [
        "none",
        "",
        "Latest",
        "by_duration",
        "by_duration:",
        "latest:PT1H",
        *(
            f"by_duration:{wrong}"
            for wrong in ("P", "PT", "P1DT", "1D", "P1H", "PT1D", "P-1D", "-P1D", "PT1,5S", "P1Y")
        ),
    ],
)
def test_what_is_no_offset_reset_is_refused(text: str) -> None:
    assert "latest, earliest or by_duration:" in refusal({"share.auto.offset.reset": text})


# --- what brokers have


def test_brokers_show_their_values_and_the_bounds_under_kafkas_names() -> None:
    shown = {each.name: each.value for each in broker_values()}
    assert shown["group.share.session.timeout.ms"] == "45000"
    assert (shown["group.share.min.session.timeout.ms"], shown["group.share.max.session.timeout.ms"]) == (
        "45000",
        "60000",
    )
    assert shown["group.share.max.delivery.count.limit"] == "10"
    assert shown["group.share.partition.max.record.locks"] == "2000"
    assert (shown["group.share.max.size"], shown["group.share.max.share.sessions"]) == ("200", "2000")
    assert shown["errors.deadletterqueue.topic.name.prefix"] == "dlq."
    assert not any(name.startswith("group.consumer.") for name in shown), "those can be set otherwise"
