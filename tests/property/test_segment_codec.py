"""CopySegment: what one side writes the other reads, and garbage is refused."""

import random

import pytest

from penstock.cluster.replication.source import SegmentPart, SegmentWanted
from penstock.net.connection import PeerError
from penstock.protocols.internal import segment_codec
from penstock.storage.log.card import BLOCK_BYTES

ROUNDS = 200
NUMBERS = (0, 1, 77, 1 << 40, (1 << 63) - 1)


def random_wanted(rng: random.Random) -> SegmentWanted:
    return SegmentWanted(
        rng.randbytes(16),
        rng.randint(0, 10_000),
        rng.randint(0, 1 << 30),
        rng.choice(NUMBERS),
        rng.randint(0, 60_000) * BLOCK_BYTES,
        rng.randint(BLOCK_BYTES, (1 << 31) - 1),
        rng.choice(NUMBERS),
    )


def random_part(rng: random.Random) -> SegmentPart:
    data = rng.randbytes(rng.choice((0, 1, 100)))
    card = rng.randbytes(rng.choice((0, 1, 100)))
    return SegmentPart(rng.choice((-1, *NUMBERS)), rng.choice(NUMBERS), len(data) + rng.choice((0, 5)), card, data)


def encode(code: int, part: SegmentPart) -> bytes:
    return segment_codec.encode_answer(code, part.base, part.next_offset, part.size, part.card) + part.data


def test_both_sides_understand_each_other() -> None:
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        wanted, replica_id, incarnation = random_wanted(rng), rng.randint(0, 1000), rng.choice(NUMBERS)
        data = segment_codec.encode(wanted, replica_id, incarnation)
        assert segment_codec.decode(memoryview(data)) == (wanted, replica_id, incarnation)
        code, part = rng.randint(-1, 130), random_part(rng)
        assert segment_codec.decode_answer(memoryview(encode(code, part))) == (code, part)


def test_garbage_is_refused_or_makes_sense() -> None:
    refused = 0
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        request = bytearray(segment_codec.encode(random_wanted(rng), 1, 1))
        answer = bytearray(encode(0, random_part(rng)))
        for data in (request, answer):
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            if rng.random() < 0.5:
                del data[rng.randrange(len(data)) :]
        try:
            wanted = segment_codec.decode(memoryview(request)).wanted
            assert wanted.offset >= 0 and wanted.max_bytes >= BLOCK_BYTES
            assert wanted.position >= 0 and wanted.position % BLOCK_BYTES == 0
        except PeerError:
            refused += 1
        try:
            part = segment_codec.decode_answer(memoryview(answer)).part
            assert len(part.data) <= part.size
        except PeerError:
            refused += 1
    assert 0 < refused < 2 * ROUNDS


@pytest.mark.parametrize("cut", range(30))
def test_an_answer_that_ends_early_is_refused(cut: int) -> None:
    whole = encode(0, SegmentPart(0, 10, 100, b"a card", b""))
    with pytest.raises(PeerError):
        segment_codec.decode_answer(memoryview(whole)[:cut])


def test_a_card_that_claims_more_than_is_there_is_refused() -> None:
    data = bytearray(encode(0, SegmentPart(0, 10, 100, b"a card", b"")))
    for claimed in (7, 1 << 30, -1):
        data[26:30] = claimed.to_bytes(4, "big", signed=True)
        with pytest.raises(PeerError, match="card of"):
            segment_codec.decode_answer(memoryview(data))
