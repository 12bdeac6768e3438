"""One pass: what it copies, rebuilds, merges, leaves alone, refuses."""

import random
from dataclasses import replace
from typing import Any

import orjson
import pytest
from crc32c import crc32c
from tests.simulated_broker import small_blocks
from tests.unit.storage.compaction.sealed_log import DIRECTORY, RETENTION_MS, SealedLog, load, run, split, values

from penstock.records.batch import (
    BATCH_HEADER,
    CRC_START,
    DELETE_HORIZON,
    HEADER_BYTES,
    decode_header,
    patch_append_time,
)
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.records.control import Marker
from penstock.storage.compaction.cleaning import clean, grouped
from penstock.storage.compaction.job import CompactionError, Group, Job, Result, Source
from penstock.storage.log.card import decode
from penstock.testing.faulty_disk import FaultyDisk

FAR = 1 << 62


def new_log() -> SealedLog:
    return SealedLog(FaultyDisk())


def forged(batch: bytes, **fields: int) -> bytes:
    """The batch with other header fields and a right checksum."""
    made = bytearray(batch)
    BATCH_HEADER.pack_into(made, 0, *decode_header(made)._replace(**fields))
    crc = crc32c(memoryview(made)[CRC_START:])
    BATCH_HEADER.pack_into(made, 0, *decode_header(made)._replace(crc=crc))
    return bytes(made)


# --- what stays


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_that_loses_a_record_keeps_its_place_and_its_producer(codec: Codec) -> None:
    log = new_log()
    fields = {"producer_id": 5, "producer_epoch": 2, "base_sequence": 40}
    log.write(*values([("a", "1"), ("b", "1"), ("c", "1")]), time=100, codec=codec, **fields)
    log.write(*values([("b", "2"), ("c", "2")]), time=300)
    log.seal()
    before = log.batches()
    log.compact()
    (header, _), second = log.batches()
    assert second == before[1]
    old = before[0][0]
    for name in ("base_offset", "leader_epoch", "last_offset_delta", "producer_id", "producer_epoch", "base_sequence"):
        assert getattr(header, name) == getattr(old, name), name
    assert header.last_sequence == 42
    assert (header.codec, header.record_count, header.base_timestamp, header.max_timestamp) == (codec, 1, 100, 100)
    assert log.rows() == [(0, 100, b"a", b"1"), (3, 300, b"b", b"2"), (4, 301, b"c", b"2")]


def test_a_batch_whose_records_all_stay_is_copied_byte_for_byte() -> None:
    """Also one that no compressor here would write the same way, with a header name that is no UTF-8."""
    log = new_log()
    odd = bytearray(build_batch([(b"a", b"1", [("xx", b"")], 1), (b"b", b"1", [], 2)], codec=Codec.NONE))
    at = odd.index(b"xx")
    odd[at : at + 2] = b"\xff\xfe"
    log.append(forged(bytes(odd)))
    log.write(*values([("gone", "1")]))
    log.write(*values([("gone", "2")]), codec=Codec.GZIP)
    log.seal()
    before = [batch for _, batch in log.batches()]
    log.compact()
    assert [batch for _, batch in log.batches()] == [before[0], before[2]]
    log.write(*values([("b", "2")]))
    log.seal()
    log.compact()
    rebuilt = log.batches()[0][1]
    assert b"\xff\xfe" in rebuilt and rebuilt[HEADER_BYTES:] == before[0][HEADER_BYTES:][: len(rebuilt) - HEADER_BYTES]


def test_the_brokers_time_outlives_the_record_that_carried_it() -> None:
    log = new_log()
    batch = memoryview(bytearray(build_batch([(b"a", b"1", [], 5), (b"b", b"1", [], 900)])))
    patch_append_time(batch, decode_header(batch), 7777)
    log.append(bytes(batch))
    log.write(*values([("b", "2")]))
    log.seal()
    log.compact()
    assert log.batches()[0][0].max_timestamp == 7777
    assert log.rows()[0] == (0, 7777, b"a", b"1")


