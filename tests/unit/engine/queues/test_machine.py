"""The ledger's machine, where a model found it wrong."""

from collections.abc import Sequence
from uuid import UUID

from penstock.engine.coordination.schemas import Entry
from penstock.engine.queues.answers import Want
from penstock.engine.queues.entries import Burying, ChunkSaved, LedgerCodec
from penstock.engine.queues.machine import LedgerMachine
from penstock.engine.queues.settings import QUEUE_RULES
from penstock.engine.queues.verdicts import Change, Receipt, Verdict, VerdictKind
from penstock.engine.queues.window import Run
from penstock.errors import Code, PenstockError


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


def dying(ledger: LedgerMachine, count: int) -> None:
    leased, _ = ledger.lease(0, Want("q", "c", count), 10)
    ledger.settle(0, "to", "q", Receipt(leased.lease_id), [Change(0, count - 1, Verdict(VerdictKind.REJECT))])


def burying(sequence: int, *runs: Run) -> Burying:
    return Burying(UUID(int=1), 0, 7, sequence, runs)


def test_a_batch_of_letters_stays_what_it_was_though_a_message_was_lost() -> None:
    """The topic of dead letters may have it already, and knows it by its numbers."""
    ledger = machine()
    dying(ledger, 4)
    ledger.bury(0, "to", "q", burying(0, Run(0, 3)))
    ledger.led(0, 1, 2)
    ((_, begun, _),) = ledger.dying(10)
    assert begun == burying(0, Run(0, 1), Run(-2, -1))
    ledger.lease(0, Want("q", "c", 10), 4)
    ledger.buried(0, "to", "q", begun)
    figures = ledger.figures("q", 4)
    assert (figures.start, figures.leased, figures.dying) == (2, 2, 0)
    assert ledger.last_burial("q") == begun


def test_letters_that_are_all_lost_are_not_written() -> None:
    ledger = machine()
    dying(ledger, 2)
    ledger.bury(0, "to", "q", burying(0, Run(0, 1)))
    ledger.led(0, 1, 0)
    assert ledger.dying(10) == []
    assert ledger.last_burial("q") is None


def test_a_batch_that_was_refused_is_followed_by_another_producers() -> None:
    """Its topic has lost what came before, and will never take the next of that producer."""
    ledger = machine()
    dying(ledger, 2)
    ledger.bury(0, "to", "q", burying(0, Run(0, 0)))
    ledger.buried(0, "to", "q", burying(0, Run(0, 0)))
    ledger.bury(0, "to", "q", burying(1, Run(1, 1)))
    ledger.forget_burial(0, "to", "q")
    assert ledger.last_burial("q") is None
    assert [each.runs for each in ledger.dying(10)] == [[Run(1, 1)]]


def replayed(written: Sequence[Entry]) -> LedgerMachine:
    made, codec = LedgerMachine(lambda group: QUEUE_RULES, tuple, lambda: 1, lambda: 0.0), LedgerCodec()
    for each in written:
        read = codec.decode(*codec.encode(each))
        assert read is not None
        made.replay(read, 0, None, 0)
    return made


def test_a_share_group_goes_by_the_last_word_of_its_coordinator_also_after_a_restart() -> None:
    ledger = machine()
    written = [*ledger.open(0, "to", "g", 5, 2).records, *ledger.alter(0, "to", "g", 3, 4).records]
    for each in (ledger, replayed(written), replayed([entry for entry, _ in ledger.dump()])):
        for late in (each.alter(0, "to", "g", 9, 3), each.forget(0, "to", "g", 3)):
            (reply,) = late.replies
            assert isinstance(reply.answer, PenstockError) and reply.answer.code is Code.COORDINATOR_FENCED
            assert not late.records
        assert not each.alter(0, "to", "g", 9, 4).records, "it is done"
        assert each.figures("g", 10).start == 3
        assert [reply.answer for reply in each.forget(0, "to", "g", 4).replies] == [True]
        assert [reply.answer for reply in each.forget(0, "to", "g", 9).replies] == [False]
        assert each.get("g") is None


def test_leases_are_over_when_a_group_begins_anew() -> None:
    ledger = machine()
    leased, _ = ledger.lease(0, Want("q", "c", 5), 10)
    ledger.alter(0, "to", "q", 2, 1)
    (reply,) = ledger.settle(0, "to", "q", Receipt(leased.lease_id), [Change(2, 4, Verdict(VerdictKind.ACK))]).replies
    assert isinstance(reply.answer, PenstockError) and reply.answer.code is Code.STALE_RECEIPT
    again, _ = ledger.lease(0, Want("q", "c", 5), 10)
    assert [(each.first, each.last, each.deliveries) for each in again.ranges] == [(2, 6, 1)]


def test_millions_of_offsets_without_a_message_are_one_entry_and_take_no_room() -> None:
    """Thinning leaves such holes, and compaction."""
    ledger = machine()
    held, _ = ledger.lease(0, Want("q", "c", 3), 1 << 40)
    outcome = ledger.skip("q", held.lease_id, 3, 9_000_000)
    assert len(outcome.records) == 1
    group = ledger.get("q")
    assert group is not None
    assert sum(chunk is not None for _, chunk in group.window.chunks()) == 2, "those at both ends"
    leased, _ = ledger.lease(0, Want("q", "c", 2), 1 << 40)
    assert [(each.first, each.last) for each in leased.ranges] == [(9_000_000, 9_000_001)]
    assert not ledger.skip("q", leased.lease_id, 3, 9_000_000).records, "somebody has had it"
    figures = ledger.figures("q", 9_000_002)
    assert (figures.ready, figures.leased, figures.settled_beyond) == (0, 5, 9_000_000 - 3)


def test_a_hole_that_was_seen_before_the_group_began_anew_is_none() -> None:
    ledger = machine()
    seen, _ = ledger.lease(0, Want("q", "c", 10), 100)
    ledger.restart(0, "to", "q", 0)
    assert not ledger.skip("q", seen.lease_id, 10, 50).records
    again, _ = ledger.lease(0, Want("q", "c", 5), 100)
    assert not ledger.skip("q", again.lease_id, 10, 50).records, "what lies before it has not been looked at"
    assert ledger.figures("q", 100).ready == 95


def test_a_group_that_is_deleted_while_the_state_is_saved_does_not_come_back() -> None:
    ledger = machine()
    kept: list[Entry] = []
    kept += ledger.lease(0, Want("q", "c", 10), 100)[1].records
    for number, piece in enumerate(ledger.saved()):
        kept += piece
        if number == 1:
            kept += ledger.restart(0, "to", "q", 50).records
            kept += ledger.delete(0, "to", "q").records
            kept += ledger.open(0, "to", "q", 7).records
    for entries in (kept, [entry for entry, _ in ledger.dump()]):
        again = LedgerMachine(lambda group: QUEUE_RULES, tuple, lambda: 1, lambda: 0.0)
        for each in entries:
            again.replay(each, -1, None, 0)
        assert [(group.name, group.window.start) for group in again.groups] == [("q", 7)]
