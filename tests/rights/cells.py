"""All cells of a broker, and the files that keep what Apache Kafka answered."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final

from .answers import words
from .brokers import ADMIN, Asker, call, log_in, stay
from .questions import CLASSIC, GROUPS, QUESTIONS, World
from .rules import FOR_EVERYBODY, THEMES

GOLDEN: Final = Path(__file__).with_name("golden")
_OTHERS: Final = "all others"
VIEWS: Final[Mapping[tuple[str, int], Mapping[str, Any]]] = {
    ("metadata", 9): {"topics": None},
    ("list_groups", 4): {},
    ("describe_groups", 5): {"groups": [CLASSIC]},
    ("offset_fetch", 8): {"groups": [{"group_id": name, "topics": None} for name in GROUPS]},
    ("list_transactions", 0): {},
    ("describe_user_scram_credentials", 0): {"users": None},
    ("describe_acls", 3): {
        **dict.fromkeys(("pattern_type_filter", "resource_type_filter", "operation", "permission_type"), 1),
        **dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter")),
    },
}
Cells = Mapping[str, Mapping[str, str]]
"""By principal, then by the name of the question."""
Unasked = Mapping[str, Mapping[str, Set[str]]]
"""Likewise: topics."""


def ask_all(address: str, world: World, users: Sequence[str]) -> tuple[Cells, Unasked]:
    """What each of them is answered to everything, and which topics those answers name of their own accord."""
    found: dict[str, dict[str, str]] = {}
    unasked = {}
    with log_in(address, ADMIN) as admin:
        for user in users:
            stay(admin, world)
            asker = Asker(address, user, world, admin)
            found[user] = {question.name: asker.ask(question) for question in QUESTIONS}
            unasked[user] = asker.unasked
            asker.close()
    return found, unasked


def look(address: str) -> Sequence[str]:
    """What is in a broker: topics, groups, offsets, rules."""
    with log_in(address, ADMIN) as admin:
        return [words(call(admin, *asked, **values)) for asked, values in VIEWS.items()]


def save(theme: str, cells: Cells) -> None:
    """Who was answered what; the commonest answer to a question is that of all who are not named."""
    answers = {}
    for question in QUESTIONS:
        who: dict[str, list[str]] = {}
        for user in THEMES[theme]:
            who.setdefault(cells[user][question.name], []).append(user)
        commonest, _ = Counter({said: len(users) for said, users in who.items()}).most_common(1)[0]
        rest = {said: users for said, users in who.items() if said != commonest}
        answers[question.name] = {_OTHERS: commonest, **{said: " ".join(users) for said, users in rest.items()}}
    rules = {user: "; ".join(texts) for user, texts in THEMES[theme].items()}
    kept = {"rules": rules, "for everybody": "; ".join(FOR_EVERYBODY), "answers": answers}
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / f"{theme}.json").write_text(json.dumps(kept, indent=1) + "\n")


def load(theme: str) -> Cells:
    """What Apache Kafka answered, under the rules there are now."""
    kept = json.loads((GOLDEN / f"{theme}.json").read_text())
    rules = {user: "; ".join(texts) for user, texts in THEMES[theme].items()}
    asked = {"rules": rules, "for everybody": "; ".join(FOR_EVERYBODY), "answers": [each.name for each in QUESTIONS]}
    assert {**kept, "answers": list(kept["answers"])} == asked, "Kafka was never asked this: run make golden"
    cells: dict[str, dict[str, str]] = {user: {} for user in THEMES[theme]}
    for question, answers in kept["answers"].items():
        for user in cells:
            cells[user][question] = answers[_OTHERS]
        for said, users in answers.items():
            for user in users.split(" ") if said != _OTHERS else ():
                cells[user][question] = said
    return cells
