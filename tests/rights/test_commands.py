"""Commands as many principals: each is refused exactly where the model says, and in words that say so."""

import re

import pytest

from .conftest import Run
from .model import COMMANDS, Model
from .rules import SUPER, THEMES, all_rules

HERE = "127.0.0.1"
REFUSED = re.compile(r"\bmay not\b|authori[sz]ation failed|\bno topic 'books'", re.IGNORECASE)
"""The last is what is said of a topic that is looked for among all that may be seen."""
ASKING = (*THEMES["single-rights"], *THEMES["hosts"], "not-cluster-ALTER", "not-cluster-DESCRIBE", "has-everything")


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_as_many(words: str, run: Run) -> None:
    model = Model(all_rules(), [SUPER])
    wrong, seen = [], set()
    for user in ASKING:
        told = run(user, *words.split(" "))
        may = all(model.may(user, HERE, need) for need in COMMANDS[words])
        is_refused = told.code != 0 and bool(REFUSED.search(told.err))
        seen.add(may)
        if is_refused is may or "Traceback" in told.err:
            wrong.append((user, "may" if may else "may not", told))
    assert not wrong, wrong[:5]
    assert seen == {True, False}
