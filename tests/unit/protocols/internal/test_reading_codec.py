"""Read on the wire: whole, cut anywhere, and with something behind it."""

import struct
from uuid import UUID

import pytest

from penstock.engine.access import BROKERS, Subject
from penstock.engine.elsewhere import AtTime, Ends, Given, ReceivedBatches, Taken, WantedEnds, WantedRecords
from penstock.engine.looking import Found
from penstock.engine.reading import AbortedTransaction
from penstock.errors import Code, PenstockError
from penstock.net.connection import PeerError
from penstock.protocols.internal import reading_codec as codec
from penstock.protocols.internal.forwarding_codec import KEY as FORWARD
from penstock.protocols.internal.segment_codec import KEY as COPY_SEGMENT
from penstock.records.build import build_batch

ANN = Subject("User:jürgen", "10.0.0.1", "toy")
RECORDS = WantedRecords(UUID(int=7), 3, 5, 1 << 40, 70_000, 1.5, committed=True, subject=ANN)
BY_TIME = WantedEnds(UUID(int=7), 3, 5, 1 << 50, committed=False, subject=BROKERS)
ENDS = Ends(6, 1, 1 << 41, 1 << 40)
BATCHES = build_batch([(b"k", b"v", (), 1)]) + build_batch([(None, b"w" * 100, (), 2)])
ABORTED = [AbortedTransaction(1, 2, 3, 4), AbortedTransaction(1 << 40, 5, 6, 7)]


def answer(batches: bytes = BATCHES, aborted: list[AbortedTransaction] = ABORTED) -> bytes:
    data = ReceivedBatches(batches, "t-3").as_slice() if batches else None
    parts, size = codec.encode_taken(Taken(ENDS, Found(data, aborted)))
    body = b"".join(part if isinstance(part, bytes) else part[0].read_at(part[2], part[1]) for part in parts)
    assert len(body) == size
    return body


@pytest.mark.parametrize("wanted", [RECORDS, RECORDS._replace(committed=False, subject=BROKERS, wait_s=0)])
def test_a_question_for_records_arrives_as_it_was(wanted: WantedRecords) -> None:
    assert codec.decode(memoryview(codec.encode_records(wanted))) == wanted
    assert codec.KEY not in (COPY_SEGMENT, FORWARD) and codec.KEY > 1000


@pytest.mark.parametrize(
    "wanted", [BY_TIME, BY_TIME._replace(timestamp=None, subject=ANN), BY_TIME._replace(timestamp=0)]
)
def test_a_question_for_ends_arrives_as_it_was(wanted: WantedEnds) -> None:
    assert codec.decode(memoryview(codec.encode_ends(wanted))) == wanted


def test_what_is_wanted_has_bounds() -> None:
    asked = codec.decode(memoryview(codec.encode_records(RECORDS._replace(wait_s=-1.0, max_bytes=1 << 40))))
    assert isinstance(asked, WantedRecords)
    assert (asked.wait_s, asked.max_bytes) == (0, (1 << 31) - 1)
    asked = codec.decode(memoryview(codec.encode_records(RECORDS._replace(wait_s=1e12))))
    assert isinstance(asked, WantedRecords) and asked.wait_s == ((1 << 31) - 1) / 1000


@pytest.mark.parametrize("body", [codec.encode_records(RECORDS), codec.encode_ends(BY_TIME)], ids=["records", "ends"])
def test_a_question_cut_anywhere_or_too_long_is_none(body: bytes) -> None:
    for spoiled in (*(body[:size] for size in range(len(body)) if size != 1), body + b"\0"):
        with pytest.raises(PeerError):
            codec.decode(memoryview(spoiled))


@pytest.mark.parametrize(
    "spoiled",
    [
        b"\x01\x02" + codec.encode_records(RECORDS)[2:],
        b"\x03" + codec.encode_records(RECORDS)[1:],
        codec.encode_records(RECORDS)[:34] + struct.pack(">i", 0) + codec.encode_records(RECORDS)[38:],
        codec.encode_records(RECORDS)[:38] + struct.pack(">i", -1) + codec.encode_records(RECORDS)[42:],
        codec.encode_records(RECORDS)[:43] + struct.pack(">H", 2) + codec.encode_records(RECORDS)[45:] * 2,
        b"\x00\x00",
        b"\x01",
    ],
    ids=["version 2", "about 3", "no bytes", "no time", "two subjects", "a longer question", "another question"],
)
def test_what_makes_no_sense_is_the_peers_fault(spoiled: bytes) -> None:
    with pytest.raises(PeerError):
        codec.decode(memoryview(spoiled))


