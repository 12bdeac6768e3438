"""Rules by themselves: what they may be, which of them filters mean, and the bits of Kafka."""

import pytest
from tests.unit.security.test_ruleset import ALICE, ORDERS, rule

from penstock.engine.access import THE_CLUSTER, Kind, Open, Operation, Resource
from penstock.errors import Code, PenstockError
from penstock.security.modes import Refusals, Watch, authorized_operations
from penstock.security.rules import (
    KAFKA_OPERATIONS,
    SUPPORTED,
    Effect,
    Filter,
    Match,
    Pattern,
    check_rule,
)
from penstock.security.ruleset import Ruleset

ALLOWED = rule("allow User:alice * read topic literal orders")


def test_equal_rules_are_one_and_others_are_not() -> None:
    assert ALLOWED.id == rule("allow User:alice * read topic literal orders").id
    others = [
        rule(text)
        for text in (
            "deny User:alice * read topic literal orders",
            "allow User:bob * read topic literal orders",
            "allow User:alice 10.0.0.1 read topic literal orders",
            "allow User:alice * write topic literal orders",
            "allow User:alice * read group literal orders",
            "allow User:alice * read topic prefixed orders",
            "allow User:alice * read topic literal order",
        )
    ]
    assert len({each.id for each in [ALLOWED, *others]}) == 8
    assert str(ALLOWED) == "allow User:alice from * to read topic literal orders"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"principal": "alice"}, "User:name"),
        ({"principal": ":alice"}, "User:name"),
        ({"principal": "User:"}, "User:name"),
        ({"principal": "User:a\nb"}, "cannot be printed"),
        ({"principal": "User:" + "a" * 1024}, "1029 characters"),
        ({"host": ""}, "host has 0"),
        ({"host": "10.0.0.0/8"}, "networks"),
        ({"name": ""}, "name has 0"),
        ({"name": "a\0b"}, "cannot be printed"),
        ({"kind": Kind.CLUSTER}, "kafka-cluster"),
    ],
)
def test_a_rule_that_nobody_can_mean_is_refused(change: dict, said: str) -> None:
    check_rule(ALLOWED)
    with pytest.raises(PenstockError, match=said) as caught:
        check_rule(ALLOWED._replace(**change))
    assert caught.value.code is Code.INVALID_REQUEST


def test_the_cluster_has_one_name() -> None:
    check_rule(rule("allow User:alice * alter cluster literal kafka-cluster"))


RULES = {
    "literal": ALLOWED,
    "other": rule("allow User:alice * read topic literal order"),
    "prefix": rule("allow User:bob 10.0.0.1 write topic prefixed ord"),
    "all": rule("deny User:* * all topic literal *"),
    "star": rule("allow User:bob * read topic prefixed *"),
    "group": rule("allow User:alice * read group literal orders"),
}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter(), "literal other prefix all star group"),
        (Filter(pattern=Match.MATCH), "literal other prefix all star group"),
        (Filter(name="orders"), "literal group"),
        (Filter(name="orders", pattern=Match.MATCH), "literal prefix all group"),
        (Filter(name="orders", pattern=Match.MATCH, kind=Kind.TOPIC), "literal prefix all"),
        (Filter(name="*", pattern=Match.MATCH), "all star"),
        (Filter(name="*"), "all star"),
        (Filter(name="*", pattern=Pattern.LITERAL), "all"),
        (Filter(name="ord", pattern=Pattern.PREFIXED), "prefix"),
        (Filter(name="orders", pattern=Pattern.PREFIXED), ""),
        (Filter(pattern=Pattern.PREFIXED), "prefix star"),
        (Filter(principal="User:bob"), "prefix star"),
        (Filter(principal="User:*"), "all"),
        (Filter(host="*", principal="User:bob"), "star"),
        (Filter(host="10.0.0.1"), "prefix"),
        (Filter(operation=Operation.ALL), "all"),
        (Filter(operation=Operation.READ, kind=Kind.GROUP), "group"),
        (Filter(effect=Effect.DENY), "all"),
    ],
)
def test_which_rules_a_filter_means(wanted: Filter, found: str) -> None:
    assert " ".join(name for name, each in RULES.items() if wanted.matches(each)) == found


def test_the_bits_are_kafkas() -> None:
    assert set(KAFKA_OPERATIONS) == set(Operation) and set(SUPPORTED) == set(Kind)
    numbers = {
        Kind.TOPIC: [3, 4, 5, 6, 7, 8, 10, 11],
        Kind.GROUP: [3, 6, 8, 10, 11],
        Kind.CLUSTER: [5, 7, 8, 9, 10, 11, 12],
        Kind.TRANSACTIONAL_ID: [4, 8, 15],
        Kind.USER: [13, 14],
        Kind.TOKEN: [8],
    }
    assert {kind: sum(1 << number for number in each) for kind, each in numbers.items()} == dict(SUPPORTED)


def test_authorized_operations() -> None:
    made = Ruleset(
        1, [rule("allow User:alice * all topic literal orders"), rule("deny User:* * alter topic prefixed o")]
    )
    assert authorized_operations(made, ALICE, ORDERS) == SUPPORTED[Kind.TOPIC] & ~(1 << 7)
    assert authorized_operations(made, ALICE, Resource(Kind.GROUP, "orders")) == 0
    assert authorized_operations(made, ALICE, THE_CLUSTER) == 0
    refusals = Refusals()
    for lenient in (Open(), Watch(made, refusals)):
        assert authorized_operations(lenient, ALICE, THE_CLUSTER) == SUPPORTED[Kind.CLUSTER]
    assert refusals.total == 0
