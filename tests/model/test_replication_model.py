"""The specification of replication: TLC finds nothing against it, and a violation when any one rule is removed."""

import pytest

from tests.model.tlc import (
    SPECS,
    Specification,
    assert_every_rule_is_removed_once,
    assert_fails_without,
    assert_holds,
)

LOST = "MembersComplete"
REPLICATION = Specification(
    module="Replication",
    design=["Replication", "elections", "crash", "disks"],
    by_hand=["whole", "power", "large", "large-os"],
    removed={
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
    },
    prefix="without-",
)


@pytest.mark.parametrize("name", REPLICATION.design)
def test_the_design_holds(name: str) -> None:
    assert_holds(name, least_states=5_000)


@pytest.mark.parametrize("rule", REPLICATION.removed)
def test_without_a_rule_the_design_fails(rule: str) -> None:
    assert_fails_without(REPLICATION, rule)


def test_every_rule_and_configuration_is_checked() -> None:
    others = {path.stem for path in SPECS.glob("*.cfg") if not path.stem.lower().startswith("queue")}
    assert others == REPLICATION.configurations
    assert_every_rule_is_removed_once(REPLICATION)