def test_the_largest_time_is_that_of_a_record_that_stays() -> None:
    log = new_log()
    log.write(*values([("t", None), ("a", "1"), ("b", "1")]), time=10)
    log.write(*values([("b", "2")]))
    log.seal()
    log.compact(now_ms=10_000)
    header = log.batches()[0][0]
    assert (header.max_timestamp, header.base_timestamp) == (11, 10_000 + RETENTION_MS)
    card = decode(log.files()[f"{0:020d}.index"], "card")
    assert (card.max_timestamp, card.max_timestamp_offset) == (11, 0)


def test_records_without_a_key_go() -> None:
    log = new_log()
    log.write((None, b"1"), (b"", b"2"))
    log.seal()
    log.compact()
    assert log.pairs() == [(b"", b"2")]


# --- tombstones and markers


def test_a_tombstone_goes_when_its_horizon_has_come_and_not_before() -> None:
    log = new_log()
    log.write(*values([("a", "1"), ("b", "1")]), time=50)
    log.write(*values([("x", "1"), ("a", None)]), time=60)
    log.seal()
    log.compact(now_ms=100)
    header = log.batches()[1][0]
    assert header.attributes & DELETE_HORIZON and header.base_timestamp == 100 + RETENTION_MS
    expected = [(1, 51, b"b", b"1"), (2, 60, b"x", b"1"), (3, 61, b"a", None)]
    assert log.rows() == expected
    before = log.files()
    assert not log.compact(now_ms=99 + RETENTION_MS).changed
    assert log.files() == before
    log.compact(now_ms=100 + RETENTION_MS)
    assert log.rows() == expected[:2]
    assert log.batches()[1][0].attributes & DELETE_HORIZON, "its times are still counted from there"


def test_times_that_do_not_fit_beside_a_horizon_leave_the_tombstone_where_it_is() -> None:
    log = new_log()
    log.append(build_batch([(b"a", None, [], -(1 << 63))]))
    log.write(*values([("b", "1")]))
    log.write(*values([("b", "2")]))
    log.seal()
    log.compact(now_ms=5)
    assert log.rows()[0] == (0, -(1 << 63), b"a", None)


