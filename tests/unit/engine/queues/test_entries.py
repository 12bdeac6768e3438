"""A ledger's entries as bytes: written and read as they were, for good; damage is told."""

from uuid import UUID

import pytest

from penstock.engine.coordination.schemas import Entry
from penstock.engine.queues import entries
from penstock.engine.queues.entries import LedgerCodec, entry
from penstock.engine.queues.window import CHUNK, Run
from penstock.errors import Code, PenstockError

RUNS = (Run(5, 9), Run(1 << 40, (1 << 40) + 1))
EXAMPLES: list[tuple[Entry, str]] = [
    (
        entry(1, entries.Opened("orders", 7, 9, is_saved=True)),
        "0101000000010000000000000007000000000000000901000000066f7264657273",
    ),
    (
        entry(2, entries.Leased(77, "c-1", 1000, 31000, True, False, RUNS)),
        "010200000002000000000000004d00000000000003e8000000000000791801000000"
        "0003632d3100000002000000000000000500000004000001000000000000000001",
    ),
    (
        entry(2, entries.Settled(entries.How.ACKED, RUNS)),
        "0103000000020100000002000000000000000500000004000001000000000000000001",
    ),
    (
        entry(2, entries.SettledIn(70, True, RUNS[:1])),
        "010d0000000200000000000000460100000001000000000000000500000004",
    ),
    (
        entry(2, entries.Returned(1, 1000, 2000, True, False, True, RUNS[:1])),
        "0104000000020100000000000003e800000000000007d001000100000001000000000000000500000004",
    ),
    (
        entry(2, entries.Renewed(77, 61000, RUNS[:1])),
        "010500000002000000000000004d000000000000ee4800000001000000000000000500000004",
    ),
    (
        entry(2, entries.Dying(entries.Cause.REJECTED, 1, "no", False, RUNS[:1])),
        "010600000002010100000000026e6f00000001000000000000000500000004",
    ),
    (entry(2, entries.Moved(100, is_anew=True)), "010700000002000000000000006401"),
    (
        entry(2, entries.Opened("g", 7, 7, state_epoch=3)),
        "0101000000020000000000000007000000000000000700000000016700000003",
    ),
    (entry(2, entries.Moved(100, is_anew=True, state_epoch=4)), "01070000000200000000000000640100000004"),
    (entry(2, entries.Deleted()), "010800000002"),
    (
        entry(0, entries.Led(4, 1000, 50, ends_bound=True)),
        "010900000000000000000000000400000000000003e8000000000000003201",
    ),
    (entry(2, entries.Restored()), "010b00000002"),
    (
        entry(2, entries.Burying(UUID(int=5), 3, 4000, 12, RUNS[:1])),
        "010c0000000200000000000000000000000000000005000000030000000000000fa00000000c00000001000000000000000500000004",
    ),
]
CHUNK_SAVED = entry(3, entries.ChunkSaved(2048, bytes(range(5)) + bytes(CHUNK - 5), bytes(CHUNK), b"\1" * CHUNK))
NAMES = [f"{type(example.value).__name__} {number}" for number, (example, _) in enumerate(EXAMPLES)]


@pytest.mark.parametrize(("example", "written"), EXAMPLES, ids=NAMES)
def test_each_kind_is_written_as_ever(example: Entry, written: str) -> None:
    key, value = LedgerCodec().encode(example)
    assert value is not None
    assert (key, value.hex()) == (b"", written)
    assert LedgerCodec().decode(key, value) == example


def test_a_chunk_comes_as_it_was() -> None:
    codec = LedgerCodec()
    assert codec.decode(*codec.encode(CHUNK_SAVED)) == CHUNK_SAVED


@pytest.mark.parametrize("example", [*(example for example, _ in EXAMPLES), CHUNK_SAVED], ids=[*NAMES, "ChunkSaved"])
def test_damage_is_told_or_is_another_entry(example: Entry) -> None:
    """The batch around it has a checksum; this is what stands behind that."""
    codec = LedgerCodec()
    _, value = codec.encode(example)
    assert value is not None
    damaged = [value[:end] for end in range(len(value))]
    for at in range(len(value)):
        damaged += [value[:at] + bytes([value[at] ^ flip]) + value[at + 1 :] for flip in (1, 0x80, 0xFF)]
    for each in damaged:
        try:
            assert codec.decode(b"", each) is not None
        except PenstockError as error:
            assert error.code is Code.CORRUPT_LOG  # noqa: PT017 - either will do


def test_what_a_later_release_wrote_is_not_passed_over() -> None:
    for value in (b"\2\3" + bytes(4), b"\1\x63" + bytes(4)):
        with pytest.raises(PenstockError, match="this release knows version 1") as refused:
            LedgerCodec().decode(b"", value)
        assert refused.value.code is Code.CORRUPT_LOG