def test_which_versions() -> None:
    assert codec.decode(memoryview(codec.QUESTION)) is None
    told = codec.encode_versions()
    assert codec.decode_versions(memoryview(told)) == codec.NEWEST
    for spoiled in (b"", told[:1], told + b"\0", b"\x01\x01"):
        with pytest.raises(PeerError):
            codec.decode_versions(memoryview(spoiled))


@pytest.mark.parametrize("aborted", [ABORTED, []])
def test_records_arrive_as_they_were(aborted: list[AbortedTransaction]) -> None:
    assert codec.decode_given(memoryview(answer(aborted=aborted))) == Given(ENDS, BATCHES, aborted)
    assert codec.decode_given(memoryview(answer(b"", aborted))) == Given(ENDS, b"", aborted)


def test_records_cut_anywhere_are_none_or_whole_batches() -> None:
    body, first = answer(), len(build_batch([(b"k", b"v", (), 1)]))
    whole = {len(body) - len(BATCHES): b"", len(body) - len(BATCHES) + first: BATCHES[:first]}
    for size in range(len(body)):
        if size in whole:
            given = codec.decode_given(memoryview(body)[:size])
            assert isinstance(given, Given) and given.batches == whole[size]
        else:
            with pytest.raises(PeerError):
                codec.decode_given(memoryview(body)[:size])
    with pytest.raises(PeerError):
        codec.decode_given(memoryview(body + b"\0"))


def test_a_bit_that_flips_in_a_batch_is_seen() -> None:
    body = answer()
    for at in range(len(body) - len(BATCHES), len(body)):
        spoiled = bytearray(body)
        spoiled[at] ^= 1
        given = codec_or_none(bytes(spoiled))
        assert given is None or spoiled_fields_are_not_covered(given, at - (len(body) - len(BATCHES)))


def codec_or_none(body: bytes) -> Given | None:
    try:
        given = codec.decode_given(memoryview(body))
    except PeerError:
        return None
    assert isinstance(given, Given)
    return given


def spoiled_fields_are_not_covered(given: Given, at: int) -> bool:
    """Offset, leader epoch and magic are not under the checksum."""
    first = len(build_batch([(b"k", b"v", (), 1)]))
    return (at if at < first else at - first) in (*range(8), *range(12, 17))


def test_more_aborted_transactions_than_there_are_bytes_are_refused() -> None:
    body = answer(b"", [])
    for claimed in (1, 1 << 31, (1 << 32) - 1):
        with pytest.raises(PeerError):
            codec.decode_given(memoryview(body[:-4] + struct.pack(">I", claimed)))


@pytest.mark.parametrize("at_time", [AtTime(4, 5, 6), None])
def test_ends_arrive_as_they_were_and_whole(at_time: AtTime | None) -> None:
    ends = ENDS._replace(at_time=at_time)
    body = codec.encode_told_ends(ends)
    assert codec.decode_told_ends(memoryview(body)) == ends
    for spoiled in (*(body[:size] for size in range(len(body))), body + b"\0"):
        with pytest.raises(PeerError):
            codec.decode_told_ends(memoryview(spoiled))


@pytest.mark.parametrize("code", list(Code))
def test_no_error_loses_its_meaning(code: Code) -> None:
    error = PenstockError(code, "wér?" * 1000, help="look")
    told = (
        codec.decode_given(memoryview(codec.encode_refusal(codec.RECORDS, error))),
        codec.decode_told_ends(memoryview(codec.encode_refusal(codec.ENDS, error))),
    )
    for each in told:
        assert isinstance(each, PenstockError)
        assert (each.code, len(str(each)), each.help) == (code, 1000, "look")


def test_an_answer_to_another_question_is_none() -> None:
    with pytest.raises(PeerError):
        codec.decode_given(memoryview(codec.encode_told_ends(ENDS)))
    with pytest.raises(PeerError):
        codec.decode_told_ends(memoryview(answer()))
    refusal = codec.encode_refusal(codec.RECORDS, PenstockError(Code.NOT_LEADER, "no"))
    for size in range(len(refusal)):
        with pytest.raises(PeerError):
            codec.decode_given(memoryview(refusal)[:size])
    with pytest.raises(PeerError):
        codec.decode_given(memoryview(refusal + BATCHES))