@pytest.mark.parametrize("marker", list(Marker))
def test_a_marker_goes_only_after_the_records_it_decides(marker: Marker) -> None:
    log = new_log()
    log.write(*values([("a", "1")]), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    end = log.mark(7, marker)
    log.write(*values([("a", "2")]))
    log.seal()
    aborted = ((7, 0, end),) if marker is Marker.ABORT else ()

    def pass_at(now: int) -> list[tuple[int, bool]]:
        log.compact(now_ms=now, aborted=aborted)
        return [(header.base_offset, bool(header.attributes & DELETE_HORIZON)) for header, _ in log.batches()]

    assert pass_at(0) == [(1, False), (2, False)], "a reader may be between the record and its marker"
    assert pass_at(10) == [(1, True), (2, False)]
    assert pass_at(9 + RETENTION_MS) == [(1, True), (2, False)]
    assert pass_at(10 + RETENTION_MS) == [(2, False)]


def test_a_marker_is_kept_by_its_own_transaction_only() -> None:
    log = new_log()
    fields = {"producer_epoch": 0, "base_sequence": 0, "transactional": True}
    log.write(*values([("a", "1")]), producer_id=7, **fields)
    first = log.mark(7, Marker.COMMIT)
    second = log.mark(7, Marker.COMMIT)
    log.seal()
    log.compact()
    marked = {header.base_offset: header.attributes & DELETE_HORIZON for header, _ in log.batches()}
    assert not marked[first] and marked[second]


def test_aborted_records_go_at_once_and_hide_nothing() -> None:
    log = new_log()
    log.write(*values([("a", "committed")]))
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    first = log.write(*values([("a", "aborted")]), transactional=True, **fields)
    log.write(*values([("c", "of none")]), **fields)
    end = log.mark(7, Marker.ABORT)
    log.write(*values([("b", "not of it")]), transactional=True, **fields)
    log.mark(7, Marker.COMMIT)
    log.seal()
    log.compact(aborted=((7, first, end),))
    assert log.pairs() == values([("a", "committed"), ("c", "of none"), ("b", "not of it")])
    card = decode(log.files()[f"{0:020d}.index"], "card")
    assert [row[:3] for row in card.transactions.aborted()] == [(7, first, end)]
    log.compact(aborted=((7, first, end),))
    assert not decode(log.files()[f"{0:020d}.index"], "card").transactions.aborted(), "nothing left to skip"


def test_a_producers_last_batch_stays_without_its_records() -> None:
    log = new_log()
    fields = {"producer_id": 5, "producer_epoch": 3, "base_sequence": 8, "codec": Codec.LZ4}
    log.write(*values([("a", "1"), ("b", "1")]), time=90, **fields)
    log.write(*values([("a", "2"), ("b", "2")]))
    log.seal()
    log.compact(last_batches=(0,))
    header, batch = log.batches()[0]
    assert (header.base_offset, header.last_offset, header.last_sequence, header.producer_epoch) == (0, 1, 9, 3)
    assert (header.record_count, header.codec, header.max_timestamp, len(batch)) == (0, 0, 91, HEADER_BYTES)
    assert not log.compact(last_batches=(0,)).changed
    log.compact()
    assert [header.base_offset for header, _ in log.batches()] == [2]


def test_an_emptied_tombstone_batch_forgets_its_horizon() -> None:
    log = new_log()
    log.write(*values([("a", None)]), producer_id=5, producer_epoch=0, base_sequence=0)
    log.seal()
    log.compact(last_batches=(0,))
    assert log.batches()[0][0].attributes & DELETE_HORIZON
    log.compact(last_batches=(0,), now_ms=RETENTION_MS)
    header = log.batches()[0][0]
    assert (header.record_count, header.attributes, header.base_timestamp) == (0, 0, -1)


# --- segments


def test_a_segment_with_nothing_to_drop_is_left_alone() -> None:
    log = new_log()
    log.write(*values([("a", "1")]))
    log.seal()
    log.write(*values([("b", "1"), ("c", "1")]))
    log.seal()
    log.write(*values([("b", "2")]))
    log.seal()
    before = log.files()
    result = log.clean()
    assert [(group.replaced, group.changed) for group in result.groups] == [((0,), False), ((1,), True), ((3,), False)]
    assert result.changed[0].files == (f"{1:020d}.cleaned", f"{1:020d}.cleaned.index")
    written = {name for name in log.files() if name not in before}
    assert written == set(result.changed[0].files) and {name: log.files()[name] for name in before} == before
    assert result.bytes_written == sum(len(log.files()[name]) for name in written)


def test_the_part_before_the_first_difference_is_copied() -> None:
    with small_blocks(128):
        log = new_log()
        for number in range(30):
            log.write((b"%d" % number, b"v"))
        log.write(*values([("5", "later"), ("x", "1"), ("x", "2")]))
        log.write(*values([("last", "1")]))
        log.seal()
        expected = [row for row in log.rows() if row[0] not in (31,)]
        log.compact(dirty_from=31)  # the "5" of before is not looked for
        assert log.rows() == [row for row in expected if row[0] != 5]
        source = log.sources[0]
        assert len(load(log.disk, source.path)) == source.size == decode(log.files()[f"{0:020d}.index"], "card").size


def test_neighbours_are_merged_up_to_the_size_of_a_segment() -> None:
    log = new_log()
    sizes = []
    for number in range(6):
        log.write((b"%d" % number, b"v"), (b"same", b"v" * 200))
        sizes.append(log.seal().size)
    room = sizes[0] * 2
    first = log.compact(segment_bytes=room)
    assert [group.replaced for group in first.groups] == [(0, 2), (4, 6), (8, 10)]
    assert [group.next_offset for group in first.groups] == [4, 8, 12]
    assert sorted(log.files()) == sorted(f"{base:020d}{end}" for base in (0, 4, 8) for end in (".index", ".log"))
    assert log.pairs() == [(b"%d" % number, b"v") for number in range(6)] + [(b"same", b"v" * 200)]
    second = log.compact(segment_bytes=room)
    assert [group.replaced for group in second.groups] == [(0, 4), (8,)]
    assert [(source.base, source.next_offset) for source in log.sources] == [(0, 8), (8, 12)]


def test_offsets_of_a_merged_segment_fit_its_index() -> None:
    log = new_log()
    wide = build_batch([(b"a", b"1", [], 0)])
    for number in range(3):
        log.append(forged(wide, last_offset_delta=(1 << 30) - 1))
        log.write((b"%d" % number, b"1"))
        log.seal()
    result = log.compact(segment_bytes=1 << 20)
    assert [len(group.replaced) for group in result.groups] == [1, 1, 1]
    span = (1 << 31) - 1
    sources = [Source(0, 1, span - 1, "a"), Source(span - 1, 1, span, "b"), Source(span, 1, span + 1, "c")]
    assert [len(group) for group in grouped(sources, 100)] == [2, 1]


def test_a_segment_left_empty_still_stands_for_its_offsets() -> None:
    log = new_log()
    log.write(*values([("a", "1")]))
    log.seal()
    log.write(*values([("a", "2")]))
    log.seal()
    result = log.compact()
    assert result.groups[0] == Group((0,), 0, 1, changed=True)
    assert load(log.disk, f"{DIRECTORY}/{0:020d}.log") == b""
    card = decode(log.files()[f"{0:020d}.index"], "card")
    assert (card.base, card.next_offset, card.size) == (0, 1, 0)
    assert not log.compact().changed


def test_numbers_of_a_pass() -> None:
    log = new_log()
    log.write(*values([("a", "1"), ("b", "1"), ("c", "1")]))
    log.write(*values([("a", "2")]))
    size = log.seal().size
    result = log.compact()
    assert (result.records_read, result.records_kept, result.records_dropped, result.keys) == (4, 3, 1, 3)
    assert (result.bytes_read, result.bytes_kept) == (size, log.sources[0].size)
    assert result.bytes_dropped > 0


# --- a full map


def test_a_full_map_ends_the_pass_with_a_whole_segment() -> None:
    log = new_log()
    for number in range(3):
        log.write(*values([(f"{number}", "1"), (f"{number}", "2")]))
        log.write(*values([(f"x{number}", "1")]))
        log.seal()
    before = log.files()
    result = log.compact(max_keys=3)
    assert (result.cleaned_to, [group.replaced for group in result.groups]) == (3, [(0,)])
    assert [name for name in before if log.files()[name] != before[name]] == [f"{0:020d}.index", f"{0:020d}.log"]
    assert log.compact(max_keys=3).cleaned_to == 6
    assert log.compact(max_keys=3).cleaned_to == 9
    assert log.pairs() == values([("0", "2"), ("x0", "1"), ("1", "2"), ("x1", "1"), ("2", "2"), ("x2", "1")])


def test_a_segment_with_more_keys_than_fit_is_done_in_parts() -> None:
    log = new_log()
    for number in range(5):
        log.write(*values([(f"{number}", "1"), (f"{number}x", "1")]))
    log.write(*values([(f"{number}", "2") for number in range(5)]))
    log.write(*values([("t", None)]))
    log.seal()
    tail = log.batches()[-1]
    ends = [log.compact(max_keys=3).cleaned_to]
    assert log.batches()[-1] == tail, "behind the end of the map no horizon is set"
    while log.dirty_from < log.sources[-1].next_offset:
        ends.append(log.compact(max_keys=3).cleaned_to)
    assert ends == [4, 8, 15, 16], "batches are never split"
    assert log.pairs() == values([(f"{n}x", "1") for n in range(5)] + [(f"{n}", "2") for n in range(5)] + [("t", None)])


def test_behind_a_full_map_aborted_transactions_stay_listed() -> None:
    """Their records are copied for now; unlisted they would be taken for committed ones, and hide an older value."""
    log = new_log()
    log.write(*values([("a", "1"), ("a", "2")]))
    log.write(*values([("z", "committed")]))
    first = log.write(*values([("z", "aborted")]), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    marker = log.mark(7, Marker.ABORT)
    log.seal()
    assert log.compact(max_keys=1, aborted=((7, first, marker),)).cleaned_to < first
    assert log.pairs() == values([("a", "2"), ("z", "committed"), ("z", "aborted")])
    card = decode(log.files()[f"{0:020d}.index"], "card")
    assert [row[:3] for row in card.transactions.aborted()] == [(7, first, marker)]


# --- damage


def damaged_log() -> SealedLog:
    log = new_log()
    for number in range(4):
        log.write(*values([(f"{number % 2}", "v" * 20), ("k", f"{number}")]), time=number)
        if number % 2:
            log.seal()
    return log


def test_every_flipped_byte_is_found_before_anything_is_replaced() -> None:
    with small_blocks(128):
        log = damaged_log()
        files = log.files()
        job = log.job()
        for name, data in files.items():
            for position in range(len(data)):
                log.disk.flip_byte(f"{DIRECTORY}/{name}", position, 1 << position % 8)
                with pytest.raises(CompactionError, match=name.removesuffix(".index")[:20]):
                    run(log.disk, job)
                log.disk.flip_byte(f"{DIRECTORY}/{name}", position, 1 << position % 8)
        assert {name: data for name, data in log.files().items() if ".cleaned" not in name} == files
        run(log.disk, job)


def test_the_place_of_the_damage_is_named() -> None:
    log = damaged_log()
    second = split(load(log.disk, log.sources[1].path))[0][0].size
    log.disk.flip_byte(log.sources[1].path, second + 30)
    with pytest.raises(CompactionError, match=rf"{log.sources[1].path} cannot be compacted, byte 0: a block"):
        log.clean()


def test_a_segment_of_another_size_or_without_its_card_is_refused() -> None:
    log = damaged_log()
    file = log.disk.open(log.sources[0].path)
    file.truncate(log.sources[0].size - 1)
    with pytest.raises(CompactionError, match="bytes"):
        log.clean()
    log = damaged_log()
    log.disk.unlink(f"{DIRECTORY}/{0:020d}.index")
    with pytest.raises(CompactionError, match="card"):
        log.clean()
    log = damaged_log()
    log.disk.unlink(log.sources[1].path)
    with pytest.raises(CompactionError, match="gone"):
        log.clean()


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (forged(build_batch([(b"a", b"1", [], 0)], codec=Codec.ZSTD), attributes=Codec.LZ4), "cannot be opened"),
        (forged(build_batch([(b"a", b"1", [], 0)] * 2), last_offset_delta=3, record_count=3), "cannot be opened"),
        (forged(build_batch([(b"a", b"1", [], 0)]), attributes=7), "unknown compression codec 7"),
        (build_batch([(b"a", bytes(17 << 20), [], 0)], codec=Codec.ZSTD), "more than 16777216 bytes"),
        (forged(build_batch([(b"a", b"1", [], 0)]), magic=1), "no batch starts here"),
        (forged(build_batch([(b"a", b"1", [], 0)]), record_count=2), "2 records in 1 offsets"),
        (forged(build_batch([(b"a", b"1", [], 0)]), record_count=-1), "-1 records"),
    ],
)
def test_what_nobody_can_open_stops_the_pass(batch: bytes, why: str) -> None:
    log = new_log()
    log.write(*values([("a", "1")]))
    at = len(log.pending)
    log.append(batch)
    log.write(*values([("a", "2")]))
    log.seal()
    before = log.files()
    with pytest.raises(CompactionError, match=f"byte {at}: .*{why}"):
        log.clean()
    assert {name: log.files()[name] for name in before} == before


