"""Hand-made histories of transactions: each check finds its own kind of wrong, and nothing in a right one."""

from typing import Any

import pytest

from penstock.records.build import build_batch
from penstock.records.control import Marker, build_marker
from penstock.storage.log.transactions import AbortedTransaction
from tests.simulated_broker import Stored, split
from tests.simulation.transactional_checks import Attempt, Final, History, Life, Outcome, check_transactions
from tests.simulation.transactions import visible

ONE, TWO = ("tx", 0), ("tx", 1)


class Story:
    """One id's first transaction committed, the second aborted; both are in two partitions, the offset is 1."""

    def __init__(self) -> None:
        self.history, self.final = History(), Final()
        self.first, self.second = self._attempt(1, Outcome.COMMITTED), self._attempt(2, Outcome.ABORTED)
        self.first.commit_asked_at, self.first.ended_at = 5.0, 6.0
        self.final.raw = {
            ONE: [(0, b"x/1/0/0"), (2, b"x/2/0/0")],
            TWO: [(0, b"x/1/1/0"), (2, b"x/2/1/0")],
        }
        self.final.committed = {ONE: [(0, b"x/1/0/0")], TWO: [(0, b"x/1/1/0")]}
        self.final.offsets = {"x": 1}
        self.history.saw(ONE, 0, 4, [(0, b"x/1/0/0")], 7.0, "broker 1")
        self.history.saw_raw(ONE, [(2, b"x/2/0/0")], "broker 1")

    def _attempt(self, number: int, outcome: Outcome) -> Attempt:
        attempt = Attempt("x", number, Life(), outcome=outcome, has_offset=True)
        for place in (ONE, TWO):
            attempt.sent.append((place, attempt.next_value(place)))
        self.history.attempts[attempt.name] = attempt
        return attempt

    def found(self) -> list[str]:
        return check_transactions(self.history, self.final)


def test_a_right_story() -> None:
    assert Story().found() == []


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.COMMITTED])
def test_a_commit_without_an_answer_may_have_happened(outcome: Outcome) -> None:
    story = Story()
    story.first.outcome = outcome
    assert story.found() == []


def test_a_commit_without_an_answer_may_not_have_happened() -> None:
    story = Story()
    story.first.outcome = Outcome.UNKNOWN
    story.final.committed = {ONE: [], TWO: []}
    story.final.offsets = {"x": -1}
    story.history.seen.clear()
    assert story.found() == []


def _aborted_is_committed(story: Story) -> None:
    story.final.committed[ONE] = [*story.final.committed[ONE], (2, b"x/2/0/0")]


def _refused_is_committed(story: Story) -> None:
    story.first.outcome = Outcome.REFUSED


def _part_is_missing(story: Story) -> None:
    story.final.committed[TWO] = []


def _all_is_missing(story: Story) -> None:
    story.final.committed = {ONE: [], TWO: []}


def _offset_is_missing(story: Story) -> None:
    story.final.offsets["x"] = -1


def _offset_of_the_aborted(story: Story) -> None:
    story.final.offsets["x"] = 2


def _aborted_was_seen(story: Story) -> None:
    story.history.saw(ONE, 2, 3, [(2, b"x/2/0/0")], 8.0, "broker 2")


def _seen_too_early(story: Story) -> None:
    story.history.saw(TWO, 0, 1, [(0, b"x/1/1/0")], 4.9, "broker 2")


def _seen_and_gone(story: Story) -> None:
    story.history.saw(TWO, 3, 4, [(3, b"x/1/1/0")], 8.0, "broker 2")


def _raw_seen_and_gone(story: Story) -> None:
    story.history.saw_raw(TWO, [(1, b"x/2/1/0")], "broker 2")


def _another_value(story: Story) -> None:
    story.history.saw(ONE, 0, 1, [(0, b"x/1/0/1")], 8.0, "broker 2")


def _twice(story: Story) -> None:
    story.final.raw[ONE] = [*story.final.raw[ONE], (3, b"x/1/0/0")]


def _never_sent(story: Story) -> None:
    story.final.raw[ONE] = [*story.final.raw[ONE], (3, b"x/9/0/0")]


def _never_sent_and_seen(story: Story) -> None:
    story.history.saw(ONE, 3, 4, [(3, b"x/9/0/0")], 8.0, "broker 2")


def _reordered(story: Story) -> None:
    story.second.outcome = Outcome.UNKNOWN
    story.final.committed[ONE] = [(0, b"x/2/0/0"), (2, b"x/1/0/0")]


def _skipped(story: Story) -> None:
    story.history.saw(TWO, 0, 3, [], 8.0, "broker 2")


def _zombie_told_yes(story: Story) -> None:
    story.first.life.replaced_at = 4.0


def _zombie_committed(story: Story) -> None:
    story.first.life.replaced_at = 4.0
    story.first.outcome = Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (_aborted_is_committed, "aborted read: x/2 (aborted)"),
        (_refused_is_committed, "aborted read: x/1 (refused)"),
        (_part_is_missing, "torn: x/1"),
        (_all_is_missing, "lost: x/1"),
        (_offset_is_missing, "torn: the offset of x is -1"),
        (_offset_of_the_aborted, "torn: the offset of x is 2"),
        (_aborted_was_seen, "aborted read: x/2/0/0 at 2"),
        (_seen_too_early, "early read: x/1/1/0"),
        (_seen_and_gone, "vanished: x/1/1/0"),
        (_raw_seen_and_gone, "vanished: x/2/1/0"),
        (_another_value, "tx-0: offset 0 is x/1/0/1"),
        (_twice, "duplicate: x/1/0/0"),
        (_never_sent, "phantom: x/9/0/0 in tx-0"),
        (_never_sent_and_seen, "phantom: x/9/0/0 at 3"),
        (_reordered, "reordered: x/1/0/0"),
        (_skipped, "skipped: a reader went from 0 to 3 of tx-1"),
        (_zombie_told_yes, "zombie: x/1 was fenced at 4.000 and committed"),
        (_zombie_committed, "zombie: x/1 was fenced at 4.000, its records are committed"),
    ],
)
def test_each_wrong_is_found(spoil: object, kind: str) -> None:
    story = Story()
    assert callable(spoil)
    spoil(story)
    assert any(text.startswith(kind) for text in story.found()), story.found()


def _batch(offset: int, value: bytes, producer_id: int = -1) -> Stored:
    fields: dict[str, Any] = (
        {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0} if producer_id >= 0 else {}
    )
    return split(build_batch([(None, value, [], 0)], base_offset=offset, transactional=producer_id >= 0, **fields))[0]


def _marker(offset: int, producer_id: int, marker: Marker) -> Stored:
    data = bytearray(build_marker(producer_id, 0, marker, 0, 0))
    data[:8] = offset.to_bytes(8, "big")
    return split(bytes(data))[0]


def test_a_consumer_hides_what_was_aborted_and_nothing_else() -> None:
    batches = [
        _batch(0, b"aborted", 7),
        _batch(1, b"other", 8),
        _batch(2, b"plain"),
        _marker(3, 7, Marker.ABORT),
        _batch(4, b"next", 7),
        _marker(5, 7, Marker.COMMIT),
    ]
    aborted = [AbortedTransaction(7, 0, 3, 0)]
    assert visible(batches, aborted) == [(1, b"other"), (2, b"plain"), (4, b"next")]
    assert visible(batches, []) == [(0, b"aborted"), (1, b"other"), (2, b"plain"), (4, b"next")]
