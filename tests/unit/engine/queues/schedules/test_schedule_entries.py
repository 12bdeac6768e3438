"""What is kept of schedules as bytes: written and read as it was, for good; damage is told."""

import pytest

from penstock.engine.coordination.schemas import Entry
from penstock.engine.queues.schedules.entries import EntryKind, Fire, Round, ScheduleCodec
from penstock.engine.queues.schedules.schedule import Definition, Progress
from penstock.errors import Code, PenstockError

CODEC = ScheduleCodec()
EXAMPLES: list[tuple[Entry, str, str | None]] = [
    (
        Entry(
            EntryKind.DEFINED,
            (7,),
            Definition("g", "nightly", "30 3 * * *", "UTC", b"k", b"\0v", (("h", b"1"), ("n", None)), 1000),
        ),
        "010000000000000007",
        "0100000000000003e80000000167000000076e696768746c790000000a33302033202a202a202a00000003555443000000016b"
        "0000000200760000000200000001680000000131000000016effffffff",
    ),
    (
        Entry(EntryKind.DEFINED, (8,), Definition("g", "s", "* * * * *", "UTC", None, b"", (), 1000)),
        "010000000000000008",
        "0100000000000003e800000001670000000173000000092a202a202a202a202a00000003555443ffffffff0000000000000000",
    ),
    (Entry(EntryKind.DEFINED, (9,), None), "010000000000000009", None),
    (
        Entry(EntryKind.PROGRESS, (7,), Progress(2000, True, False, 1500, 1600)),
        "020000000000000007",
        "0100000000000007d00100000000000005dc0000000000000640",
    ),
    (
        Entry(EntryKind.PROGRESS, (7,), Progress(2000, is_removed=True)),
        "020000000000000007",
        "0100000000000007d002ffffffffffffffffffffffffffffffff",
    ),
    (Entry(EntryKind.PROGRESS, (9,), None), "020000000000000009", None),
    (
        Entry(EntryKind.ROUND, (2,), Round(4000, 12, (Fire(7, 60000), Fire(8, 120000)))),
        "030000000000000002",
        "010000000000000fa00000000c000000020000000000000007000000000000ea600000000000000008000000000001d4c0",
    ),
    (Entry(EntryKind.ROUND, (2,), Round(-1, 0, ())), "030000000000000002", "01ffffffffffffffff0000000000000000"),
]


@pytest.mark.parametrize(("entry", "key", "value"), EXAMPLES)
def test_written_and_read_as_it_was(entry: Entry, key: str, value: str | None) -> None:
    """Data directories have these bytes."""
    written = CODEC.encode(entry)
    assert (written[0].hex(), None if written[1] is None else written[1].hex()) == (key, value)
    assert CODEC.decode(*written) == entry


def test_names_that_are_no_unicode_come_back() -> None:
    definition = Definition("g\udc80", "s", "* * * * *", "UTC", None, b"", (("\udcff", b""),), 0)
    entry = Entry(EntryKind.DEFINED, (1,), definition)
    assert CODEC.decode(*CODEC.encode(entry)) == entry


@pytest.mark.parametrize(("entry", "key", "value"), EXAMPLES)
def test_cut_short_it_is_refused_or_another(entry: Entry, key: str, value: str | None) -> None:
    """At every length: nothing else than our own error comes of it."""
    for at in range(len(value or "") // 2):
        with pytest.raises(PenstockError) as refused:
            CODEC.decode(bytes.fromhex(key), bytes.fromhex(value or "")[:at])
        assert refused.value.code is Code.CORRUPT_LOG
    for at in range(len(key) // 2):
        with pytest.raises(PenstockError) as refused:
            CODEC.decode(bytes.fromhex(key)[:at], None)
        assert refused.value.code is Code.CORRUPT_LOG


@pytest.mark.parametrize(("key", "value"), [("09" + "00" * 8, "01"), ("01" + "00" * 8, "02"), ("09" + "00" * 8, None)])
def test_what_a_later_release_wrote_is_told(key: str, value: str | None) -> None:
    with pytest.raises(PenstockError) as refused:
        CODEC.decode(bytes.fromhex(key), None if value is None else bytes.fromhex(value))
    assert refused.value.code is Code.CORRUPT_LOG
    assert "this release knows version 1" in str(refused.value)


def test_counts_that_cannot_be_are_refused_before_anything_is_made_of_them() -> None:
    for key, value in (
        ("03" + "00" * 8, "010000000000000fa00000000cffffffff"),
        ("01" + "00" * 8, "01" + "00" * 8 + "7fffffff"),
    ):
        with pytest.raises(PenstockError):
            CODEC.decode(bytes.fromhex(key), bytes.fromhex(value))
