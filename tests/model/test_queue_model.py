"""The specification of queues: TLC finds nothing against it, and a violation when any one rule is removed."""

import pytest

from tests.model.tlc import (
    SPECS,
    Specification,
    assert_every_rule_is_removed_once,
    assert_fails_without,
    assert_holds,
)
from tests.runner.parts import LARGER_QUEUES

QUEUE = Specification(
    module="Queue",
    design=["Queue", "queue-alone", "queue-letters", "queue-losses", "queue-reused", "queue-lives"],
    by_hand=[*LARGER_QUEUES, "queue-walks"],
    removed={
        "bound-leases-end": "OnlyHolders",
        "burial-kept": "OneCopy",
        "bury-recorded": "DeadNotLeasable",
        "lease-ids-fresh": "OneLease",
        "leased-when-committed": "AttemptsKept",
        "numbers-compared": "OneCopy",
        "numbers-kept": "OneCopy",
        "numbers-recorded": "OneCopy",
        "producer-fresh": "NoneLost",
        "receipt-compared": "OneLease",
        "refused-when-settled": "AckStands",
        "serve-when-committed": "DeadNotLeasable",
        "told-when-committed": "AckStands",
        "void-by-epoch": "NoneLost",
        "void-cut": "NoneLost",
        "written-before-settled": "NoneLost",
    },
    prefix="queue-without-",
)


@pytest.mark.parametrize("name", QUEUE.design)
def test_the_design_holds(name: str) -> None:
    assert_holds(name, least_states=20_000)


@pytest.mark.parametrize("rule", QUEUE.removed)
def test_without_a_rule_the_design_fails(rule: str) -> None:
    assert_fails_without(QUEUE, rule)


def test_every_rule_and_configuration_is_checked() -> None:
    assert {path.stem for path in SPECS.glob("[Qq]ueue*.cfg")} == QUEUE.configurations
    assert_every_rule_is_removed_once(QUEUE)
