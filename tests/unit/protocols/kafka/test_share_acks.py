"""What acknowledgements say, and which are refused."""

import pytest

from penstock.engine.queues.verdicts import Change, Verdict, VerdictKind
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.share_acks import changes_of, gather_acks
from penstock.protocols.kafka.share_codec import AckBatch

END = 1000
GONE, ACK, RELEASE, REJECT, RENEW = (
    Verdict(kind)
    for kind in (VerdictKind.GONE, VerdictKind.ACK, VerdictKind.RELEASE, VerdictKind.REJECT, VerdictKind.RENEW)
)


def acks(first: int, last: int, *types: int) -> AckBatch:
    return AckBatch(first, last, bytes(types))


def test_each_type_has_its_verdict() -> None:
    batches = [acks(0, 0, 0), acks(2, 2, 1), acks(4, 4, 2), acks(6, 6, 3), acks(8, 8, 4)]
    assert changes_of(batches, END, renews=True) == [
        Change(0, 0, GONE),
        Change(2, 2, ACK),
        Change(4, 4, RELEASE),
        Change(6, 6, REJECT),
        Change(8, 8, RENEW),
    ]


def test_one_type_is_for_the_whole_batch() -> None:
    assert changes_of([acks(5, 900, 1)], END, renews=False) == [Change(5, 900, ACK)]


def test_a_type_for_each_offset() -> None:
    assert changes_of([acks(5, 11, 1, 1, 0, 2, 2, 2, 1)], END, renews=False) == [
        Change(5, 6, ACK),
        Change(7, 7, GONE),
        Change(8, 10, RELEASE),
        Change(11, 11, ACK),
    ]


def test_neighbours_of_one_kind_are_one_change() -> None:
    batches = [acks(0, 4, 1), acks(5, 6, 1, 1), acks(7, 7, 3), acks(9, 9, 3)]
    assert changes_of(batches, END, renews=False) == [Change(0, 6, ACK), Change(7, 7, REJECT), Change(9, 9, REJECT)]


@pytest.mark.parametrize(
    "batches",
    [
        [acks(5, 4, 1)],
        [acks(-1, 4, 1)],
        [acks(0, 4, 1), acks(4, 6, 1)],
        [acks(5, 6, 1), acks(0, 4, 1)],
        [acks(0, 4)],
        [acks(0, 4, 1, 1)],
        [acks(0, 4, 1, 1, 1, 1, 1, 1)],
        [acks(0, 0, 5)],
        [acks(0, 0, 4)],
        [acks(0, 0, 0xFF)],
        [acks(0, 2, 1, 0x80, 1)],
        [acks(END - 1, END, 1)],
        [acks(0, (1 << 63) - 1, 1)],
    ],
    ids=lambda batches: str(batches[0]),
)
def test_what_is_wrong_is_refused(batches: list[AckBatch]) -> None:
    with pytest.raises(PenstockError) as refused:
        changes_of(batches, END, renews=False)
    assert refused.value.code is Code.INVALID_REQUEST


def test_so_many_are_told_one_by_one_and_no_more() -> None:
    most = 20_000
    assert len(changes_of([acks(0, most - 1, *[1, 2] * (most // 2))], 1 << 40, renews=False)) == most
    assert changes_of([acks(0, 1 << 30, 1)], 1 << 40, renews=False) == [Change(0, 1 << 30, ACK)]
    with pytest.raises(PenstockError, match="20001 acknowledgements and more"):
        changes_of([acks(0, most - 1, *[1] * most), acks(most, most, 1)], 1 << 40, renews=False)


def test_only_who_says_so_keeps_records_for_longer() -> None:
    assert changes_of([acks(0, 1, 4)], END, renews=True) == [Change(0, 1, RENEW)]
    with pytest.raises(PenstockError, match="type 4, where 0 to 3 are known"):
        changes_of([acks(0, 1, 4)], END, renews=False)


def test_a_partition_may_be_listed_twice() -> None:
    here, there = (bytes(16), 0), (bytes(16), 1)
    found = gather_acks([(here, [acks(0, 0, 1)]), (there, ()), (here, [acks(1, 1, 1)])])
    assert found == {here: [acks(0, 0, 1), acks(1, 1, 1)]}
