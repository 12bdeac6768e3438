"""Rules from names to users do what Kafka's do."""

import json
import time

import pytest

from penstock.errors import WrongSettings
from penstock.security.certificate_rules import CertificateRules

from .java_names import ANSWERS, RULES

ASKED = json.loads(ANSWERS.read_text())["rules"]


@pytest.mark.parametrize(("rules", "name", "user"), ASKED)
def test_rules_do_what_they_do_in_kafka(rules: str, name: str, user: str | None) -> None:
    try:
        found = CertificateRules(rules).user_of(name)
    except WrongSettings:
        found = None
    assert found == (user or None)  # a user without a name is nobody


def test_all_rules_were_asked_for() -> None:
    assert [tuple(asked[:2]) for asked in ASKED] == RULES


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ("", "there is no rule"),
        ("default", "'default': a rule is DEFAULT or RULE:"),
        ("DEFAULT,RULE:a", "has no '/' at its end"),
        ("RULE:a/b", "has no '/' at its end"),
        ("RULE:(a/b/", "RE2 cannot match it: missing"),
        ("RULE:(?=a)a/b/", "RE2 cannot match it: invalid perl operator"),
        ("RULE:a/b/X", "'X' is behind the end of the rule"),
        ("RULE:a/b/L DEFAULT", "'DEFAULT' is behind the end of the rule"),
        ("RULE:a/$1/", "names group 1, and the pattern has none"),
        ("RULE:(a)/$/", "'\\$' is not in front of a group's number"),
    ],
)
def test_what_is_no_rule_is_told(rules: str, told: str) -> None:
    with pytest.raises(WrongSettings, match=told.replace("(", "\\(")) as raised:
        CertificateRules(rules)
    assert str(raised.value).startswith("ssl.principal.mapping.rules: ")


@pytest.mark.parametrize("name", ["CN=" + "x" * 1022, "CN=a\nb", "CN=a\u2028", "CN=a\x00", "CN=\u202ea", "CN=\ud800"])
def test_names_that_are_nobodys(name: str) -> None:
    assert CertificateRules("RULE:[\\s\\S]*/everybody/").user_of(name) is None
    assert CertificateRules().user_of(name) is None


def test_a_pattern_that_others_take_ages_for() -> None:
    rules = CertificateRules("RULE:CN=(a*)*(a*)*(a*)*b/x/")
    before = time.process_time()
    assert rules.user_of("CN=" + "a" * 1000) is None
    assert time.process_time() - before < 1
