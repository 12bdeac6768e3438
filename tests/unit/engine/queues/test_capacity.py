"""How much a queue holds, and how many of the oldest make room."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.engine.queues.capacity import Capacity
from penstock.engine.queues.machine import LedgerMachine
from penstock.engine.queues.settings import QUEUE_RULES, QueueRules, parse_rules
from penstock.errors import Code, PenstockError

_SIZE = 100


class Full:
    """A queue that holds all it may: ten messages of a hundred bytes each."""

    def __init__(self, **given: str) -> None:
        settings = {name.replace("_", "-"): text for name, text in given.items()}
        self.rules: QueueRules = parse_rules(settings, QUEUE_RULES)
        self.end = 10
        self.ledger = LedgerMachine(lambda group: self.rules, tuple, lambda: 1, lambda: 0.0)
        self.ledger.open(0, "to", "q", 0)
        log = SimpleNamespace(size_from=lambda offset: _SIZE * (self.end - offset))
        partition = SimpleNamespace(topic="q", name="q-0", leading=lambda: log)
        log.end_offset = self.end
        self._log = log
        rulebook = SimpleNamespace(limited=lambda topic: {"q": self.rules})
        self.capacity = Capacity(
            cast(Any, partition), lambda: self.ledger, cast(Any, rulebook), lambda group: None, self._overflow
        )

    def _overflow(self, group: str, excess: int) -> None:
        self.ledger.overflow(0, group, excess, self.end)

    def send(self) -> None:
        self.capacity.check(1, _SIZE)
        self.end = self._log.end_offset = self.end + 1

    @property
    def ready(self) -> int:
        return self.ledger.figures("q", self.end).ready


@pytest.mark.parametrize("size", ["10", "1000B"])
@pytest.mark.parametrize("on_full", ["dead-letter", "drop-oldest"])
def test_one_goes_for_each_that_comes(size: str, on_full: str) -> None:
    """Also while none of the letters is written: what is dying is not there any more, and makes room once."""
    full = Full(max_size=size, on_full=on_full)
    for _ in range(5):
        full.send()
        assert full.ready == 10


def test_a_full_queue_refuses_what_is_new() -> None:
    full = Full(max_size="10", on_full="reject")
    with pytest.raises(PenstockError) as refused:
        full.send()
    assert refused.value.code is Code.QUEUE_FULL
