"""What a log knows of transactions: the last stable offset and the aborted ones, over segments, restarts and damage."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulated_broker import HUGE, Stored, split, virtual
from tests.simulated_log import DIRECTORY, Bench, contents, copy_disk, open_log

from penstock.records.batch import decode_header
from penstock.records.control import Marker, build_marker, decode_marker
from penstock.records.record import iterate_batch
from penstock.storage.log import card as cards
from penstock.storage.log.card import Card
from penstock.storage.log.options import LogOptions
from penstock.storage.log.reading import aborted_in, read_slice, warm
from penstock.storage.log.segment import NotReady
from penstock.storage.log.transactions import AbortedTransaction, Transactions
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.virtual_clock import run_virtual

SMALL = LogOptions(segment_bytes=1024, index_interval_bytes=200)
LIMIT = 1 << 20


@dataclass(slots=True)
class Story:
    """What was done to a log, and what a reader of committed records must see of it."""

    bench: Bench
    decided: dict[int, bool] = field(default_factory=dict)
    """Offset of a record to whether it was committed; undecided ones are missing."""
    begun: dict[int, list[int]] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)

    async def write(self, producer: int) -> None:
        sequence = self.sequences.get(producer, 0)
        fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}
        done = await self.bench.write(b"x" * 40, b"y" * 40, **fields)
        self.sequences[producer] = sequence + 2
        self.begun.setdefault(producer, []).extend(range(done.base_offset, done.last_offset + 1))

    async def write_plain(self) -> None:
        done = await self.bench.write(b"plain")
        self.decided[done.base_offset] = True

    async def end(self, producer: int, marker: Marker) -> None:
        batch = bytearray(build_marker(producer, 0, marker, 0, self.bench.clock.now_ms()))
        log = self.bench.log
        log.append_marker(memoryview(batch), log.state.epochs.latest, 0)
        await self.bench.commit()
        log.settle_transactions(log.visible_end)
        for offset in self.begun.pop(producer, ()):
            self.decided[offset] = marker is Marker.COMMIT

    def stable_end(self) -> int:
        undecided = [offsets[0] for offsets in self.begun.values()]
        return min([*undecided, self.bench.log.visible_end])

    def expected(self) -> list[int]:
        return sorted(o for o, committed in self.decided.items() if committed and o < self.stable_end())


async def read_committed(bench: Bench, max_bytes: int = HUGE) -> list[int]:
    """Offsets as a client with read_committed shows them: it skips by the aborted list and the markers it meets."""
    log, shown, offset = bench.log, [], bench.log.log_start
    while offset < log.settled_end:
        for _ in range(8):
            try:
                data = read_slice(log, offset, log.settled_end, max_bytes, at_least_one=True)
                aborted = aborted_in(log, offset, data, log.settled_end) if data is not None else []
                break
            except NotReady:
                await warm(log, offset, LIMIT)
        else:
            raise AssertionError(f"never ready at {offset}")
        assert data is not None
        assert [row.first_offset for row in aborted] == sorted(row.first_offset for row in aborted)
        batches = split(data.file.read_at(data.size, data.position))
        shown += _shown(batches, aborted, offset)
        offset = batches[-1].header.last_offset + 1
    return shown


def _shown(batches: list[Stored], aborted: list[AbortedTransaction], start: int) -> list[int]:
    shown, queue, skipped = [], sorted(aborted, key=lambda row: row.first_offset), set()
    for batch in batches:
        header = batch.header
        while queue and queue[0].first_offset <= header.last_offset:
            skipped.add(queue.pop(0).producer_id)
        if header.is_control:
            if decode_marker(batch.data) is Marker.ABORT:
                skipped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipped):
            shown += [offset for offset, _, _ in iterate_batch(batch.data, LIMIT) if offset >= start]
    return shown


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 3)),
        st.tuples(st.just("commit"), st.integers(1, 3)),
        st.tuples(st.just("abort"), st.integers(1, 3)),
        st.tuples(st.just("plain"), st.just(0)),
        st.tuples(st.just("tend"), st.just(0)),
        st.tuples(st.just("checkpoint"), st.just(0)),
    ),
    max_size=40,
)


async def act(story: Story, steps: list[tuple[str, int]]) -> None:
    for verb, producer in steps:
        if verb == "write":
            await story.write(producer)
        elif verb in ("commit", "abort"):
            await story.end(producer, Marker[verb.upper()])
        elif verb == "plain":
            await story.write_plain()
        elif verb == "tend":
            await story.bench.tend()
        else:
            await story.bench.checkpoint()


def drop_nothing(name: str) -> bool:
    return False


def drop_cards(name: str) -> bool:
    return name.endswith((".index", ".checkpoint"))


def drop_state(name: str) -> bool:
    return name == "state"


def drop_all_but_bytes(name: str) -> bool:
    return not name.endswith(".log")


@pytest.mark.parametrize("lost", [drop_nothing, drop_cards, drop_state, drop_all_but_bytes])
@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_readers_of_committed_records_see_those_and_no_others(
    lost: Callable[[str], bool], steps: list[tuple[str, int]]
) -> None:
    async def body() -> None:
        story = Story(await open_log(FaultyDisk(max_delay_s=0.0), SMALL))
        await act(story, steps)
        assert story.bench.log.settled_end == story.stable_end()
        assert await read_committed(story.bench) == story.expected()
        assert await read_committed(story.bench, max_bytes=300) == story.expected()

        disk = copy_disk(story.bench.disk)
        for name in contents(disk, DIRECTORY):
            if lost(name):
                disk.unlink(f"{DIRECTORY}/{name}")
        again = await open_log(disk, SMALL)
        assert again.log.settled_end == story.stable_end()
        assert again.log.active_transactions.open == {pid: offsets[0] for pid, offsets in story.begun.items()}
        assert await read_committed(again) == story.expected()
        assert again.failures == []

    run_virtual(body, 3)


@virtual
async def test_a_commit_is_read_only_when_its_marker_is_visible() -> None:
    story = Story(await open_log(FaultyDisk(max_delay_s=0.0)))
    await story.write(1)
    log = story.bench.log
    batch = bytearray(build_marker(1, 0, Marker.COMMIT, 0, 0))
    log.append_marker(memoryview(batch), log.state.epochs.latest, 0)
    assert log.first_unstable == 0, "the marker is not durable yet"
    await story.bench.commit()
    log.settle_transactions(log.visible_end)
    assert log.first_unstable == -1
    assert log.settled_end == 3


@virtual
async def test_a_damaged_card_is_made_again_with_the_transactions_that_were_open_before_it() -> None:
    story = Story(await open_log(FaultyDisk(max_delay_s=0.0), SMALL))
    await story.write(1)
    for _ in range(20):
        await story.write(2)
        await story.bench.tend()
    await story.end(1, Marker.ABORT)
    await story.end(2, Marker.COMMIT)
    await story.bench.checkpoint()
    disk = copy_disk(story.bench.disk)
    indexes = [name for name in contents(disk, DIRECTORY) if name.endswith(".index")]
    assert len(indexes) > 2
    for name in indexes:
        file = disk.open(f"{DIRECTORY}/{name}")
        last = file.read_at(1, file.size() - 1)
        file.write_at(bytes((last[0] ^ 1,)), file.size() - 1)  # the entries' checksum; the summary stays good
    again = await open_log(disk, SMALL)
    assert await read_committed(again) == story.expected()


def test_a_card_keeps_its_transactions() -> None:
    card = Card(10, {7: 3})
    for batch in (
        build_marker(7, 0, Marker.ABORT, 0, 0),
        build_marker(8, 0, Marker.ABORT, 0, 0),
    ):
        placed = bytearray(batch)
        card.transactions.open.setdefault(8, 10)
        card.take(decode_header(placed)._replace(base_offset=11), memoryview(placed), 100)
    again = cards.decode(card.encode(), "x")
    assert again.transactions == card.transactions
    assert again.transactions.aborted() == [AbortedTransaction(7, 3, 11, 10), AbortedTransaction(8, 10, 11, 12)]


def test_only_transactions_that_overlap_are_named() -> None:
    rows = [AbortedTransaction(1, 0, 9, 5), AbortedTransaction(2, 5, 12, 13), AbortedTransaction(3, 20, 25, 26)]
    known = Transactions.kept({}, rows)
    assert [row.producer_id for row in known.overlapping(0, 30)] == [1, 2, 3]
    assert [row.producer_id for row in known.overlapping(10, 30)] == [2, 3]
    assert [row.producer_id for row in known.overlapping(0, 5)] == [1]
    assert [row.producer_id for row in known.overlapping(13, 20)] == []


@virtual
async def test_a_marker_of_an_epoch_that_is_over_is_refused() -> None:
    bench = await open_log(FaultyDisk(max_delay_s=0.0))
    await bench.write(b"x", producer_id=1, producer_epoch=3, base_sequence=0, transactional=True)
    with pytest.raises(Exception, match="older than 3"):
        bench.log.append_marker(memoryview(bytearray(build_marker(1, 2, Marker.ABORT, 0, 0))), 0, 0)
    assert bench.log.first_unstable == 0
