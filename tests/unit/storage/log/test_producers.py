"""Idempotent producers against a model that remembers every batch, not just five."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.errors import Code, PenstockError
from penstock.records.control import NO_COORDINATOR
from penstock.storage.log.producers import EXPIRY_MS, KEPT_BATCHES, Producers, SentBatch

IDS = st.integers(0, 2)
WRAP = 1 << 31


class ProducersAgainstModel(RuleBasedStateMachine):
    """The model: for each producer its epoch and all its batches as (first, last, base offset)."""

    def __init__(self) -> None:
        super().__init__()
        self.producers = Producers()
        self.model: dict[int, tuple[int, list[tuple[int, int, int]]]] = {}
        self.offset = 0

    def append(self, producer_id: int, epoch: int, first: int, count: int) -> None:
        last = (first + count - 1) % WRAP
        assert self.producers.check(producer_id, epoch, first, last) is None
        sent = SentBatch(first, last, self.offset, self.offset + count - 1, -1)
        self.producers.note(producer_id, epoch, sent, 1, 1)
        known, batches = self.model.get(producer_id, (epoch, []))
        self.model[producer_id] = (epoch, [*(batches if known == epoch else []), (first, last, self.offset)])
        self.offset += count

    @rule(producer_id=IDS, count=st.integers(1, 4), start=st.sampled_from([0, 5, WRAP - 3]))
    def send_next(self, producer_id: int, count: int, start: int) -> None:
        epoch, batches = self.model.get(producer_id, (0, []))
        self.append(producer_id, epoch, (batches[-1][1] + 1) % WRAP if batches else start, count)

    @rule(producer_id=IDS, back=st.integers(1, 8))
    def send_again(self, producer_id: int, back: int) -> None:
        epoch, batches = self.model.get(producer_id, (0, []))
        if back > len(batches):
            return
        first, last, offset = batches[-back]
        if back <= KEPT_BATCHES:
            found = self.producers.check(producer_id, epoch, first, last)
            assert found is not None and found.base_offset == offset
        else:
            with pytest.raises(PenstockError) as refused:
                self.producers.check(producer_id, epoch, first, last)
            assert refused.value.code is Code.OUT_OF_ORDER_SEQUENCE

    @rule(producer_id=IDS, gap=st.integers(1, 3))
    def leave_a_gap(self, producer_id: int, gap: int) -> None:
        if producer_id in self.model:
            epoch, batches = self.model[producer_id]
            first = (batches[-1][1] + 1 + gap) % WRAP
            with pytest.raises(PenstockError) as refused:
                self.producers.check(producer_id, epoch, first, first)
            assert refused.value.code is Code.OUT_OF_ORDER_SEQUENCE

    @rule(producer_id=IDS, first=st.sampled_from([0, 3]))
    def begin_an_epoch(self, producer_id: int, first: int) -> None:
        if producer_id not in self.model:
            return
        epoch = self.model[producer_id][0] + 1
        if first == 0:
            self.append(producer_id, epoch, 0, 2)
        else:
            with pytest.raises(PenstockError) as refused:
                self.producers.check(producer_id, epoch, first, first)
            assert refused.value.code is Code.OUT_OF_ORDER_SEQUENCE

    @rule(producer_id=IDS)
    def come_from_an_old_epoch(self, producer_id: int) -> None:
        if producer_id in self.model:
            epoch, batches = self.model[producer_id]
            with pytest.raises(PenstockError) as refused:
                self.producers.check(producer_id, epoch - 1, batches[-1][0], batches[-1][1])
            assert refused.value.code is Code.INVALID_PRODUCER_EPOCH

    @rule()
    def save_and_load(self) -> None:
        self.producers = Producers.restore(self.producers.dump())

    @invariant()
    def no_more_than_five_are_kept(self) -> None:
        for producer_id, (epoch, batches) in self.model.items():
            producer = self.producers.get(producer_id)
            assert producer is not None and producer.epoch == epoch
            assert [sent[:3] for sent in producer.batches] == batches[-KEPT_BATCHES:]


ProducersAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestProducers = ProducersAgainstModel.TestCase


@given(st.lists(st.integers(0, 3 * EXPIRY_MS), max_size=10), st.integers(0, 4 * EXPIRY_MS))
def test_only_silent_producers_are_forgotten(seen: list[int], now_ms: int) -> None:
    producers = Producers()
    for producer_id, seen_ms in enumerate(seen):
        producers.note(producer_id, 0, SentBatch(0, 0, 0, 0, -1), seen_ms, 1)
    silent = [producer_id for producer_id, seen_ms in enumerate(seen) if now_ms - seen_ms > EXPIRY_MS]
    assert producers.expire(now_ms) == len(silent)
    assert [producers.get(producer_id) is None for producer_id in range(len(seen))] == [
        producer_id in silent for producer_id in range(len(seen))
    ]


def test_after_a_marker_with_a_new_epoch_sequences_begin_at_0() -> None:
    producers = Producers()
    producers.note(1, 4, SentBatch(0, 9, 0, 9, -1), 0, 0)
    producers.note_epoch(1, 5, 0)
    with pytest.raises(PenstockError, match="expected 0"):
        producers.check(1, 5, 10, 12)
    assert producers.check(1, 5, 0, 2) is None
    with pytest.raises(PenstockError, match="older than 5"):
        producers.check(1, 4, 10, 12)


def test_a_marker_of_an_earlier_coordinator_is_late_only_in_the_same_epoch() -> None:
    producers = Producers()
    producers.note_epoch(1, 5, 0, coordinator_epoch=7)
    with pytest.raises(PenstockError) as refused:
        producers.check_marker(1, 5, 6)
    assert refused.value.code is Code.COORDINATOR_FENCED
    producers.check_marker(1, 6, 6)
    producers.note_epoch(1, 6, 0, coordinator_epoch=6)
    producers.check_marker(1, 6, 6)
    producers.note(1, 7, SentBatch(0, 0, 9, 9, -1), 0, 0)
    producers.check_marker(1, 7, 0)


def test_a_marker_of_no_coordinator_fences_none() -> None:
    producers = Producers()
    for epoch in (7, NO_COORDINATOR):
        producers.note_epoch(1, 5, 0, epoch)
    producers.check_marker(1, 5, 7)
    with pytest.raises(PenstockError):
        producers.check_marker(1, 5, 6)


@pytest.mark.parametrize("epoch", [1 << 30, (1 << 31) - 1])
def test_an_epoch_no_coordinator_can_have_is_not_kept(epoch: int) -> None:
    """Earlier releases kept it when a client named it, and then took no marker of a coordinator any more."""
    producers = Producers()
    producers.note_epoch(1, 5, 0, coordinator_epoch=3)
    producers.note_epoch(1, 5, 0, coordinator_epoch=epoch)
    rows = producers.dump()
    assert rows[0][-1] == 3
    rows[0][-1] = epoch
    for known in (producers, Producers.restore(rows)):
        known.check_marker(1, 5, 3)
