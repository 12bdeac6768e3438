"""A specification in specs/ and what TLC says of its configurations."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SPECS = ROOT / "specs"
_VIOLATION = 12


class Specification(NamedTuple):
    """Attributes:
    module: its file's name.
    design: configurations of the design that are small enough for every push.
    by_hand: those that are not.
    removed: by the rule that is removed, the invariant that does not hold without it.
    prefix: what the names of configurations without a rule begin with.
    """

    module: str
    design: Sequence[str]
    by_hand: Sequence[str]
    removed: Mapping[str, str]
    prefix: str

    @property
    def configurations(self) -> set[str]:
        return {*self.design, *self.by_hand, *(f"{self.prefix}{rule}" for rule in self.removed)}


def assert_holds(name: str, least_states: int) -> None:
    run = _check(name)
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
    assert "No error has been found" in run.stdout
    states = re.search(r"generated, (\d+) distinct states found, 0 states left on queue", run.stdout)
    assert states, run.stdout[-2000:]
    # A precondition that became false everywhere would make every invariant hold.
    assert int(states[1]) > least_states


def assert_fails_without(specification: Specification, rule: str) -> None:
    run = _check(f"{specification.prefix}{rule}")
    assert run.returncode == _VIOLATION, run.stdout[-2000:] + run.stderr
    assert f"Invariant {specification.removed[rule]} is violated" in run.stdout


def assert_every_rule_is_removed_once(specification: Specification) -> None:
    rules = re.search(
        r"^Rules == \{(.*?)\}", (SPECS / f"{specification.module}.tla").read_text(), re.MULTILINE | re.DOTALL
    )
    assert rules
    assert set(re.findall(r'"([^"]+)"', rules[1])) == set(specification.removed)
    for rule in specification.removed:
        assert f'Removed = {{"{rule}"}}' in (SPECS / f"{specification.prefix}{rule}.cfg").read_text()
    for name in (*specification.design, *specification.by_hand):
        assert "Removed = {}" in (SPECS / f"{name}.cfg").read_text()


def _check(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts" / "tlc", name],
        env=os.environ | {"TLC_HEAP": "1g"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
