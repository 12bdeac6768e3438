"""Hand-made histories of offsets and members: each check finds its own kind of wrong, and nothing in a right one."""

import math

import pytest

from tests.simulation.committed_offsets import Read, Register
from tests.simulation.members import Assigned, MemberCommit, check_generations, check_owners


def _register(*writes: tuple[int, float, float]) -> Register:
    register = Register("r")
    for value, sent_at, acked_at in writes:
        register.write(value, sent_at).acked_at = acked_at
    return register


def _read(register: Register, value: int, began_at: float, ended_at: float) -> None:
    register.reads.append(Read(value, began_at, ended_at, "broker 1"))


def test_a_register_that_is_one() -> None:
    register = _register((1, 1.0, 2.0), (2, 3.0, math.inf), (3, 5.0, 6.0))
    _read(register, -1, 0.0, 0.5)
    _read(register, 1, 2.5, 2.6)
    _read(register, 2, 4.0, 4.1)
    _read(register, 3, 7.0, 7.1)
    assert register.check() == []


def test_what_is_under_way_may_be_read_or_not() -> None:
    register = _register((1, 1.0, 2.0), (2, 3.0, 9.0))
    _read(register, 2, 4.0, 4.1)
    register.reads.insert(0, Read(1, 3.5, 3.9, "broker 1"))
    assert register.check() == []


def test_an_unanswered_commit_may_happen_late() -> None:
    register = _register((1, 1.0, math.inf), (2, 2.0, 3.0))
    _read(register, 1, 8.0, 9.0)
    assert register.check() == []


@pytest.mark.parametrize("value", [-1, 1])
def test_an_acknowledged_commit_that_is_lost(value: int) -> None:
    register = _register((1, 1.0, 2.0), (2, 3.0, 4.0))
    _read(register, value, 5.0, 6.0)
    assert "went back" in register.check()[0]


def test_what_one_reader_saw_another_must_not_miss() -> None:
    register = _register((1, 1.0, 2.0), (2, 3.0, math.inf))
    _read(register, 2, 4.0, 5.0)
    _read(register, 1, 6.0, 7.0)
    assert "went back" in register.check()[0]


def test_a_deposed_coordinator_may_answer_out_of_what_it_had() -> None:
    register = _register((1, 1.0, 2.0), (2, 3.0, 4.0))
    _read(register, 1, 2.5, 6.0)  # asked for at 5, by who was deposed at 2.5
    assert register.check() == []


def test_a_commit_that_nobody_sent() -> None:
    register = _register((1, 1.0, 2.0))
    _read(register, 7, 3.0, 4.0)
    assert "never committed by anybody" in register.check()[0]


def test_a_refused_commit_that_is_read() -> None:
    register = _register((1, 1.0, math.inf))
    register.writes[1].refused = True
    _read(register, 1, 3.0, 4.0)
    assert "refused" in register.check()[0]


def test_a_commit_that_is_read_before_it_is_sent() -> None:
    register = _register((1, 5.0, 6.0))
    _read(register, 1, 3.0, 4.0)
    assert "before it was to count" in register.check()[0]


def test_two_owners_in_one_generation() -> None:
    assigned = [Assigned(3, "a", (0, 1), 1.0), Assigned(3, "b", (2,), 1.1), Assigned(4, "b", (0, 1, 2), 2.0)]
    assert check_owners(assigned) == []
    assert "partition 1 belongs to a and to c" in check_owners([*assigned, Assigned(3, "c", (1,), 1.2)])[0]


def test_a_commit_of_a_generation_that_is_over() -> None:
    assigned = [Assigned(3, "a", (0,), 1.0), Assigned(4, "b", (0,), 5.0)]
    assert check_generations(assigned, [MemberCommit(3, "a", 0, 4.9), MemberCommit(4, "b", 0, 6.0)]) == []
    assert "generation 3" in check_generations(assigned, [MemberCommit(3, "a", 0, 5.1)])[0]
