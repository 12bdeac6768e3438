"""Regular expressions of subscriptions: what they match, and what is refused."""

from typing import Any

import pytest
from tests.unit.engine.groups.consumer_world import FakeRules, FakeSight, FakeTopics

from penstock.engine.coordination.expressions import LONGEST_EXPRESSION
from penstock.engine.groups.topic_patterns import TopicPatterns
from penstock.errors import Code, PenstockError


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("orders", ("orders",)),
        ("orders.*", ("orders", "orders.eu", "orders_eu")),
        ("orders|reorders", ("orders", "reorders")),
        ("^orders$", ("orders",)),
        (r"orders\.eu", ("orders.eu",)),
        ("(?i)ORDERS", ("orders",)),
        ("(?P<what>re)?orders", ("orders", "reorders")),
        (r"\pL+", ("orders", "reorders")),
        (".*", ("orders", "orders.eu", "orders_eu", "reorders")),
        ("order", ()),
        ("", ()),
    ],
)
def test_a_pattern_matches_whole_names(pattern, matched) -> None:
    topics = FakeTopics(**dict.fromkeys(["orders.eu", "orders", "reorders", "orders_eu"], 1))
    assert TopicPatterns().match(pattern, topics) == matched


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("orders-(", "missing )"),
        ("(?=orders)", "invalid perl operator"),
        (r"(a)\1", "invalid escape sequence"),
        ("a{2000}", "invalid repetition size"),
        ("((((a{100}){100}){100}){100})", "invalid repetition size"),
        ("(?:" * 300 + "x" + ")" * 300 + "*" * 900, "bytes"),
        ("ä" * (LONGEST_EXPRESSION // 2 + 1), f"has {LONGEST_EXPRESSION + 2} bytes"),
    ],
)
def test_a_bad_pattern_is_refused_with_the_reason(pattern, words) -> None:
    with pytest.raises(PenstockError, match="regular expression") as caught:
        TopicPatterns().check(pattern, FakeTopics())
    assert caught.value.code is Code.INVALID_REGEX
    assert words in str(caught.value)


def test_topics_come_and_go() -> None:
    topics, patterns = FakeTopics(apples=1, pears=1), TopicPatterns()
    assert patterns.match("p.*", topics) == ("pears",)
    topics.put("plums", 1)
    topics.put("avocados", 1)
    assert patterns.match("p.*", topics) == ("pears", "plums")
    topics.remove("pears")
    assert patterns.match("p.*", topics) == ("plums",)
    topics.put("pears", 1)
    assert patterns.match("p.*", topics) == ("pears", "plums")
    assert patterns.match("a.*", topics) == ("apples", "avocados")


def test_a_pattern_of_too_much_work_is_refused_only_when_somebody_subscribes() -> None:
    topics, patterns = FakeTopics(apples=1), TopicPatterns()
    pattern = "[ab]*a[ab]{100}.*"
    patterns.check(pattern, topics)
    for number in range(10_000):
        topics.put(f"{number}".rjust(50, "a"), 1)
    with pytest.raises(PenstockError, match=r"too much work: \d+ instructions") as caught:
        patterns.check(pattern, topics)
    assert caught.value.code is Code.INVALID_REGEX
    assert str(500_006) not in str(caught.value), "how long all names are is nobody's business who may not see them"
    assert len(patterns.match(pattern, topics)) == 0, "whoever has it keeps it"


def test_only_new_names_are_looked_at() -> None:
    """Otherwise each new topic costs every group a look at all of them."""
    topics = FakeTopics(**{f"t{i}": 1 for i in range(5_000)})
    patterns = TopicPatterns()
    looked_at: list[Any] = []
    patterns.match(".*", topics)
    pattern = patterns._patterns[".*"]
    expression = pattern.expression

    class Counting:
        def matches(self, names: frozenset[str]) -> list[str]:
            looked_at.extend(names)
            return expression.matches(names)

    pattern.expression = Counting()  # type: ignore[assignment]
    topics.put("new", 1)
    assert len(patterns.match(".*", topics)) == 5_001
    assert looked_at == ["new"]


def test_patterns_kept_are_few() -> None:
    topics, patterns = FakeTopics(apples=1), TopicPatterns()
    for number in range(3_000):
        patterns.match(f"a.*{number}", topics)
    assert len(patterns._patterns) <= 1024
    assert patterns.match("a.*s", topics) == ("apples",)


def test_a_pattern_stands_for_what_may_be_told_of() -> None:
    topics, patterns, rules = FakeTopics(apples=1, pears=1, plums=1), TopicPatterns(), FakeRules()
    rules.hide("bob", ["pears"])
    assert patterns.match("p.*", topics, rules.sight("ann")) == ("pears", "plums")
    assert patterns.match("p.*", topics, rules.sight("bob")) == ("plums",)
    topics.put("peaches", 1)
    assert patterns.match("p.*", topics, rules.sight("bob")) == ("peaches", "plums")
    rules.hide("bob", ["peaches", "plums"])
    assert patterns.match("p.*", topics, rules.sight("bob")) == ("pears",)
    assert patterns.match("p.*", topics) == ("peaches", "pears", "plums")


def test_rules_are_asked_about_names_that_match_once_for_all_who_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    topics, patterns, rules = FakeTopics(apples=1, pears=1, plums=1), TopicPatterns(), FakeRules()
    asked: list[str] = []
    monkeypatch.setattr(FakeSight, "may_see", lambda sight, name: asked.append(name) or name not in sight.hidden)
    rules.hide("bob", ["pears"])
    for _ in range(3):
        for member in ("ann", "bob", "cid"):
            patterns.match("p.*", topics, rules.sight(member))
    assert asked == ["pears", "plums"] * 2
    for number in range(100):
        rules.hide("bob", ["pears"])
        assert patterns.match("p.*", topics, rules.sight("bob")) == ("plums",), number
    assert len(patterns._patterns["p.*"]._shown) <= 16
