"""A pass that keeps ranges of offsets, against a model: what is needed is there byte for byte, at its offset."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.compaction.sealed_log import LIMIT, SealedLog, rows_of

from penstock.records.batch import decode_header
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.records.control import Marker
from penstock.records.record import iterate_batch
from penstock.storage.compaction.job import Job, Range
from penstock.storage.compaction.kept_ranges import KeptRanges, coarser, count_of, joined, within
from penstock.storage.compaction.pace import Pace
from penstock.storage.compaction.reading import SealedSegment
from penstock.testing.faulty_disk import FaultyDisk

Stored = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def stored(log: SealedLog) -> list[Stored]:
    """All data records: offset, time, key, value, headers."""
    return [
        (offset, time, record.key, record.value, tuple(record.headers))
        for header, batch in log.batches()
        if not header.is_control
        for offset, time, record in iterate_batch(batch, LIMIT)
    ]


def thin(log: SealedLog, *kept: Range, **changes: Any) -> Any:
    return log.compact(kept=kept, dirty_from=log.sources[-1].next_offset, max_keys=1, **changes)


def sealed(codec: Codec = Codec.NONE, batches: int = 4, per_batch: int = 5, **fields: Any) -> SealedLog:
    log = SealedLog(FaultyDisk())
    for number in range(batches):
        records = [(b"k%d" % (at % 2), b"v%d.%d" % (number, at), [("h", b"1")], 10 * number + at) for at in range(5)]
        log.append(build_batch(records[:per_batch], codec=codec, **fields))
    log.seal()
    return log


@pytest.mark.parametrize("codec", list(Codec))
def test_records_in_the_ranges_stay_whatever_their_keys(codec: Codec) -> None:
    log = sealed(codec)
    before = {row[0]: row for row in stored(log)}
    batches = [batch for _, batch in log.batches()]
    result = thin(log, (1, 2), (5, 9), (13, 13))
    assert stored(log) == [before[at] for at in (1, 2, *range(5, 10), 13)]
    assert [header.base_offset for header, _ in log.batches()] == [0, 5, 10]
    assert log.batches()[1][1] == batches[1], "kept whole, copied as it was"
    assert (result.records_kept, result.records_dropped) == (8, 12)
    assert log.sources[-1].next_offset == 20


def test_of_what_nobody_needs_an_empty_segment_stays_for_its_offsets() -> None:
    log = sealed()
    result = thin(log)
    assert [(source.base, source.next_offset, source.size) for source in log.sources] == [(0, 20, 0)]
    assert result.bytes_kept == 0


def test_nothing_is_written_if_nothing_goes() -> None:
    log = sealed()
    files = log.files()
    assert not thin(log, (0, 19)).changed
    assert log.files() == files
    thin(log, (3, 4))
    files = log.files()
    assert not thin(log, (3, 4)).changed
    assert log.files() == files


def test_the_last_batch_of_a_producer_leaves_its_header() -> None:
    log = sealed(producer_id=5, producer_epoch=2, base_sequence=30)
    thin(log, (6, 6), last_batches=(15,))
    assert [(header.base_offset, header.record_count, header.base_sequence) for header, _ in log.batches()] == [
        (5, 1, 30),
        (15, 0, 30),
    ]


def test_a_marker_stays_while_what_it_speaks_about_does_and_readers_may_wait_for_it() -> None:
    log = SealedLog(FaultyDisk())
    log.write((b"a", b"1"), (b"b", b"1"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.mark(7, Marker.ABORT)
    log.write((b"c", b"1"))
    log.seal()
    aborted = ((7, 0, 2),)
    thin(log, (1, 1), aborted=aborted)
    assert [row[0] for row in log.rows()] == [
        1,
    ], "needed, though nobody who reads committed gets it"
    assert [header.last_offset for header, _ in log.batches()] == [1, 2]
    thin(log, aborted=aborted)
    assert [header.base_offset for header, _ in log.batches()] == [2], "a reader may be between the two"
    thin(log, aborted=aborted, now_ms=0)
    thin(log, aborted=aborted, now_ms=100_000)
    assert log.batches() == []


def test_a_marker_in_a_later_segment_is_known_to_speak_about_what_lies_before() -> None:
    log = SealedLog(FaultyDisk())
    log.write((b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.seal()
    log.mark(7, Marker.ABORT)
    log.write((b"c", b"1"), (b"c", b"2"))
    log.seal()
    first, second = log.sources
    marker = log.batches()[1]
    log.sources = [second]
    thin(log, (2, 2), aborted=((7, 0, 1),), open_before=(7,))
    assert log.batches()[0] == marker
    segment = SealedSegment(log.disk, log.sources[0], Pace(0, lambda: 0.0, lambda _: None))
    assert [row[:3] for row in segment.card.transactions.aborted()] == [(7, 0, 1)]
    log.sources = [first, *log.sources]
    assert [row[0] for row in log.rows()] == [0, 2]


def test_a_job_with_ranges_travels() -> None:
    job = replace(sealed().job(), kept=((1, 2), (4, 4)), open_before=(7, 8))
    assert Job.decode(job.encode()) == job
    assert Job.decode(replace(job, kept=None).encode()).kept is None
    assert Job.decode(replace(job, kept=()).encode()).kept == ()


@pytest.mark.parametrize("ranges", [((4, 3),), ((5, 6), (1, 2)), ((1, 3), (3, 4)), ((1, 2), (3, 4)), ((-3, 2),)])
def test_ranges_that_are_not_sorted_and_apart_are_no_job(ranges: tuple[Range, ...]) -> None:
    with pytest.raises(ValueError, match="no range, or not behind"):
        replace(sealed().job(), kept=ranges)


offsets = st.sets(st.integers(0, 59), max_size=40)


def as_ranges(some: set[int]) -> list[Range]:
    return joined((at, at) for at in sorted(some))


def as_set(ranges: list[Range]) -> set[int]:
    return {at for first, last in ranges for at in range(first, last + 1)}


@given(offsets, st.integers(0, 59), st.integers(0, 59), st.integers(1, 12))
def test_ranges_say_what_sets_say(some: set[int], first: int, last: int, most: int) -> None:
    ranges = as_ranges(some)
    assert as_set(ranges) == some and count_of(ranges) == len(some)
    assert as_set(within(ranges, first, last)) == some & set(range(first, last + 1))
    rule, asked = KeptRanges(ranges), set(range(first, max(first, last) + 1))
    assert rule.holds(min(asked), max(asked)) == (asked <= some)
    assert rule.touches(min(asked), max(asked)) == bool(asked & some)
    fewer = coarser(ranges, most)
    assert len(fewer) <= most and as_set(fewer) >= some
    assert fewer == ranges or len(ranges) > most


values = st.sampled_from([b"", b"v", b"w" * 90]) | st.none()
records = st.tuples(st.sampled_from([b"a", b"b", None]), values, st.integers(-1, 5000))
writes = st.tuples(
    st.lists(records, min_size=1, max_size=6),
    st.sampled_from([Codec.NONE, Codec.LZ4, Codec.ZSTD, Codec.GZIP]),
    st.sampled_from([-1, 7, 8]),
    st.booleans(),
)
histories = st.lists(st.lists(writes, min_size=1, max_size=4), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(histories, st.lists(offsets, min_size=1, max_size=3), st.sampled_from([1, 500, 100_000]))
def test_passes_over_random_logs(history: list[list[Any]], passes: list[set[int]], segment_bytes: int) -> None:
    """Each pass needs no more than the one before. Nothing but what it needs is left, and that is as it was."""
    log = SealedLog(FaultyDisk())
    last_of: dict[int, int] = {}
    for segment in history:
        for some, codec, producer_id, is_transactional in segment:
            fields: dict[str, Any] = {}
            if producer_id >= 0:
                fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
                fields["transactional"] = is_transactional and producer_id == 8
            rows = [(key, value, [("h", value)], time) for key, value, time in some]
            base = log.append(build_batch(rows, codec=codec, **fields))
            if producer_id >= 0:
                last_of[producer_id] = base
            if fields.get("transactional"):
                log.mark(8, Marker.COMMIT)
        log.seal()
    before = {row[0]: row for row in stored(log)}
    end, needed = log.next_offset, set(range(log.next_offset))
    for asked in passes:
        needed &= asked
        thin(log, *as_ranges(needed), segment_bytes=segment_bytes, last_batches=tuple(last_of.values()))
        assert stored(log) == [row for at, row in before.items() if at in needed]
        assert log.sources[0].base == 0 and log.sources[-1].next_offset == end
        bases = {header.base_offset for header, _ in log.batches()}
        assert bases >= set(last_of.values()), "producers are known by them"
        for source in log.sources:
            list(SealedSegment(log.disk, source, Pace(0, lambda: 0.0, lambda _: None)).batches())
        for header, batch in log.batches():
            assert decode_header(memoryview(batch)) == header and len(rows_of(batch)) == header.record_count
