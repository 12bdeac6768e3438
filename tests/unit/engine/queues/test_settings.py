"""What a queue goes by: texts and values, their bounds, and errors that name the key, the value and the way out."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.queues.backoff import Backoff
from penstock.engine.queues.settings import (
    LEAST_DEDUP_MS,
    LEAST_VISIBILITY_MS,
    MOST_ATTEMPTS,
    MOST_BYTES,
    MOST_DEDUP_MS,
    MOST_DELAY_MS,
    MOST_MESSAGES,
    MOST_TTL_MS,
    MOST_UNACKED,
    MOST_VISIBILITY_MS,
    OWN_TARGET,
    QUEUE_RULES,
    SETTINGS,
    SHARE_RULES,
    OnExpiry,
    OnFull,
    QueueRules,
    format_rules,
    parse_rules,
)
from penstock.engine.queues.sorting.lanes import LaneOrder
from penstock.errors import Code, PenstockError

calm = settings(deadline=None)  # a busy machine is no failure

targets = st.none() | st.just(OWN_TARGET) | st.from_regex(r"[a-zA-Z0-9.-][a-zA-Z0-9._-]{0,20}", fullmatch=True)
rules = st.builds(
    QueueRules,
    visibility_ms=st.integers(LEAST_VISIBILITY_MS, MOST_VISIBILITY_MS),
    limit=st.integers(1, MOST_ATTEMPTS),
    by_deliveries=st.booleans(),
    backoff=st.sampled_from([Backoff(), *map(Backoff.parse, ("fixed:10s", "linear:1s..1m~0.5", "exponential:1s..5m"))]),
    max_unacked=st.integers(1, MOST_UNACKED),
    max_unacked_consumer=st.integers(1, MOST_UNACKED),
    ttl_ms=st.none() | st.integers(1, MOST_TTL_MS),
    on_expiry=st.sampled_from(OnExpiry),
    max_messages=st.none() | st.integers(1, MOST_MESSAGES),
    max_bytes=st.none() | st.integers(1, MOST_BYTES),
    on_full=st.sampled_from(OnFull),
    dead_letter=targets.filter(lambda target: target not in (".", "..", "none", "default")),
    durable=st.booleans(),
    is_fifo=st.booleans(),
    blocks_keys=st.booleans(),
    single_active=st.booleans(),
    lanes=st.sampled_from(LaneOrder),
    tenant_weights=st.sampled_from([(), (("gold", 4.0), ("trial", 0.25))]),
    delay_ms=st.integers(0, MOST_DELAY_MS),
    dedup_ms=st.none() | st.integers(LEAST_DEDUP_MS, MOST_DEDUP_MS),
)


def test_what_queues_go_by_unless_told() -> None:
    assert format_rules(QUEUE_RULES) == {
        "visibility": "30s",
        "max-attempts": "3",
        "backoff": "exponential:1s..5m~0.2",
        "dead-letter": "default",
        "max-unacked": "20000",
        "max-unacked-consumer": "2000",
        "ttl": "none",
        "on-expiry": "drop",
        "max-size": "none",
        "on-full": "reject",
        "kind": "standard",
        "on-exhausted": "skip",
        "single-active": "false",
        "lanes": "weighted",
        "tenant-weights": "none",
        "delay": "none",
        "durable": "true",
        "dedup-window": "none",
    }


def test_what_share_groups_go_by() -> None:
    texts = {"max-deliveries": "5", "backoff": "none", "max-unacked": "2000", "durable": "false"}
    plain = format_rules(QUEUE_RULES)
    del plain["max-attempts"]
    assert format_rules(SHARE_RULES) == plain | texts


@calm
@given(rules, rules)
def test_what_is_written_is_read_again_whatever_it_replaces(wanted: QueueRules, base: QueueRules) -> None:
    texts = format_rules(wanted)
    assert parse_rules(texts, base) == wanted
    assert parse_rules(dict(reversed(texts.items())), base) == wanted


@calm
@given(rules)
def test_nothing_given_changes_nothing(base: QueueRules) -> None:
    assert parse_rules({}, base) is base


@pytest.mark.parametrize(
    ("name", "text", "changed"),
    [
        ("visibility", "1s", {"visibility_ms": 1000}),
        ("visibility", " 12h ", {"visibility_ms": 43_200_000}),
        ("max-attempts", "200", {"limit": 200}),
        ("max-deliveries", "1", {"limit": 1, "by_deliveries": True}),
        ("backoff", "none", {"backoff": Backoff()}),
        ("dead-letter", "none", {"dead_letter": None}),
        ("dead-letter", "default", {"dead_letter": ""}),
        ("dead-letter", "graveyard", {"dead_letter": "graveyard"}),
        ("max-unacked", "1000000", {"max_unacked": 1_000_000}),
        ("max-unacked-consumer", "1", {"max_unacked_consumer": 1}),
        ("ttl", "1ms", {"ttl_ms": 1}),
        ("ttl", "none", {"ttl_ms": None}),
        ("on-expiry", "dead-letter", {"on_expiry": "dead-letter"}),
        ("max-size", "10000", {"max_messages": 10_000}),
        ("max-size", "1GiB", {"max_bytes": 1 << 30}),
        ("max-size", "512MiB, 10000", {"max_messages": 10_000, "max_bytes": 512 << 20}),
        ("on-full", "drop-oldest", {"on_full": "drop-oldest"}),
        ("durable", "false", {"durable": False}),
        ("dedup-window", "1s", {"dedup_ms": 1000}),
        ("dedup-window", "7d", {"dedup_ms": 604_800_000}),
        ("dedup-window", "none", {"dedup_ms": None}),
    ],
)
def test_one_key_changes_what_it_names(name: str, text: str, changed: dict[str, Any]) -> None:
    assert parse_rules({name: text}, QUEUE_RULES) == QUEUE_RULES._replace(**changed)


def test_a_new_size_replaces_the_whole_of_the_old_one() -> None:
    base = QUEUE_RULES._replace(max_messages=5, max_bytes=6)
    assert parse_rules({"max-size": "10"}, base) == QUEUE_RULES._replace(max_messages=10)
    assert parse_rules({"max-size": "none"}, base) == QUEUE_RULES


def test_a_share_groups_limit_may_count_attempts() -> None:
    assert parse_rules({"max-attempts": "4"}, SHARE_RULES) == SHARE_RULES._replace(limit=4, by_deliveries=False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("visibility", "0s"),
        ("visibility", "999ms"),
        ("visibility", "43201s"),
        ("visibility", "30"),
        ("visibility", "30000ms later"),
        ("max-attempts", "0"),
        ("max-attempts", "201"),
        ("max-attempts", "-1"),
        ("max-attempts", "3.0"),
        ("max-attempts", "1_0"),
        ("max-attempts", "\u0663"),
        ("max-attempts", "9" * 5000),
        ("max-deliveries", "0"),
        ("max-deliveries", "none"),
        ("dedup-window", "999ms"),
        ("dedup-window", "169h"),
        ("dedup-window", "0"),
        ("backoff", "exponential:1s..8d"),
        ("backoff", "sometimes"),
        ("dead-letter", ""),
        ("dead-letter", ".."),
        ("dead-letter", "a b"),
        ("dead-letter", "__consumer_offsets"),
        ("dead-letter", "x" * 250),
        ("max-unacked", "0"),
        ("max-unacked", "1000001"),
        ("max-unacked-consumer", "many"),
        ("ttl", "0ms"),
        ("ttl", "36501d"),
        ("ttl", "-1"),
        ("on-expiry", "Drop"),
        ("max-size", "0"),
        ("max-size", "0B"),
        ("max-size", "10,20"),
        ("max-size", "1GiB,2GiB"),
        ("max-size", "10,1GiB,20"),
        ("max-size", "10,none"),
        ("max-size", "1PiB"),
        ("max-size", "2000TiB"),
        ("max-size", "\u0663"),
        ("on-full", "dead_letter"),
        ("durable", "yes"),
    ],
)
def test_what_is_not_allowed_is_named_with_the_way_out(name: str, text: str) -> None:
    with pytest.raises(PenstockError) as refused:
        parse_rules({name: text}, QUEUE_RULES)
    assert refused.value.code is Code.INVALID_CONFIG
    assert str(refused.value) == f"queue setting {name} is {text[:60]!r}; allowed: {SETTINGS[name].allowed}"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("max-attempt", "did you mean max-attempts?"), ("retention.ms", "there are visibility, max-attempts, ")],
)
def test_a_key_that_is_unknown(name: str, hint: str) -> None:
    with pytest.raises(PenstockError) as refused:
        parse_rules({name: "1"}, QUEUE_RULES)
    assert refused.value.code is Code.INVALID_CONFIG
    assert f"queue setting {name!r} is unknown; {hint}" in str(refused.value)


def test_one_limit_at_a_time() -> None:
    with pytest.raises(PenstockError) as refused:
        parse_rules({"max-attempts": "3", "max-deliveries": "5"}, QUEUE_RULES)
    assert refused.value.code is Code.INVALID_CONFIG
    assert "max-attempts ('3') and max-deliveries ('5')" in str(refused.value)
    assert "give one of them" in refused.value.help


def test_every_key_has_words_for_a_page() -> None:
    for name, setting in SETTINGS.items():
        assert setting.name == name
        assert setting.allowed
        assert setting.help.endswith(".")


def test_every_field_has_a_key() -> None:
    """A rule that no key changes could neither be set nor be shown."""
    other = QueueRules(
        visibility_ms=1000,
        limit=7,
        by_deliveries=True,
        backoff=Backoff(),
        max_unacked=1,
        max_unacked_consumer=1,
        ttl_ms=1,
        on_expiry=OnExpiry.DEAD_LETTER,
        max_messages=1,
        max_bytes=1,
        on_full=OnFull.DROP_OLDEST,
        dead_letter=None,
        durable=False,
        is_fifo=True,
        blocks_keys=True,
        single_active=True,
        lanes=LaneOrder.STRICT,
        tenant_weights=(("gold", 4.0),),
        delay_ms=1,
        dedup_ms=1000,
    )
    assert all(one != another for one, another in zip(other, QUEUE_RULES, strict=True))
    assert parse_rules(format_rules(other), QUEUE_RULES) == other
