"""Batches out of a file: in stretches of any size, and never a byte that is not as it was written."""

from pathlib import Path
from unittest.mock import patch

import pytest
from tests.simulated_broker import small_blocks
from tests.unit.spark.segments.stored_topic import StoredTopic, read_piece

from penstock.records.batch import HEADER_BYTES, decode_header
from penstock.spark.segments import batches, segments
from penstock.spark.segments.segments import DamagedSegment


@pytest.fixture
def stored(tmp_path: Path) -> StoredTopic:
    """Batches of 100 bytes to 3 KB in one segment."""
    made = StoredTopic(tmp_path)
    with small_blocks(256):
        for number in range(40):
            made.log.write((b"k", b"v" * (number % 8 * 400)), time=number)
        made.log.seal()
    return made


@pytest.mark.parametrize("window", [256, 512, 4096, 1 << 20])
def test_stretches_of_any_size_hold_the_same_records(stored: StoredTopic, window: int) -> None:
    expected = stored.log.rows()
    with small_blocks(256), patch.object(batches, "_WINDOW_BYTES", window):
        assert stored.rows() == expected
        for start in range(0, 40, 3):
            for end in (start + 1, start + 7):
                assert stored.rows(start, end) == [row for row in expected if start <= row[0] < end]
        pieces, _ = stored.plan()
        stretches = [len(data) for data, _ in segments.read(stored.path, pieces[0], read_committed=True)]
        largest = max(header.size for header, _ in stored.log.batches())
        assert max(stretches) <= max(window, largest) + 2 * 256
        assert sum(stretches) >= stored.log.sources[0].size > 50_000


def test_only_the_blocks_of_the_range_are_read(stored: StoredTopic) -> None:
    with small_blocks(256):
        ((piece,), _) = stored.plan(20, 22)
        data = [bytes(data) for data, _ in segments.read(stored.path, piece, read_committed=True)]
        sizes = [header.size for header, _ in stored.log.batches()]
        assert sum(map(len, data)) <= sum(sizes[19:23]) + 2 * 256


def test_a_flipped_bit_is_an_error_that_names_file_and_byte_or_out_of_sight(stored: StoredTopic) -> None:
    path = Path(stored.log.sources[0].path)
    data = path.read_bytes()
    starts = [0]
    for header, _ in stored.log.batches()[:6]:
        starts.append(starts[-1] + header.size)
    headers = {at for start in starts[:6] for at in range(start, start + HEADER_BYTES)}
    expected = stored.log.rows()
    with small_blocks(256), path.open("r+b", buffering=0) as file:
        ((piece,), _) = stored.plan(1, 5)
        for at in sorted({*headers, *range(0, starts[6], 17), *range(starts[6], len(data), 997)}):
            file.seek(at)
            file.write(bytes([data[at] ^ 1 << at % 8]))
            if starts[1] <= at < starts[5]:
                with pytest.raises(DamagedSegment, match=f"^{path}, byte [0-9]+: "):
                    read_piece(stored.path, piece)
            elif at < starts[1] // 256 * 256 or at >= starts[5] + 512:
                assert read_piece(stored.path, piece) == expected[1:5], f"byte {at}"
            file.seek(at)
            file.write(data[at : at + 1])
        assert read_piece(stored.path, piece) == expected[1:5]


def test_the_batch_that_does_not_match_is_named(stored: StoredTopic) -> None:
    path = Path(stored.log.sources[0].path)
    data = bytearray(path.read_bytes())
    position = sum(header.size for header, _ in stored.log.batches()[:10])
    data[position + HEADER_BYTES] ^= 1
    path.write_bytes(data)
    with small_blocks(256), pytest.raises(DamagedSegment, match=f"{path}, byte {position}: a batch does not match"):
        stored.rows()


def test_an_offset_that_fits_but_is_another_is_found_by_the_blocks(stored: StoredTopic) -> None:
    """Where batches may be missing, only the card's checksums know which offset a batch has."""
    stored.log.write((b"other", b"x"))
    stored.log.write((b"k", b"last"))
    stored.log.write((b"more", b"x"))
    stored.log.seal()
    with small_blocks(256):
        stored.log.compact(segment_bytes=1 << 20)
        path = Path(stored.log.sources[0].path)
        data = bytearray(path.read_bytes())
        assert decode_header(data).base_offset == 40
        data[7] ^= 8  # 32 instead of 40, and nothing has been kept of either
        path.write_bytes(data)
        with pytest.raises(DamagedSegment, match=f"{path}, byte 0: a block of the file does not match its checksum"):
            stored.rows()


@pytest.mark.parametrize("left", [0, 30, 400, 10_000])
def test_a_shortened_file_is_told(stored: StoredTopic, left: int) -> None:
    path = Path(stored.log.sources[0].path)
    path.write_bytes(path.read_bytes()[:left])
    with small_blocks(256), pytest.raises(DamagedSegment, match=f"{path}, byte {left}: the file ends here"):
        stored.rows()
