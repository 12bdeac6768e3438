"""Open, watch, closed; what watch tells."""

import pytest
from tests.unit.security.test_ruleset import ALICE, ORDERS, rule

from penstock.engine.access import Access, Kind, NotAuthorised, Operation, Resource
from penstock.security.modes import ANY_THING, Mode, Refusal, Refusals, Watch, make_policy
from penstock.security.rules import MAX_NAME_CHARS
from penstock.security.ruleset import Ruleset

RULES = Ruleset(7, [rule("allow User:alice * read topic literal orders")])
BILLS = Resource(Kind.TOPIC, "bills")


def test_closed_refuses_what_open_and_watch_let_pass() -> None:
    for mode, passes in ((Mode.OPEN, True), (Mode.WATCH, True), (Mode.CLOSED, False)):
        access = Access(make_policy(mode, RULES, Refusals()))
        access.check(ALICE, Operation.READ, ORDERS)
        assert access.decide(ALICE, Operation.WRITE, ORDERS) is passes
        assert access.decide_any(ALICE, Operation.WRITE, Kind.TOPIC) is passes
        assert access.policy.is_open is (mode is Mode.OPEN)
        if not passes:
            with pytest.raises(NotAuthorised):
                access.check(ALICE, Operation.WRITE, ORDERS)


def test_a_verdict_of_one_mode_is_not_taken_for_one_of_another() -> None:
    assert len({make_policy(mode, RULES, Refusals()).revision for mode in Mode}) == 3


def test_watch_tells_what_closed_would_refuse() -> None:
    refusals = Refusals()
    watch = Watch(RULES, refusals)
    for _ in range(3):
        watch.decide(ALICE, Operation.WRITE, ORDERS)
    watch.decide(ALICE._replace(host="elsewhere"), Operation.WRITE, ORDERS)
    watch.decide(ALICE, Operation.READ, ORDERS)
    watch.decide(ALICE._replace(principal="User:bob"), Operation.READ, ORDERS)
    watch.decide_any(ALICE, Operation.WRITE, Kind.TOPIC)
    watch.decide_any(ALICE, Operation.READ, Kind.TOPIC)
    assert refusals.total == 6
    assert refusals.listed == {
        Refusal("User:alice", Operation.WRITE, ORDERS): 4,
        Refusal("User:bob", Operation.READ, ORDERS): 1,
        Refusal("User:alice", Operation.WRITE, Resource(Kind.TOPIC, ANY_THING)): 1,
    }
    refusals.clear()
    assert (refusals.total, refusals.listed) == (0, {})


def test_the_list_is_bounded_and_the_count_is_not() -> None:
    refusals = Refusals(limit=5)
    for number in range(20):
        refusals.note(ALICE, Operation.READ, Resource(Kind.TOPIC, str(number % 10)))
    assert len(refusals.listed) == 5 and refusals.total == 20 and refusals.unlisted == 10
    assert set(refusals.listed.values()) == {2}


def test_of_long_names_the_beginning_is_listed() -> None:
    """As much as tells that no rule can name them."""
    refusals = Refusals()
    whole = "a" * MAX_NAME_CHARS
    for name in (whole, whole + "b" * (1 << 20), whole + "bc"):
        refusals.note(ALICE, Operation.READ, Resource(Kind.TOPIC, name))
    assert {each.resource.name: count for each, count in refusals.listed.items()} == {whole: 1, whole + "b": 2}
