"""Subjects on the wire: whole, cut anywhere, too long, and nobody becomes another."""

import struct

import pytest

from penstock.engine.access import ANONYMOUS, BROKERS, Subject
from penstock.errors import Code, PenstockError
from penstock.net.connection import PeerError
from penstock.protocols.internal import subject_codec as codec

LONGEST = Subject("p" * 4096, "h" * 1024, "d" * 255, "m" * 255, "k" * 255, (1 << 63) - 1)


@pytest.mark.parametrize(
    "subject",
    [ANONYMOUS, Subject("User:jürgen", "::1", "mqtt", "api key", "k1", 7), Subject("\ud800", "", ""), LONGEST],
)
def test_they_arrive_as_they_were(subject: Subject) -> None:
    body = codec.encode([subject, BROKERS, subject])
    subjects, end = codec.decode(memoryview(b"xx" + body + b"behind"), 2)
    assert (subjects, end) == ((subject, BROKERS, subject), 2 + len(body))
    assert [each is BROKERS for each in subjects] == [False, True, False]


def test_a_name_like_that_of_brokers_is_no_broker() -> None:
    (like_them,), _ = codec.decode(memoryview(codec.encode([Subject(*BROKERS)])), 0)
    assert like_them == BROKERS and like_them is not BROKERS


@pytest.mark.parametrize(
    "subjects",
    [
        [],
        [ANONYMOUS] * (codec.MOST + 1),
        [LONGEST._replace(principal="p" * 4097)],
        [LONGEST._replace(host="h" * 1025)],
        [LONGEST._replace(door="d" * 256)],
        [LONGEST._replace(key="k" * 256)],
    ],
    ids=["none", "too many", "principal", "host", "door", "key"],
)
def test_what_is_too_much_does_not_leave(subjects: list[Subject]) -> None:
    with pytest.raises(PenstockError) as refused:
        codec.encode(subjects)
    assert refused.value.code is Code.INVALID_REQUEST
    assert len(codec.decode(memoryview(codec.encode([ANONYMOUS] * codec.MOST)), 0)[0]) == codec.MOST


def test_cut_anywhere_they_are_none() -> None:
    body = codec.encode([Subject("User:ann", "10.0.0.1", "toy"), BROKERS])
    for size in range(len(body)):
        with pytest.raises(PeerError):
            codec.decode(memoryview(body)[:size], 0)


@pytest.mark.parametrize(
    "spoiled",
    [
        struct.pack(">H", 0) + bytes(100),
        struct.pack(">H", codec.MOST + 1) + bytes(100_000),
        struct.pack(">H?HHBBBq", 1, False, 4097, 0, 0, 0, 0, 0) + bytes(5000),
        struct.pack(">H?HHBBBq", 1, False, 0, 1025, 0, 0, 0, 0) + bytes(5000),
        struct.pack(">H?HHBBBq", 1, True, 1, 0, 0, 0, 0, 0) + bytes(100),
        struct.pack(">H?HHBBBq", 1, False, 1, 0, 0, 0, 0, 0) + b"\xff",
    ],
    ids=["none", "too many", "principal", "host", "a broker with a name", "no text"],
)
def test_what_makes_no_sense_is_the_peers_fault(spoiled: bytes) -> None:
    with pytest.raises(PeerError):
        codec.decode(memoryview(spoiled), 0)
