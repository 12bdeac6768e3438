"""Leader epochs against a model: a plain list of which epoch wrote each offset."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.log.epochs import LeaderEpochs

# Appends under rising epochs: (epoch step, records written in it).
histories = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), max_size=8)


def play(history: list[tuple[int, int]]) -> tuple[LeaderEpochs, list[int]]:
    written: list[Any] = []
    epochs, epoch = LeaderEpochs(), -1
    for step, count in history:
        epoch += step
        assert epochs.note(epoch, len(written))
        assert not epochs.note(epoch, len(written) + 1)
        assert not epochs.note(epoch - 1, len(written))
        written += [epoch] * count
    return epochs, written


@given(histories)
def test_every_offset_is_of_the_epoch_that_wrote_it(history: list[tuple[int, int]]) -> None:
    epochs, written = play(history)
    assert [epochs.at(offset) for offset in range(len(written))] == written
    starts = [start for _, start in epochs.entries]
    assert starts == sorted(set(starts))


@given(histories, st.integers(-1, 30))
def test_an_epoch_ends_where_a_later_one_begins(history: list[tuple[int, int]], asked: int) -> None:
    epochs, written = play(history)
    known = [epoch for epoch, _ in epochs.entries if epoch <= asked]
    found, end = epochs.end_of(asked, len(written))
    if not epochs.entries or asked < 0:
        assert (found, end) == (-1, -1)
    elif not known:
        assert (found, end) == (asked, epochs.entries[0][1])
    else:
        assert found == known[-1]
        assert all(epoch > found for epoch in written[end:])
        assert all(epoch <= found for epoch in written[:end])


@given(histories, st.integers(0, 20))
def test_cutting_the_end_and_dropping_the_beginning(history: list[tuple[int, int]], at: int) -> None:
    epochs, written = play(history)
    kept = LeaderEpochs(epochs.entries)
    kept.cut_to(at)
    assert [kept.at(offset) for offset in range(min(at, len(written)))] == written[:at]
    assert all(start < at for _, start in kept.entries)
    later = LeaderEpochs(epochs.entries)
    later.drop_before(at)
    assert [later.at(offset) for offset in range(at, len(written))] == written[at:]
    assert all(start >= at for _, start in later.entries)
    assert later.latest == epochs.latest