def test_a_batch_that_was_damaged_before_it_was_sealed_is_found_by_its_own_checksum() -> None:
    log = new_log()
    batch = bytearray(build_batch([(b"a", b"1", [], 0)]))
    batch[-2] ^= 1
    log.append(bytes(batch))
    log.seal()
    with pytest.raises(CompactionError, match="byte 0: a batch does not match its CRC-32C"):
        log.clean()


def test_bytes_that_change_between_two_reads_are_found() -> None:
    log = new_log()
    log.write(*values([("first", "1")]))
    log.write(*values([("a", "1"), ("a", "2")]))
    log.seal()
    calls = 0

    def proceed() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:  # after both reads, when the first difference has shown
            log.disk.flip_byte(log.sources[0].path, 3)

    with pytest.raises(CompactionError, match="read a second time"):
        clean(log.disk, log.job(), monotonic=lambda: 0.0, pause=lambda _: None, proceed=proceed)


def test_a_batch_out_of_order_is_refused_although_every_checksum_is_right() -> None:
    log = new_log()
    log.write(*values([("a", "1"), ("b", "1")]))
    log.next_offset = 1
    log.write(*values([("c", "1")]))
    log.seal()
    with pytest.raises(CompactionError, match="offsets 1 to 1, expected within 2"):
        log.clean()


