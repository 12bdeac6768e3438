"""The ledger's machine, where a model found it wrong."""

from penstock.engine.queues.entries import ChunkSaved, LedgerCodec
from penstock.engine.queues.machine import Change, LedgerMachine, Receipt, Verdict, VerdictKind, Want
from penstock.engine.queues.settings import QUEUE_RULES
from penstock.engine.queues.window import Run


def machine() -> LedgerMachine:
    ids = iter(range(1, 100))
    made = LedgerMachine(lambda group: QUEUE_RULES, tuple, lambda: next(ids), lambda: 0.0)
    made.open(0, "to", "q", 0)
    return made


def test_a_clock_that_was_ahead_is_taken_off_once() -> None:
    ledger = machine()
    first, _ = ledger.lease(100_000, Want("q", "c", 1), 10)
    ledger.settle(100_000, "to", "q", Receipt(first.lease_id), [Change(0, 0, Verdict(VerdictKind.NACK, 30_000))])
    ledger.lease(100_000, Want("q", "c", 1), 10)
    ledger.led(50_000, 1, 10)
    ledger.led(60_000, 2, 10)
    assert ledger.next_deadline() == 80_000
    ledger.tick(79_999)
    assert (ledger.figures("q", 10).delayed, ledger.figures("q", 10).leased) == (1, 1)


def test_what_is_passed_over_is_not_forgotten() -> None:
    """Dead letters in the middle go back to their queue; those before them are still there."""
    ledger = machine()
    ledger.redrive(0, "to", "q", "orders", [Run(5, 5)], 10)
    leased, _ = ledger.lease(0, Want("q", "c", 20), 10)
    assert [(each.first, each.last) for each in leased.ranges] == [(0, 4), (6, 9)]


def test_letters_that_are_not_there_go_nowhere() -> None:
    ledger = machine()
    ledger.lease(0, Want("q", "c", 5), 10)
    outcome = ledger.redrive(0, "to", "q", "orders", [Run(15, 20)], 10)
    assert [reply.answer for reply in outcome.replies] == [0]
    assert [LedgerCodec().encode(each) for each in outcome.records] == []


def test_what_ripens_while_the_state_is_saved_is_ready_for_the_next_leader() -> None:
    ledger = machine()
    first, _ = ledger.lease(0, Want("q", "c", 1), 10)
    ledger.settle(0, "to", "q", Receipt(first.lease_id), [Change(0, 0, Verdict(VerdictKind.NACK, 30_000))])
    kept = []
    for piece in ledger.saved():
        kept += piece
        if any(isinstance(each.value, ChunkSaved) for each in piece):
            ledger.tick(30_000)
    assert ledger.figures("q", 10).delayed == 0
    following = LedgerMachine(lambda group: QUEUE_RULES, tuple, lambda: 1, lambda: 0.0)
    for each in kept:
        following.replay(each, -1, None, 30_000)
    following.tick(30_000)
    assert following.figures("q", 10).delayed == 0
