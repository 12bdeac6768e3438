"""The texts in `tests/scenarios/security`: rules as they come, and below them who may do what.

allow|deny PRINCIPAL from HOST to OPERATION[, OPERATION] KIND literal|prefixed NAME
role PRINCIPAL GRANT          what the user is given
super PRINCIPAL               may do everything
key ID [whole]                an API key; its rules follow, further in
new                           no rules, roles or keys any more
PRINCIPAL [with KEY] at HOST OPERATION KIND NAME: yes|no
PRINCIPAL OPERATION any KIND: yes|no
"""

import re
import shlex
from pathlib import Path

import pytest

from penstock.engine.access import Kind, Operation, Resource, Subject
from penstock.security.methods import Method, SuperUsers
from penstock.security.roles import BUILT_IN, built_in_rules, role_principal
from penstock.security.rules import Effect, Pattern, Rule, check_rule
from penstock.security.ruleset import Ruleset

FOLDER = Path(__file__).parents[2] / "scenarios" / "security"
_RULE = re.compile(r"(allow|deny) (\S+) from (\S+) to ([\w, ]+) (topic|group|cluster|user) (literal|prefixed) (\S+)")


class Scenario:
    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.rules: list[Rule] = []
        self.members: dict[str, list[str]] = {}
        self.keys: dict[str, list[Rule] | None] = {}
        self.supers: list[str] = []
        self.key = ""

    def tell(self, line: str) -> None:
        """One line that is not a question."""
        word, *rest = line.split()
        if word == "new":
            self.begin()
        elif word == "role":
            principal, grant = rest
            self.members.setdefault(principal, []).append(role_principal(grant))
            if grant.partition(":")[0] in BUILT_IN:
                self.rules += built_in_rules(grant)
        elif word == "super":
            self.supers += rest
        elif word == "key":
            self.key = rest[0]
            self.keys[self.key] = None if rest[1:] == ["whole"] else []
        else:
            self.rules += parse_rules(line)

    def answer(self, question: str) -> bool:
        made = Ruleset(1, self.rules, members=self.members, scopes=self.keys, supers=SuperUsers(self.supers))
        principal, *words = shlex.split(question)  # a kind may have a blank in it
        key = ""
        if words[0] == "with":
            key, words = words[1], words[2:]
        if words[0] != "at":
            operation, any_, kind = words
            assert key == "" or key in self.keys or key == "k9"
            assert any_ == "any"
            subject = Subject(principal, "10.0.0.1", "kafka", Method.SCRAM, key)
            return made.decide_any(subject, Operation(operation), Kind(kind))
        _, host, operation, kind, name = words
        subject = Subject(principal, host, "kafka", Method.SCRAM, key)
        resource = Resource(Kind(kind), name)
        found = made.decide(subject, Operation(operation), resource)
        assert made.explain(subject, Operation(operation), resource).allowed is found
        return found


def parse_rules(line: str) -> list[Rule]:
    found = _RULE.fullmatch(line)
    assert found, line
    effect, principal, host, operations, kind, pattern, name = found.groups()
    rules = [
        Rule(principal, host, Operation(each.strip()), Kind(kind), Pattern(pattern), name, Effect(effect))
        for each in operations.split(",")
    ]
    for each in rules:
        check_rule(each)
    return rules


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    scenario = Scenario()
    asked = 0
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        said = line.strip()
        if line.startswith("    ") and _RULE.fullmatch(said):
            scenario.keys[scenario.key] = [*(scenario.keys[scenario.key] or []), *parse_rules(said)]
        elif line.startswith("    "):
            question, _, answer = said.rpartition(": ")
            assert answer in ("yes", "no"), f"{path.name}:{number}: {line}"
            assert scenario.answer(question) is (answer == "yes"), f"{path.name}:{number}: {line}"
            asked += 1
        else:
            scenario.tell(line)
    assert asked >= 8
