"""What the rules refuse is counted by operation and kind of thing, never by name, and each refusal once."""

import pytest
from tests.rules import Only

from penstock.engine.access import (
    ANONYMOUS,
    LONGEST_KEPT,
    THE_CLUSTER,
    Access,
    Kind,
    NotAuthorised,
    Operation,
    Resource,
    Subject,
)
from penstock.engine.acting.acting import Verdicts

ALICE = Subject("User:alice")


def test_what_is_refused_is_counted_and_what_is_only_looked_at_is_not() -> None:
    denials: dict[tuple[str, str], int] = {}
    access = Access(Only(ALICE, Operation.READ), denials)
    rights = Verdicts(access, ALICE)
    rights.check(Operation.READ, Kind.TOPIC, "a")
    assert not rights.may(Operation.WRITE, Kind.TOPIC, "a")  # as for a list, which then lacks it
    assert not access.decide(ANONYMOUS, Operation.READ, Resource(Kind.TOPIC, "a"))
    assert denials == {}
    for name in ("a", "b", "b"):  # the last verdict is one that was kept
        with pytest.raises(NotAuthorised):
            rights.check(Operation.WRITE, Kind.TOPIC, name)
    with pytest.raises(NotAuthorised):
        rights.check_cluster(Operation.ALTER)
    with pytest.raises(NotAuthorised):
        access.check(ALICE, Operation.ALTER, THE_CLUSTER)
    assert denials == {("write", "topic"): 3, ("alter", "cluster"): 2}


def test_verdicts_about_long_names_are_right_and_not_kept() -> None:
    rights = Verdicts(Access(policy := Only(ALICE, Operation.READ)), ALICE)
    names = ["a" * LONGEST_KEPT, *("b" * (LONGEST_KEPT + more) for more in (1, 1 << 20))]
    for name in names * 2:
        assert rights.may(Operation.READ, Kind.TOPIC, name) and not rights.may(Operation.WRITE, Kind.TOPIC, name)
    assert {name for *_, name in rights._kept} == {names[0]}
    assert [len(asked.name) for asked in policy.asked].count(LONGEST_KEPT) == 2, "it was decided once for each right"
