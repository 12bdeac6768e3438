"""What of a group is next, and how far."""

from penstock.engine.queues import entries
from penstock.engine.queues.machine import LedgerMachine
from penstock.engine.queues.settings import QUEUE_RULES
from penstock.engine.queues.window import Run


def test_what_came_back_is_had_up_to_the_end_and_the_rest_of_it_later() -> None:
    machine = LedgerMachine(lambda name: QUEUE_RULES, tuple, lambda: 1, lambda: 0.0)
    machine.open(0, 0, "q", 0)
    group = machine.get("q")
    assert group is not None
    group.apply(entries.Leased(1, "anna", 0, 9, False, False, (Run(0, 9),)))
    group.apply(entries.Returned(0, 0, 0, False, False, False, (Run(0, 9),)))
    group.apply(entries.Leased(2, "bert", 0, 9, False, False, (Run(0, 4),)))
    assert group.pick(10, 3, lambda offset: 9) == []
    assert group.pick(10, 5, lambda offset: 9) == []
    assert group.pick(10, 8, lambda offset: 9) == [Run(5, 7)]
    assert group.pick(10, 10, lambda offset: 9) == [Run(8, 9)]
