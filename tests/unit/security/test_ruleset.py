"""Decisions: against the plain oracle, for all rules and questions Hypothesis thinks of, and as Kafka's own words."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.security import oracle

from penstock.engine.access import LONGEST_KEPT, THE_CLUSTER, Kind, Operation, Resource, Subject
from penstock.errors import WrongSettings
from penstock.security import ruleset as module
from penstock.security.methods import Method, SuperUsers
from penstock.security.rules import BITS, EVERYTHING, Effect, Pattern, Rule
from penstock.security.ruleset import Ruleset

ALICE = Subject("User:alice", "10.0.0.1", "kafka", Method.SCRAM)
ORDERS = Resource(Kind.TOPIC, "orders")

names = st.sampled_from(["a", "ab", "abc", "abd", "b", "*", "*a", "ac"])
hosts = st.sampled_from(["*", "10.0.0.1", "10.0.0.2"])
rules = st.builds(
    Rule,
    st.sampled_from(["User:alice", "User:bob", "User:*", "Role:r", "Group:alice"]),
    hosts,
    st.sampled_from(list(Operation)),
    st.sampled_from([Kind.TOPIC, Kind.GROUP]),
    st.sampled_from(list(Pattern)),
    names,
    st.sampled_from(list(Effect)),
)
subjects = st.tuples(
    st.sampled_from(["User:alice", "User:bob", "User:eve"]), st.sampled_from(["10.0.0.1", "::ffff:10.0.0.2"])
).map(lambda pair: Subject(*pair))
operations = st.sampled_from(list(Operation))
kinds = st.sampled_from([Kind.TOPIC, Kind.GROUP])
MEMBERS = {"User:bob": ("Role:r",)}


def rule(text: str) -> Rule:
    """`allow User:alice * read topic literal orders`."""
    effect, principal, host, operation, kind, pattern, name = text.split()
    return Rule(principal, host, Operation(operation), Kind(kind), Pattern(pattern), name, Effect(effect))


def decide(*texts: str, operation: Operation = Operation.READ, resource: Resource = ORDERS) -> bool:
    return Ruleset(1, map(rule, texts)).decide(ALICE, operation, resource)


@settings(max_examples=400, deadline=None)
@given(st.lists(rules, max_size=12), st.lists(st.tuples(subjects, operations, kinds, names), min_size=1, max_size=6))
def test_every_decision_is_the_oracles(found: list[Rule], asked: list) -> None:
    made = Ruleset(1, found, members=MEMBERS)
    for subject, operation, kind, name in asked * 2:  # the second time from what is kept
        roles = MEMBERS.get(subject.principal, ())
        expected = oracle.decide(found, subject, operation, kind, name, roles)
        assert made.decide(subject, operation, Resource(kind, name)) is expected
        explained = made.explain(subject, operation, Resource(kind, name))
        assert explained.allowed is expected
        if explained.rule is not None:
            assert explained.rule in found and explained.rule.effect is (Effect.ALLOW if expected else Effect.DENY)


fewer = st.builds(
    Rule,
    st.sampled_from(["User:alice", "User:*"]),
    st.just("*"),
    st.sampled_from([Operation.WRITE, Operation.ALL]),
    st.just(Kind.TOPIC),
    st.sampled_from(list(Pattern)),
    names,
    st.sampled_from(list(Effect)),
)


@settings(max_examples=600, deadline=None)
@given(
    st.one_of(st.lists(rules, max_size=10), st.lists(fewer, max_size=6)),
    subjects,
    st.one_of(operations, st.just(Operation.WRITE)),
    st.one_of(kinds, st.just(Kind.TOPIC)),
)
def test_any_thing_of_a_kind_is_the_oracles(
    found: list[Rule], subject: Subject, operation: Operation, kind: Kind
) -> None:
    roles = MEMBERS.get(subject.principal, ())
    expected = oracle.decide_any(found, subject, operation, kind, roles)
    made = Ruleset(1, found, members=MEMBERS)
    assert made.decide_any(subject, operation, kind) is expected
    assert made.decide_any(subject, operation, kind) is expected


@settings(max_examples=300, deadline=None)
@given(st.lists(rules, max_size=8), st.lists(rules, max_size=6), operations, kinds, names)
def test_a_key_narrows_and_never_widens(
    found: list[Rule], scope: list[Rule], operation: Operation, kind: Kind, name: str
) -> None:
    with_key = ALICE._replace(key="k")
    made = Ruleset(1, found, scopes={"k": scope, "whole": None})
    own = oracle.decide(found, ALICE, operation, kind, name)
    as_alices = [each._replace(principal="User:alice") for each in scope]  # whomever the rules of a key name
    narrowed = own and oracle.decide(as_alices, ALICE, operation, kind, name)
    resource = Resource(kind, name)
    assert made.decide(with_key, operation, resource) is narrowed
    assert made.explain(with_key, operation, resource).allowed is narrowed
    assert made.decide(ALICE._replace(key="whole"), operation, resource) is own
    assert not made.decide(ALICE._replace(key="gone"), operation, resource)
    assert not made.decide_any(ALICE._replace(key="gone"), operation, kind)
    if made.decide_any(with_key, operation, kind):
        assert made.decide_any(ALICE, operation, kind)
    if narrowed:
        assert made.decide_any(with_key, operation, kind)


def test_denial_beats_what_is_allowed() -> None:
    assert decide("allow User:alice * read topic literal orders")
    assert not decide("allow User:alice * read topic literal orders", "deny User:* * read topic prefixed ord")
    assert not decide("deny User:alice * all topic literal *", "allow User:alice * all topic literal orders")


def test_to_deny_implies_nothing() -> None:
    allowed = "allow User:alice * read topic literal orders"
    assert decide(allowed, "deny User:alice * read topic literal orders", operation=Operation.DESCRIBE)
    assert decide(allowed, "deny User:alice * describe topic literal orders")


@pytest.mark.parametrize(
    ("given", "implied"),
    [
        *((each, Operation.DESCRIBE) for each in ("read", "write", "delete", "alter", "all")),
        *((each, Operation.DESCRIBE_CONFIGS) for each in ("alter_configs", "all")),
    ],
)
def test_what_implies_what(given: str, implied: Operation) -> None:
    assert decide(f"allow User:alice * {given} topic literal orders", operation=implied)
    assert not decide(f"allow User:bob * {given} topic literal orders", operation=implied)


@pytest.mark.parametrize("given", ["create", "describe_configs", "alter_configs", "idempotent_write"])
def test_what_does_not_imply_to_describe(given: str) -> None:
    assert not decide(f"allow User:alice * {given} topic literal orders", operation=Operation.DESCRIBE)


def test_an_asterisk_is_everything_as_a_name_and_itself_as_a_prefix() -> None:
    assert decide("allow User:alice * read topic literal *")
    assert not decide("allow User:alice * read topic prefixed *")
    assert decide("allow User:alice * read topic prefixed *", resource=Resource(Kind.TOPIC, "*orders"))
    assert not decide("allow User:alice * read topic literal *rders")


@pytest.mark.parametrize(
    ("said", "comes_from", "fits"),
    [
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("0:0:0:0:0:0:0:1", "::1", True),
        ("10.0.0.1", "10.0.0.10", False),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("somewhere", "somewhere", True),
        ("somewhere", "", False),
        ("fe80::1", "fe80::1%eth0", True),
        ("fe80:0::1%eth0", "fe80::1%eth0", True),
        ("fe80::1%eth0", "fe80::1%eth1", False),
        ("fe80::1%eth0", "fe80::1", False),
        ("fe80::2", "fe80::1%eth0", False),
    ],
)
@pytest.mark.parametrize("effect", list(Effect))
def test_an_address_is_the_same_however_it_is_written(effect: Effect, said: str, comes_from: str, fits: bool) -> None:
    asked = ALICE._replace(host=comes_from)
    more = [] if effect is Effect.ALLOW else [rule("allow User:alice * read topic literal orders")]
    made = Ruleset(1, [rule(f"{effect} User:alice {said} read topic literal orders"), *more])
    assert made.decide(asked, Operation.READ, ORDERS) is (fits == (effect is Effect.ALLOW))
    assert made.explain(asked, Operation.READ, ORDERS).allowed is (fits == (effect is Effect.ALLOW))


def test_a_super_user_is_one_by_the_way_it_has_proved_itself() -> None:
    supers = SuperUsers(["User:alice", "certificate User:CN=root"])
    made = Ruleset(1, [rule("deny User:* * all topic literal *")], supers=supers)
    assert made.decide(ALICE, Operation.DELETE, ORDERS) and made.decide_any(ALICE, Operation.WRITE, Kind.TOPIC)
    assert made.rights(ALICE, THE_CLUSTER) == EVERYTHING
    assert not made.decide(ALICE._replace(method=Method.CERTIFICATE), Operation.DELETE, ORDERS)
    assert not made.decide(ALICE._replace(method=""), Operation.DELETE, ORDERS)
    root = Subject("User:CN=root", method=Method.CERTIFICATE)
    assert made.decide(root, Operation.DELETE, ORDERS)
    assert not made.decide(root._replace(method=Method.SCRAM), Operation.DELETE, ORDERS)
    assert not made.decide(ALICE._replace(key="gone"), Operation.DELETE, ORDERS)


@pytest.mark.parametrize("name", ["alice", "User:", "User:*", "User:ANONYMOUS", "Role:admin", "certificate alice"])
def test_who_cannot_be_a_super_user(name: str) -> None:
    with pytest.raises(WrongSettings, match="super user"):
        SuperUsers([name])


def test_all_rights_to_a_thing_at_once() -> None:
    made = Ruleset(1, [rule("allow User:alice * write topic literal orders")])
    assert made.rights(ALICE, ORDERS) == BITS[Operation.WRITE] | BITS[Operation.DESCRIBE]
    assert made.rights(ALICE._replace(principal="User:bob"), ORDERS) == 0


def test_so_many_subjects_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SUBJECTS_KEPT", 5)
    made = Ruleset(1, [rule("allow User:* * read topic prefixed o")])
    for who in range(12):
        assert made.decide(ALICE._replace(host=f"10.0.0.{who}"), Operation.READ, ORDERS)
        assert len(made._readers) <= 5


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_PER_SUBJECT", 10)
    monkeypatch.setattr(module, "KEPT_IN_ALL", 35)
    monkeypatch.setattr(module, "SUBJECTS_KEPT", 5)
    made = Ruleset(1, [rule("allow User:* * read topic prefixed a")])
    for who in range(12):
        subject = ALICE._replace(host=f"10.0.0.{who}")
        for number in range(25):
            for letter in "ab":
                resource = Resource(Kind.TOPIC, f"{letter}{number}")
                assert made.decide(subject, Operation.READ, resource) is (letter == "a")
            readers = made._readers.values()
            assert len(readers) <= 5
            assert all(len(reader.rights) <= 10 for reader in readers)
            assert sum(len(reader.rights) for reader in readers) <= 35


def test_names_that_are_long_are_decided_and_not_kept() -> None:
    made = Ruleset(1, [rule("allow User:alice * read topic prefixed o")])
    for letter in "op":
        for size in (LONGEST_KEPT, LONGEST_KEPT + 1, 1 << 20):
            for _ in range(2):
                resource = Resource(Kind.TOPIC, letter * size)
                assert made.decide(ALICE, Operation.READ, resource) is (letter == "o")
    (reader,) = made._readers.values()
    assert sorted(len(kept.name) for kept in reader.rights) == [LONGEST_KEPT] * made._kept == [LONGEST_KEPT] * 2
