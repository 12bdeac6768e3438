"""Records of the internal topics: what is written is read again, and no bytes do worse than CORRUPT_LOG."""

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.coordination import schemas
from penstock.engine.coordination.schemas import (
    GROUP_RECORDS,
    TRANSACTION_RECORDS,
    Beginning,
    BegunTopic,
    ClassicMember,
    ConsumerGroupValue,
    ConsumerMemberValue,
    CurrentValue,
    Entry,
    GroupValue,
    Kind,
    NamedPartitions,
    NamedTopic,
    OffsetValue,
    Records,
    RegexValue,
    ShareCurrentValue,
    ShareGroupValue,
    ShareMemberValue,
    ShareStateValue,
    TargetEpochValue,
    TargetValue,
    TopicPartitions,
    TransactionValue,
)
from penstock.errors import Code, PenstockError

_text = st.text(max_size=20)
_maybe_text = st.none() | _text
_byte, _short = st.integers(-(1 << 7), (1 << 7) - 1), st.integers(-(1 << 15), (1 << 15) - 1)
_int, _long = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
_data = st.binary(max_size=40)


def _tuples(of: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=3).map(tuple)


def _builds(make: Callable[..., Any], *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(*parts).map(lambda values: make(*values))


_partitions = _tuples(_builds(TopicPartitions, st.uuids(), _tuples(_int)))
_member = _builds(ClassicMember, _text, _maybe_text, _text, _text, _int, _int, _data, _data)
_beginnings = _tuples(_builds(Beginning, _int, _long, _tuples(_int)))
_begun = _tuples(_builds(BegunTopic, st.uuids(), _text, _tuples(_int), _beginnings))
_VALUES = {
    Kind.OFFSET: _builds(OffsetValue, _long, _int, _text, _long),
    Kind.GROUP: _builds(GroupValue, _text, _int, _maybe_text, _maybe_text, _long, _tuples(_member)),
    Kind.CONSUMER_GROUP: _builds(ConsumerGroupValue, _int, _long),
    Kind.CONSUMER_MEMBER: _builds(
        ConsumerMemberValue, _maybe_text, _maybe_text, _text, _text, _tuples(_text), _maybe_text, _int, _maybe_text
    ),
    Kind.CONSUMER_TARGET_EPOCH: _builds(TargetEpochValue, _int),
    Kind.CONSUMER_TARGET: _builds(TargetValue, _partitions),
    Kind.CONSUMER_CURRENT: _builds(CurrentValue, _int, _int, _byte, _partitions, _partitions),
    Kind.CONSUMER_REGEX: _builds(RegexValue, _tuples(_text), _long, _long),
    Kind.SHARE_MEMBER: _builds(ShareMemberValue, _maybe_text, _text, _text, _tuples(_text)),
    Kind.SHARE_GROUP: _builds(ShareGroupValue, _int, _long),
    Kind.SHARE_TARGET_EPOCH: _builds(TargetEpochValue, _int),
    Kind.SHARE_TARGET: _builds(TargetValue, _partitions),
    Kind.SHARE_CURRENT: _builds(ShareCurrentValue, _int, _int, _byte, _partitions),
    Kind.SHARE_STATE: _builds(ShareStateValue, _begun, _begun, _tuples(_builds(NamedTopic, st.uuids(), _text))),
    Kind.TRANSACTION: _builds(
        TransactionValue,
        _long,
        _short,
        _int,
        _byte,
        st.none() | _tuples(_builds(NamedPartitions, _text, _tuples(_int))),
        _long,
        _long,
        _long,
        _long,
        _short,
    ),
}
_KEYS = {
    Kind.OFFSET: st.tuples(_text, _text, _int),
    Kind.GROUP: st.tuples(_text),
    Kind.CONSUMER_GROUP: st.tuples(_text),
    Kind.CONSUMER_MEMBER: st.tuples(_text, _text),
    Kind.CONSUMER_TARGET_EPOCH: st.tuples(_text),
    Kind.CONSUMER_TARGET: st.tuples(_text, _text),
    Kind.CONSUMER_CURRENT: st.tuples(_text, _text),
    Kind.CONSUMER_REGEX: st.tuples(_text, _text),
    Kind.SHARE_MEMBER: st.tuples(_text, _text),
    Kind.SHARE_GROUP: st.tuples(_text),
    Kind.SHARE_TARGET_EPOCH: st.tuples(_text),
    Kind.SHARE_TARGET: st.tuples(_text, _text),
    Kind.SHARE_CURRENT: st.tuples(_text, _text),
    Kind.SHARE_STATE: st.tuples(_text),
    Kind.TRANSACTION: st.tuples(_text),
}
_entries = st.sampled_from(Kind).flatmap(
    lambda kind: st.tuples(_KEYS[kind], st.none() | _VALUES[kind]).map(lambda drawn: Entry(kind, *drawn))
)


def _records(kind: Kind) -> Records:
    return TRANSACTION_RECORDS if kind is Kind.TRANSACTION else GROUP_RECORDS


def _encode(entry: Entry) -> tuple[bytes, bytes | None]:
    return _records(entry.kind).encode(entry)


def _decode(kind: Kind, key: bytes, value: bytes | None) -> Entry | None:
    return _records(kind).decode(key, value)


def _fault(kind: Kind, key: bytes, value: bytes | None) -> Code | None:
    try:
        _decode(kind, key, value)
    except PenstockError as error:
        return error.code
    return None


def test_every_kind_is_tried() -> None:
    assert set(_KEYS) == set(_VALUES) == set(Kind)


@given(_entries)
def test_what_is_written_is_read_again(entry: Entry) -> None:
    assert _decode(entry.kind, *_encode(entry)) == entry


@given(_KEYS[Kind.OFFSET], _VALUES[Kind.OFFSET])
def test_offsets_are_written_as_their_schema_says(key: tuple[str, str, int], value: OffsetValue) -> None:
    schema = schemas._SCHEMAS[Kind.OFFSET]
    written = bytearray(b"\0\1"), bytearray(struct.pack(">h", schema.version))
    for kind, part in zip(schema.key, key, strict=True):
        schemas._write(written[0], kind, part, flexible=False)
    schemas._write(written[1], schema.value, value, schema.flexible)
    assert GROUP_RECORDS.encode(Entry(Kind.OFFSET, key, value)) == written


@given(_entries, st.data())
def test_a_record_cut_short_is_corrupt(entry: Entry, data: st.DataObject) -> None:
    key, value = _encode(entry)
    shorter = key[: data.draw(st.integers(0, len(key) - 1))]
    assert _fault(entry.kind, shorter, value) is Code.CORRUPT_LOG
    if value:
        assert _fault(entry.kind, key, value[: data.draw(st.integers(0, len(value) - 1))]) is Code.CORRUPT_LOG


@given(_entries, st.binary(max_size=60), st.data())
def test_no_bytes_do_worse_than_corrupt(entry: Entry, noise: bytes, data: st.DataObject) -> None:
    """Noise behind a prefix of a good record reaches deeper than noise alone."""
    key, value = _encode(entry)
    value = value or b"\0\0"
    for bad_key, bad_value in (
        (noise, value),
        (key[: data.draw(st.integers(0, len(key)))] + noise, value),
        (key, noise),
        (key, value[: data.draw(st.integers(0, len(value)))] + noise),
    ):
        assert _fault(entry.kind, bad_key, bad_value) in (None, Code.CORRUPT_LOG)


@pytest.mark.parametrize("number", [-1, 4, 9, 17, 100, 101])
def test_a_kind_of_a_later_release_is_left_alone(number: int) -> None:
    assert GROUP_RECORDS.decode(struct.pack(">h", number) + b"\0\1g", b"\0\0") is None


@pytest.mark.parametrize("number", [-99, -98, -1, 1, 2])
def test_the_transactions_topic_has_one_kind(number: int) -> None:
    assert TRANSACTION_RECORDS.decode(struct.pack(">h", number) + b"\0\1t", b"\0\0") is None


def test_a_tagged_field_of_a_later_release_is_skipped() -> None:
    key, value = _encode(Entry(Kind.CONSUMER_GROUP, ("g",), ConsumerGroupValue(7, 9)))
    assert value is not None and value[6] == 1, "one tagged field"
    tagged = value[:6] + b"\2" + value[7:] + b"\5\3new"
    assert _decode(Kind.CONSUMER_GROUP, key, tagged) == Entry(Kind.CONSUMER_GROUP, ("g",), ConsumerGroupValue(7, 9))
    assert _fault(Kind.CONSUMER_GROUP, key, tagged[:-1]) is Code.CORRUPT_LOG


@pytest.mark.parametrize(
    ("entry", "key", "value"),
    [
        (
            Entry(Kind.OFFSET, ("g", "t", 2), OffsetValue(5, 1, "m", 9)),
            "0001 0001 67 0001 74 00000002",
            "0003 0000000000000005 00000001 0001 6d 0000000000000009",
        ),
        (
            Entry(Kind.OFFSET, ("g", "t", 2), None),
            "0001 0001 67 0001 74 00000002",
            None,
        ),
        (
            Entry(
                Kind.GROUP,
                ("g",),
                GroupValue("consumer", 3, None, None, 9, (ClassicMember("m", None, "c", "h", 1, 2, b"s", b""),)),
            ),
            "0002 0001 67",
            "0003 0008 636f6e73756d6572 00000003 ffff ffff 0000000000000009 00000001"
            "0001 6d ffff 0001 63 0001 68 00000001 00000002 00000001 73 00000000",
        ),
        (
            Entry(Kind.CONSUMER_TARGET, ("g", "m"), TargetValue((TopicPartitions(UUID(int=1), (4,)),))),
            "0007 0001 67 0001 6d",
            "0000 02 00000000000000000000000000000001 02 00000004 00 00",
        ),
        (
            Entry(Kind.SHARE_MEMBER, ("g", "m"), ShareMemberValue(None, "c", "h", ("t",))),
            "000a 0001 67 0001 6d",
            "0000 00 02 63 02 68 02 02 74 00",
        ),
        (
            Entry(Kind.SHARE_GROUP, ("g",), ShareGroupValue(3, 4)),
            "000b 0001 67",
            "0000 00000003 0000000000000004 00",
        ),
        (Entry(Kind.SHARE_TARGET_EPOCH, ("g",), TargetEpochValue(3)), "000c 0001 67", "0000 00000003 00"),
        (
            Entry(Kind.SHARE_TARGET, ("g", "m"), TargetValue((TopicPartitions(UUID(int=1), (4,)),))),
            "000d 0001 67 0001 6d",
            "0000 02 00000000000000000000000000000001 02 00000004 00 00",
        ),
        (
            Entry(Kind.SHARE_CURRENT, ("g", "m"), ShareCurrentValue(3, 2, 0, (TopicPartitions(UUID(int=1), (4,)),))),
            "000e 0001 67 0001 6d",
            "0000 00000003 00000002 00 02 00000000000000000000000000000001 02 00000004 00 00",
        ),
        (
            Entry(
                Kind.SHARE_STATE,
                ("g",),
                ShareStateValue((), (BegunTopic(UUID(int=1), "t", (4,)),), (NamedTopic(UUID(int=2), "u"),)),
            ),
            "000f 0001 67",
            "0000 01 02 00000000000000000000000000000001 02 74 02 00000004 00"
            "02 00000000000000000000000000000002 02 75 00 00",
        ),
        (  # when partitions began is a tagged field of our own: 1000, of 19 bytes
            Entry(
                Kind.SHARE_STATE,
                ("g",),
                ShareStateValue((), (BegunTopic(UUID(int=1), "t", (4,), (Beginning(3, -1, (4,)),)),), ()),
            ),
            "000f 0001 67",
            "0000 01 02 00000000000000000000000000000001 02 74 02 00000004"
            "01 e807 13 02 00000003 ffffffffffffffff 02 00000004 00 01 00",
        ),
        (
            Entry(
                Kind.TRANSACTION,
                ("t",),
                TransactionValue(1, 2, 3, 4, (NamedPartitions("n", (5,)),), 6, 7, client_transaction_version=2),
            ),
            "0000 0001 74",
            "0001 0000000000000001 0002 00000003 04 02 02 6e 02 00000005 00 0000000000000006 0000000000000007"
            "01 02 02 0002",
        ),
        (
            Entry(Kind.TRANSACTION, ("t",), TransactionValue(1, 2, 3, 0, None, 6, -1)),
            "0000 0001 74",
            "0001 0000000000000001 0002 00000003 00 00 0000000000000006 ffffffffffffffff 00",
        ),
    ],
)
def test_bytes_are_kafkas(entry: Entry, key: str, value: str | None) -> None:
    """Laid out by hand from Kafka's OffsetCommit, GroupMetadata, ConsumerGroup…, ShareGroup… and TransactionLog."""
    laid_out = bytes.fromhex(key), None if value is None else bytes.fromhex(value)
    assert _encode(entry) == laid_out
    assert _decode(entry.kind, *laid_out) == entry


def test_a_value_of_another_version_names_both() -> None:
    key, value = _encode(Entry(Kind.OFFSET, ("g", "t", 0), OffsetValue(1, -1, "", 0)))
    assert value is not None
    with pytest.raises(PenstockError, match="OFFSET in version 4; this release reads 3"):
        GROUP_RECORDS.decode(key, b"\0\4" + value[2:])


def test_the_first_version_of_an_offsets_key_is_read() -> None:
    key, value = _encode(Entry(Kind.OFFSET, ("g", "t", 0), OffsetValue(1, -1, "", 0)))
    assert GROUP_RECORDS.decode(b"\0\0" + key[2:], value) == GROUP_RECORDS.decode(key, value)
