"""The specification in specs/: TLC finds nothing against the design, and a violation when any one rule is removed."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPECS = ROOT / "specs"
DESIGN = ["Replication", "elections", "crash", "disks"]
BY_HAND = ["whole", "power", "large", "large-os"]
LOST = "MembersComplete"
REMOVED = {
    "R1": LOST,
    "R2": LOST,
    "R3": LOST,
    "R4-hw": LOST,
    "R4-start": LOST,
    "admission": "OneLeaderPerEpoch",
    "admit-order": LOST,
    "diverging": LOST,
    "fence": LOST,
    "incarnation": LOST,
    "last-all": "LeaderComplete",
    "last-enough": "LeaderComplete",
    "late-fetch": LOST,
    "mark": LOST,
    "min-isr": LOST,
    "pending": LOST,
    "shrink-first": LOST,
    "sync": LOST,
    "unclean": LOST,
    "unclean-elr": LOST,
}
VIOLATION = 12


def check(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts" / "tlc", name],
        env=os.environ | {"TLC_HEAP": "1g"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.parametrize("name", DESIGN)
def test_the_design_holds(name: str) -> None:
    run = check(name)
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
    assert "No error has been found" in run.stdout
    states = re.search(r"(\d+) distinct states found, 0 states left on queue", run.stdout)
    assert states, run.stdout[-2000:]
    # A precondition that became false everywhere would make every invariant hold.
    assert int(states[1]) > 5_000


@pytest.mark.parametrize(("rule", "invariant"), REMOVED.items())
def test_without_a_rule_the_design_fails(rule: str, invariant: str) -> None:
    run = check(f"without-{rule}")
    assert run.returncode == VIOLATION, run.stdout[-2000:] + run.stderr
    assert f"Invariant {invariant} is violated" in run.stdout


def test_every_rule_and_configuration_is_checked() -> None:
    names = {path.stem for path in SPECS.glob("*.cfg")}
    assert names == {*DESIGN, *BY_HAND, *(f"without-{rule}" for rule in REMOVED)}
    rules = re.search(r"^Rules == \{(.*?)\}", (SPECS / "Replication.tla").read_text(), re.MULTILINE | re.DOTALL)
    assert rules
    assert set(re.findall(r'"([^"]+)"', rules[1])) == set(REMOVED)
    for rule in REMOVED:
        assert f'Removed = {{"{rule}"}}' in (SPECS / f"without-{rule}.cfg").read_text()
    for name in (*DESIGN, *BY_HAND):
        assert "Removed = {}" in (SPECS / f"{name}.cfg").read_text()
