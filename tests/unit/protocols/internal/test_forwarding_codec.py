"""Forward on the wire: whole, cut anywhere, and with something behind it."""

import struct
from uuid import UUID

import pytest

from penstock.engine.access import BROKERS, Subject
from penstock.engine.forwarding import Forwarded, Outcome
from penstock.engine.publishing import ALL, parse_durability
from penstock.errors import Code, PenstockError
from penstock.net.connection import PeerError
from penstock.protocols.internal import forwarding_codec as codec
from penstock.protocols.internal.segment_codec import KEY as COPY_SEGMENT
from penstock.records.build import build_batch
from penstock.storage.log.log import Appended

BATCH = build_batch([(b"k", b"v", (), 1)])
SUBJECTS = (Subject("User:jürgen", "10.0.0.1", "toy"), BROKERS)
FORWARDED = Forwarded(UUID(int=7), 3, parse_durability("2"), 1.5, SUBJECTS, BATCH)
REFUSED = Outcome(Appended(5, 6, -1), PenstockError(Code.OUTCOME_UNKNOWN, "wér?", help="look"), is_open=True)


def test_a_request_arrives_as_it_was() -> None:
    body = codec.encode(FORWARDED)
    assert codec.decode(memoryview(body)) == (UUID(int=7), 3, 1.5, "2", SUBJECTS, BATCH)
    assert codec.KEY not in (COPY_SEGMENT, 0) and codec.KEY > 1000


@pytest.mark.parametrize(("left_s", "told_s"), [(-1.0, 0.0), (1e12, ((1 << 31) - 1) / 1000)])
def test_the_time_left_has_bounds(left_s: float, told_s: float) -> None:
    request = codec.decode(memoryview(codec.encode(FORWARDED._replace(timeout_s=left_s))))
    assert request is not None and request.timeout_s == told_s


def test_a_request_that_is_cut_is_refused_or_has_a_cut_batch() -> None:
    body = codec.encode(FORWARDED)
    for size in range(len(body)):
        cut = memoryview(body)[:size]
        if size <= len(body) - len(BATCH):
            with pytest.raises(PeerError):
                codec.decode(cut)
        else:  # for the log to refuse: a batch knows its length
            request = codec.decode(cut)
            assert request is not None and request.batch == BATCH[: len(request.batch)] != BATCH
    longer = codec.decode(memoryview(body + b"\0"))
    assert longer is not None and longer.batch == BATCH + b"\0"


@pytest.mark.parametrize(
    "spoiled",
    [
        b"\x03" + codec.encode(FORWARDED)[1:],
        b"\x01" + codec.encode(FORWARDED)[1:],
        b"\x00" + codec.encode(FORWARDED)[1:],
        codec.encode(FORWARDED)[:21] + struct.pack(">i", -1) + codec.encode(FORWARDED)[25:],
        codec.encode(FORWARDED).replace(b"2\0\x02", b"\xff\0\x02"),
        b"\x00\x00",
        b"\x02",
    ],
    ids=["version 3", "version 1", "version 0", "no time", "no text", "a longer question", "another question"],
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


def test_an_answer_arrives_as_it_was() -> None:
    told = Outcome(Appended(1 << 40, (1 << 40) + 2, 99))
    assert codec.decode_answer(memoryview(codec.encode_answer(told))) == told
    heard = codec.decode_answer(memoryview(codec.encode_answer(REFUSED)))
    assert (heard.appended, heard.is_open) == (REFUSED.appended, True)
    assert heard.error is not None
    assert (str(heard.error), heard.error.help) == ("wér?", "look")


@pytest.mark.parametrize("code", list(Code))
def test_no_error_loses_its_meaning(code: Code) -> None:
    told = Outcome(None, PenstockError(code, "\ud800" + "x" * 100_000))
    heard = codec.decode_answer(memoryview(codec.encode_answer(told)))
    assert heard.error is not None and heard.error.code is code
    assert (heard.appended, heard.is_open, len(str(heard.error))) == (None, False, 1000)


@pytest.mark.parametrize("outcome", [Outcome(Appended(5, 6, -1)), REFUSED])
def test_an_answer_cut_anywhere_or_too_long_is_no_answer(outcome: Outcome) -> None:
    body = codec.encode_answer(outcome)
    for spoiled in (*(body[:size] for size in range(len(body))), body + b"\0", b"\x01" + body[1:]):
        with pytest.raises(PeerError):
            codec.decode_answer(memoryview(spoiled))


@pytest.mark.parametrize("outcome", [Outcome(None), Outcome(Appended(5, 6, -1), None, is_open=True)])
def test_an_answer_that_says_nothing_is_none(outcome: Outcome) -> None:
    with pytest.raises(PeerError):
        codec.decode_answer(memoryview(codec.encode_answer(outcome)))


def test_the_words_of_durability_are_short_enough() -> None:
    for durability in (ALL, parse_durability("32767")):
        assert len(durability.word) < 256