def test_an_aborted_batch_need_not_be_opened() -> None:
    log = new_log()
    fields: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    odd = build_batch([(b"a", b"1", [], 0)], codec=Codec.ZSTD, transactional=True, **fields)
    log.append(forged(odd, attributes=decode_header(odd).attributes & ~7 | Codec.LZ4))
    end = log.mark(7, Marker.ABORT)
    log.seal()
    log.compact(aborted=((7, 0, end),))
    assert [header.is_control for header, _ in log.batches()] == [True]


def test_a_time_beyond_64_bits_stops_the_pass() -> None:
    log = new_log()
    far = build_batch([(b"a", b"1", [], FAR), (b"b", b"1", [], FAR + 5), (b"c", b"1", [], FAR)])
    log.append(forged(far, base_timestamp=(1 << 63) - 3))
    log.write(*values([("a", "2")]))
    log.seal()
    with pytest.raises(CompactionError, match="64 bits"):
        log.clean()


# --- the job


def test_jobs_and_results_survive_json() -> None:
    log = damaged_log()
    job = log.job(aborted=((1, 2, 3),), last_batches=(4,), bytes_per_second=5)
    assert Job.decode(job.encode()) == job
    result = log.clean()
    assert Result.from_fields(orjson.loads(result.encode())) == result


def test_a_job_with_a_hole_is_refused() -> None:
    job = damaged_log().job()
    for change in (
        {"segments": job.segments[::-1]},
        {"segments": ()},
        {"until": job.until + 1},
        {"max_keys": 0},
    ):
        with pytest.raises(ValueError, match="contiguous"):
            replace(job, **change)


def test_nothing_is_said_before_all_of_it_is_durable() -> None:
    log = damaged_log()
    names = [name for group in log.clean().changed for name in group.files]
    written = log.files()
    left = log.disk.after_power_cut()
    assert len(names) == 4
    assert [left.read_durable(f"{DIRECTORY}/{name}") for name in names] == [written[name] for name in names]


def test_large_batches_and_windows() -> None:
    """Batches larger than what is read at once, and blocks that no batch ends with."""
    chosen = random.Random(3)
    log = new_log()
    log.write((b"small", b"1"))
    log.write((b"large", chosen.randbytes(3 << 20)))
    log.write((b"small", b"2"), (b"other", chosen.randbytes(700_000)))
    log.write((b"middle", chosen.randbytes(900_000)))
    log.seal()
    expected = log.rows()[1:]
    log.compact()
    assert log.rows() == expected
    log.compact(now_ms=1)
