"""The verdict itself: it must see what it is there for."""

from .rows import Row, dead, good, latest
from .verdict import compare, disorder, miscounted

ROWS = list(good(60))


def test_each_row_once() -> None:
    verdict = compare("sink", ROWS, reversed(ROWS))
    assert verdict.is_fine
    assert (verdict.fed, verdict.found) == (57, 57)


def test_a_lost_row() -> None:
    verdict = compare("sink", ROWS, ROWS[1:])
    assert verdict.lost == [Row(0, "w0", 0)]
    assert not verdict.is_fine
    assert "1 lost: (0, 'w0', 0)" in str(verdict)


def test_a_row_that_is_there_twice() -> None:
    verdict = compare("sink", ROWS, [*ROWS, ROWS[3]])
    assert verdict.doubled == [ROWS[3]]
    assert not verdict.lost
    assert not verdict.is_fine


def test_a_loss_and_a_double_do_not_make_up_for_each_other() -> None:
    verdict = compare("sink", ROWS, [*ROWS[1:], ROWS[3]])
    assert (verdict.lost, verdict.doubled) == ([ROWS[0]], [ROWS[3]])


def test_a_row_nobody_fed() -> None:
    verdict = compare("sink", ROWS, [*ROWS, Row(3, "w4", 21), (None, "w4", 21)])
    assert len(verdict.strange) == 2
    assert not verdict.is_fine


def test_a_value_that_changed_is_lost_and_strange() -> None:
    verdict = compare("sink", ROWS, [*ROWS[1:], ROWS[0]._replace(n=5)])
    assert (verdict.lost, verdict.strange) == ([ROWS[0]], [ROWS[0]._replace(n=5)])


def test_order() -> None:
    assert disorder([[row for row in ROWS if row.id % 2 == part] for part in (0, 1)]) == []
    moved = [*ROWS[12:], ROWS[0]]
    assert disorder([moved]) == ["w0: 0 behind 48"]


def test_a_key_in_two_partitions() -> None:
    assert disorder([ROWS[:12], ROWS[12:13]]) == ["w1: 13 in partition 1, others in 0"]


def test_counters() -> None:
    assert miscounted({"topic": 3, "delta": 3}, {"topic": 3, "delta": 4}) == ["delta: counted 4, there are 3"]
    assert miscounted({"topic": 3}, {}) == ["topic: counted None, there are 3"]


def test_dead_letters_and_good_rows_are_all_there_is() -> None:
    assert len(list(good(200))) + len(list(dead(200))) == 200
    assert list(dead(60)) == [
        b"{broken 7",
        b'{"id":23,"who":"w11","n":-1,"slot":23}',
        b"{broken 57",
    ]


def test_upserts_leave_the_last_row_of_a_slot() -> None:
    left = {row.id % 250: row.id for row in latest(510)}
    assert (left[0], left[9], left[10], left[249]) == (500, 509, 260, 499)
    assert left.get(7) is None
