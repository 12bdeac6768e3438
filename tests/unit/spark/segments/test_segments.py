"""Reading a partition from its files: which offsets, which records, and what changes under the reader."""

import pickle
from pathlib import Path
from random import Random

import pytest
from tests.simulated_broker import small_blocks
from tests.simulated_log import Bench, open_log
from tests.unit.spark.segments.stored_topic import StoredTopic, read_piece, rows_in
from tests.unit.storage.compaction.sealed_log import Row, SealedLog
from tests.unit.storage.log.test_transactions import SMALL, Story, read_committed
from tests.unit.storage.offline.test_inspection import OPTIONS, written
from tests.unit.storage.offline.test_repair import repair

from penstock.records.compression import Codec
from penstock.records.control import Marker
from penstock.records.record import iterate_batch
from penstock.spark.segments import segments
from penstock.spark.segments.segments import SegmentsGone
from penstock.storage.compaction.swap import prepare_swap
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.virtual_clock import run_virtual


@pytest.fixture
def stored(tmp_path: Path) -> StoredTopic:
    return StoredTopic(tmp_path)


def write_numbers(log: SealedLog, count: int, *, per_batch: int = 3, per_segment: int = 4, codec: int = 0) -> None:
    """Batches of records `number: value`; the last ones are not sealed."""
    for batch in range(count // per_batch):
        numbers = range(batch * per_batch, (batch + 1) * per_batch)
        log.write(*((b"%d" % number, b"v" * (number % 50)) for number in numbers), time=batch, codec=codec)
        if (batch + 1) % per_segment == 0:
            log.seal()


def transact(log: SealedLog, producer: int, key: bytes) -> int:
    return log.write(
        (key, b"in a transaction"), producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
    )


def offsets(rows: list[Row]) -> list[int]:
    return [row[0] for row in rows]


@pytest.mark.parametrize("codec", list(Codec))
def test_sealed_segments_are_read_and_what_is_being_written_is_not(stored: StoredTopic, codec: int) -> None:
    write_numbers(stored.log, 100, codec=codec)
    sealed_end = stored.log.sources[-1].next_offset
    assert sealed_end < stored.log.next_offset
    pieces, reached = stored.plan()
    assert reached == sealed_end
    rows = stored.read(pieces)
    assert rows == stored.log.rows()
    assert offsets(rows) == list(range(sealed_end))


def test_any_range_gives_just_its_offsets(stored: StoredTopic) -> None:
    write_numbers(stored.log, 60)
    everything, sealed_end = stored.log.rows(), stored.log.sources[-1].next_offset
    for start in range(sealed_end + 3):
        for end in range(start, sealed_end + 3, 4):
            pieces, reached = stored.plan(start, end)
            assert reached == max(start, min(end, sealed_end))
            assert stored.read(pieces) == [row for row in everything if start <= row[0] < end]


def test_pieces_are_of_one_size_and_any_part_of_one_can_be_read(
    stored: StoredTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_numbers(stored.log, 600, per_segment=20)
    whole = stored.log.rows()
    for most, least_pieces in ((1 << 30, 1), (6000, 5), (700, 20)):
        monkeypatch.setattr(segments, "PIECE_BYTES", most)
        pieces, _ = stored.plan()
        assert len(pieces) >= least_pieces
        assert all(0 < piece.size_bytes <= most for piece in pieces)
        assert sum(piece.size_bytes for piece in pieces) == pytest.approx(
            sum(source.size for source in stored.log.sources), rel=0.05
        )
        assert stored.read(pieces) == whole
    part = pickle.loads(pickle.dumps(pieces[3]))._replace(first=pieces[3].first + 1, end=pieces[3].end - 1)  # noqa: S301
    assert offsets(read_piece(stored.path, part)) == list(range(part.first, part.end))


def test_many_small_segments_make_pieces_of_a_bounded_number_of_files(stored: StoredTopic) -> None:
    write_numbers(stored.log, 150, per_batch=1, per_segment=1)
    pieces, reached = stored.plan()
    assert [(piece.first, piece.end) for piece in pieces] == [(0, 64), (64, 128), (128, 150)]
    assert reached == 150 and stored.read(pieces) == stored.log.rows()


# --- transactions


def test_aborted_records_are_left_out_also_where_the_marker_is_segments_later(stored: StoredTopic) -> None:
    log = stored.log
    transact(log, 1, b"aborted later")  # 0
    transact(log, 2, b"committed later")  # 1
    log.write((b"plain", b"x"))  # 2
    log.seal()
    transact(log, 1, b"aborted later")  # 3
    log.seal()
    log.mark(1, Marker.ABORT)  # 4
    transact(log, 1, b"committed")  # 5
    log.seal()
    log.mark(1, Marker.COMMIT)  # 6
    log.mark(2, Marker.COMMIT)  # 7
    log.seal()
    assert offsets(stored.rows()) == [1, 2, 5]
    assert offsets(stored.rows(read_committed=False)) == [0, 1, 2, 3, 5]
    assert [offsets(stored.rows(at, at + 1)) for at in range(8)] == [[], [1], [2], [], [], [5], [], []]


def test_what_sealed_segments_do_not_decide_is_the_brokers_to_tell(stored: StoredTopic) -> None:
    log = stored.log
    log.write((b"plain", b"x"))  # 0
    transact(log, 1, b"ends in what is being written")  # 1
    log.seal()
    log.write((b"plain", b"x"))  # 2
    log.seal()
    log.mark(1, Marker.ABORT)  # not sealed
    assert stored.plan()[1] == 1
    assert offsets(stored.rows()) == [0]
    assert stored.plan(1) == ([], 1)
    assert stored.plan(2) == ([], 2)
    assert stored.plan(2, read_committed=False)[1] == 3
    assert offsets(stored.rows(read_committed=False)) == [0, 1, 2]
    ((piece,), _) = stored.plan(read_committed=False)
    with pytest.raises(SegmentsGone, match="offsets 0 to 3 of partition 0 of topic 'orders'"):
        segments.read(stored.path, piece, read_committed=True)
    log.seal()
    assert offsets(stored.rows()) == [0, 2]


def test_the_end_of_a_transaction_is_not_looked_for_for_ever(
    stored: StoredTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_MOST_CARDS", 4)
    transact(stored.log, 1, b"k")
    for _ in range(5):
        stored.log.write((b"plain", b"x"))
        stored.log.seal()
    stored.log.mark(1, Marker.COMMIT)
    stored.log.seal()
    ((piece,), _) = stored.plan(0, 1)
    with pytest.raises(SegmentsGone):
        segments.read(stored.path, piece, read_committed=True)
    assert offsets(read_piece(stored.path, piece, read_committed=False)) == [0]
    ((later,), _) = stored.plan(3, 4)
    assert offsets(read_piece(stored.path, later)) == [3]


@pytest.mark.parametrize("seed", range(20))
def test_committed_records_are_those_a_client_of_the_log_shows(tmp_path: Path, seed: int) -> None:
    """The log's own answers and their list of aborted transactions, skipped as clients do, against its files."""
    random = Random(seed)

    async def main() -> None:
        bench = await open_log(FaultyDisk(max_delay_s=0.0), SMALL)
        story = Story(bench)
        for _ in range(80):
            step = random.random()
            producer = random.randrange(4)
            if step < 0.5:
                await story.write(producer)
            elif step < 0.65:
                await story.write_plain()
            elif story.begun.get(producer):
                await story.end(producer, random.choice(list(Marker)))
            if step > 0.8:
                await bench.tend()
        await bench.tend()
        stored = StoredTopic(tmp_path)
        stored.take(bench.disk)
        pieces, reached = stored.plan(0, bench.log.settled_end)
        sealed = [segment for segment in bench.log.segments if segment.sealed]
        decided = min(sealed[-1].next_offset, sealed[-1].first_open if sealed[-1].first_open >= 0 else 1 << 40)
        assert reached == min(decided, bench.log.settled_end) and len(sealed) > 3
        expected = [offset for offset in await read_committed(bench) if offset < reached]
        assert expected == [offset for offset in story.expected() if offset < reached]
        assert offsets(stored.read(pieces)) == expected
        await check_uncommitted(bench, stored)

    with small_blocks(512):
        run_virtual(main, seed)


async def check_uncommitted(bench: Bench, stored: StoredTopic) -> None:
    pieces, reached = stored.plan(read_committed=False)
    batches = [each for each in await bench.read_all() if not each.header.is_control]
    written = [row for each in batches for row in iterate_batch(each.data, 1 << 20)]
    found = stored.read(pieces, read_committed=False)
    assert [(row[0], row[3]) for row in found] == [(at, record.value) for at, _, record in written if at < reached]


# --- compaction, repair, leftovers


def write_keys(log: SealedLog, count: int) -> None:
    """Segments of two batches, most of whose records have a later one with the same key."""
    for number in range(count):
        log.write((b"k%d" % (number % 5), b"%d" % number), (b"once %d" % (number // 7), b"%d" % number), time=number)
        if number % 2:
            log.seal()


@pytest.mark.parametrize("segment_bytes", [1, 1 << 20], ids=["one by one", "joined"])
def test_a_compacted_log_is_read_over_its_gaps(stored: StoredTopic, segment_bytes: int) -> None:
    write_keys(stored.log, 40)
    planned, _ = stored.plan()
    before = stored.log.rows()
    stored.log.compact(segment_bytes=segment_bytes)
    after = stored.log.rows()
    assert 0 < len(after) < len(before)
    assert stored.rows() == after
    assert stored.plan()[1] == stored.log.next_offset
    assert stored.read(planned) == after, "a piece planned before finds what the broker would send now"
    for start in range(0, 80, 3):
        assert stored.rows(start, start + 10) == [row for row in after if start <= row[0] < start + 10]


def test_segments_that_compaction_emptied_are_stepped_over(stored: StoredTopic) -> None:
    for _ in range(3):
        stored.log.write((b"k", b"v"))
        stored.log.seal()
    stored.log.compact()
    assert [source.size for source in stored.log.sources][:2] == [0, 0]
    assert offsets(stored.rows()) == [2]
    assert stored.plan(0, 2) == ([], 2)


def test_batches_that_compaction_left_without_records_are_left_out(stored: StoredTopic) -> None:
    fields = {"producer_id": 3, "producer_epoch": 0}
    first = stored.log.write((b"k", b"v"), base_sequence=0, **fields)
    stored.log.write((b"k", b"w"))
    stored.log.seal()
    stored.log.compact(last_batches=(first,))
    assert [header.record_count for header, _ in stored.log.batches()] == [0, 1]
    assert offsets(stored.rows()) == [1]


def test_a_range_of_few_bytes_in_many_offsets_is_not_rounded_away(stored: StoredTopic) -> None:
    stored.log.write(*((b"k", b"v") for _ in range(3000)))
    stored.log.seal()
    stored.log.compact()
    assert stored.log.sources[0].size < 100
    assert offsets(stored.rows(2990, 3000)) == [2999]


@pytest.mark.parametrize("decided", [False, True], ids=["no swap", "swap"])
def test_what_a_crash_of_compaction_left_is_taken_as_a_start_would(stored: StoredTopic, decided: bool) -> None:
    write_keys(stored.log, 20)
    before, files = stored.log.rows(), set(stored.log.files())
    result = stored.log.clean(segment_bytes=1 << 20)
    assert any(name.endswith(".cleaned") for name in set(stored.log.files()) - files)
    if decided:
        assert prepare_swap(stored.disk, stored.log.directory, result)
    rows = stored.rows()
    if not decided:
        assert rows == before
        return
    assert len(rows) == result.records_kept < len(before)
    stored.log.compact(segment_bytes=1 << 20)
    assert rows == stored.log.rows()


def test_a_swap_that_cannot_be_followed_is_left_to_the_broker(stored: StoredTopic) -> None:
    write_keys(stored.log, 8)
    pieces, _ = stored.plan()
    (stored.directory / "swap").write_bytes(b"torn")
    assert stored.plan() == ([], 0)
    with pytest.raises(SegmentsGone, match=r"/swap: \d bytes are too few"):
        stored.read(pieces)


def test_a_repaired_log_has_no_records_where_its_voids_are(stored: StoredTopic) -> None:
    async def main() -> None:
        bench = await written()
        end = bench.log.end_offset
        (lost,) = [segment for segment in bench.log.segments if segment.base <= 5 < segment.next_offset]
        file = bench.disk.open(lost.path)
        file.write_at(b"\xff" * 9, 70)
        steps = repair(bench.disk, end)
        assert steps
        again = await open_log(bench.disk, OPTIONS, expected_end=end)
        for _ in range(6):
            await again.write(b"behind it" * 5)
            await again.tend()
        stored.take(bench.disk)
        sealed_end = again.log.active.base
        served = [row for each in await again.read_all() if not each.header.is_control for row in each.records]
        assert len(served) < again.log.end_offset, "nothing was lost"
        pieces, reached = stored.plan()
        assert reached == sealed_end > end
        assert [(row[0], row[3]) for row in stored.read(pieces)] == [row for row in served if row[0] < sealed_end]

    with small_blocks(128, 1 << 30):
        run_virtual(main, 1)


# --- retention and damage while it is read


def remove(stored: StoredTopic, *, below: int) -> None:
    for source in stored.log.sources:
        if source.next_offset <= below:
            name = Path(source.path)
            name.with_suffix(".index").unlink()
            name.unlink()


def test_segments_removed_after_they_were_opened_are_read_to_their_end(stored: StoredTopic) -> None:
    write_numbers(stored.log, 60)
    expected = stored.log.rows()
    ((piece,), reached) = stored.plan()
    reading = segments.read(stored.path, piece, read_committed=True)
    remove(stored, below=reached)
    assert rows_in(reading, piece) == expected


def test_segments_removed_before_they_were_opened_are_told_at_once(stored: StoredTopic) -> None:
    write_numbers(stored.log, 60)
    pieces, _ = stored.plan()
    remove(stored, below=12)
    with pytest.raises(SegmentsGone, match=r"offsets 0 to 60 of .*'orders' .*from the broker"):
        segments.read(stored.path, pieces[0], read_committed=True)
    assert stored.plan(0) == ([], 0), "the broker says what became of it"
    assert offsets(stored.rows(12)) == list(range(12, 60))


def test_offsets_below_the_logs_start_are_the_brokers_to_refuse(stored: StoredTopic) -> None:
    async def main() -> None:
        bench = await written()
        inside = next(segment.base + 1 for segment in bench.log.segments if segment.next_offset - segment.base > 1)
        await bench.upkeep.delete_records(bench.log, inside)
        stored.take(bench.disk)
        assert stored.plan(inside - 1) == ([], inside - 1)
        assert offsets(stored.rows(inside))[0] == inside

    run_virtual(main, 1)


@pytest.mark.parametrize("harm", ["damaged", "of a later release", "lost", "of another segment"])
def test_without_a_card_the_broker_goes_on(stored: StoredTopic, harm: str) -> None:
    write_numbers(stored.log, 60)
    pieces, _ = stored.plan()
    card = Path(stored.log.sources[2].path).with_suffix(".index")
    data = bytearray(card.read_bytes())
    if harm == "lost":
        card.unlink()
    elif harm == "damaged":
        data[-7] ^= 1
        card.write_bytes(data)
    elif harm == "of a later release":
        data[6] += 1
        card.write_bytes(data)
    else:
        card.write_bytes(Path(stored.log.sources[3].path).with_suffix(".index").read_bytes())
    with pytest.raises(SegmentsGone):
        stored.read(pieces)
    planned, reached = stored.plan()
    if harm == "damaged":  # only whoever reads all of it can tell
        assert reached == 60
        return
    assert reached == 24
    assert offsets(stored.read(planned)) == list(range(24))


def test_a_hole_ends_what_can_be_read(stored: StoredTopic) -> None:
    write_numbers(stored.log, 60)
    Path(stored.log.sources[2].path).unlink()
    assert stored.plan()[1] == 24
    assert stored.plan(25) == ([], 25)
    assert offsets(stored.rows(36)) == list(range(36, 60))


def test_nothing_is_written(stored: StoredTopic) -> None:
    write_keys(stored.log, 20)
    stored.log.clean()
    before = stored.names()
    stored.rows()
    stored.rows(read_committed=False)
    segments.stopped_topics(stored.path)
    segments.stopped_range(stored.path, stored.topic, stored.id, 0, read_committed=True)
    assert stored.names() == before
