"""Names that cannot be mistaken for others; what the roles that are always there allow."""

import pytest

from penstock.engine.access import THE_CLUSTER, Kind, Operation, Resource, Subject
from penstock.errors import Code, PenstockError
from penstock.security.names import check_role_name, check_user_name
from penstock.security.roles import (
    BUILT_IN,
    MAX_ROLES_OF_A_USER,
    built_in_rules,
    check_grants,
    check_made_role,
    role_principal,
)
from penstock.security.rules import SUPPORTED, check_rule
from penstock.security.ruleset import Ruleset


@pytest.mark.parametrize("name", ["alice", "CN=x y,O=Acme", "Żółć", "a" * 255, "a/b", "a:b", "ключ", "é"])
def test_names(name: str) -> None:
    check_user_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "*", "ANONYMOUS", "a" * 256, "é" * 128, "a\0", "a\n", "a\u202eb", "a\u200bb", "e\u0301", "\ud800", " a", "a ",
     "a\u2028b", "a\x7f", "A\u030a", "x" * 10_000_000],
    ids=lambda name: ascii(name[:12]),
)  # fmt: skip
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(PenstockError) as caught:
        check_user_name(name)
    assert caught.value.code is Code.INVALID_REQUEST and len(str(caught.value)) < 2000


def test_a_role_has_no_colon_and_is_not_one_that_is_always_there() -> None:
    check_role_name("billing")
    for name in ("producer:x", "", "a\nb"):
        with pytest.raises(PenstockError):
            check_role_name(name)
    with pytest.raises(PenstockError, match="always there"):
        check_made_role("admin", ())
    with pytest.raises(PenstockError, match="Role:consumer"):
        check_made_role("billing", built_in_rules("consumer"))


def test_which_roles_can_be_given() -> None:
    check_grants(["admin", "producer:orders.", "billing"], ["billing"])
    for grant in ("nothing", "producer:", "billing:x", "producer:a\nb", ""):
        with pytest.raises(PenstockError):
            check_grants([grant], ["billing"])
    with pytest.raises(PenstockError):
        check_grants([f"producer:{number}" for number in range(MAX_ROLES_OF_A_USER + 1)], [])


THINGS = {
    "topic": Resource(Kind.TOPIC, "orders.eu"),
    "other": Resource(Kind.TOPIC, "bills"),
    "group": Resource(Kind.GROUP, "orders.g"),
    "txn": Resource(Kind.TRANSACTIONAL_ID, "orders.t"),
    "cluster": THE_CLUSTER,
    "audit": Resource(Kind.TOPIC, "__penstock_audit"),
    "user": Resource(Kind.USER, "User:x"),
    "token": Resource(Kind.TOKEN, "t"),
}
MAY = {
    "admin": "topic:* other:* group:* txn:* cluster:* audit:* user:* token:*",
    "admin:orders.": "topic:* group:* txn:*",
    "producer": "topic:write,describe other:write,describe audit:write,describe txn:write,describe",
    "producer:orders.": "topic:write,describe txn:write,describe",
    "consumer": "topic:read,describe other:read,describe audit:read,describe group:read,describe",
    "consumer:orders.": "topic:read,describe group:read,describe",
    "read-only": "topic:read,describe,describe_configs other:read,describe,describe_configs "
    "audit:read,describe,describe_configs group:describe,describe_configs txn:describe "
    "cluster:describe,describe_configs",
    "read-only:orders.": "topic:read,describe,describe_configs group:describe,describe_configs txn:describe",
    "auditor": "topic:describe,describe_configs other:describe,describe_configs "
    "audit:read,describe,describe_configs group:describe,describe_configs txn:describe "
    "cluster:describe,describe_configs user:describe_tokens token:describe",
    "auditor:orders.": "topic:describe,describe_configs group:describe,describe_configs txn:describe",
}


@pytest.mark.parametrize("grant", list(MAY))
def test_what_a_role_may_do(grant: str) -> None:
    rules = list(built_in_rules(grant))
    for each in rules:
        check_rule(each)
    expected = {
        (thing, Operation(operation))
        for thing, _, operations in (part.partition(":") for part in MAY[grant].split())
        for operation in (list(Operation) if operations == "*" else operations.split(","))
    }
    made = Ruleset(1, rules, members={"User:alice": [role_principal(grant)]})
    alice = Subject("User:alice")
    for thing, resource in THINGS.items():
        for operation in Operation:
            may = made.decide(alice, operation, resource)
            assert may is ((thing, operation) in expected), (thing, operation)
            assert not made.decide(Subject("User:bob"), operation, resource)


def test_every_role_and_kind_was_asked_for() -> None:
    assert {grant.partition(":")[0] for grant in MAY} == set(BUILT_IN)
    assert {each.kind for each in THINGS.values()} == set(SUPPORTED)
