"""Deadlines: the earliest first, moved ones at their new time, however often they move."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.coordination.deadlines import Deadlines


def test_a_moved_deadline_comes_at_its_new_time() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.set("b", 20)
    deadlines.set("a", 30)
    assert deadlines.next() == 20
    assert deadlines.take_due(25) == ["b"]
    deadlines.set("a", 5)
    assert deadlines.take_due(25) == ["a"]
    assert deadlines.next() is None


def test_a_thousand_keys_that_move_all_the_time_stay_a_thousand() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for now in range(0, 100_000, 10):
        deadlines.set(str(now % 1_000), now + 45_000)
        deadlines.next()
        assert not deadlines.take_due(now)
        assert len(deadlines._heap) <= 2 * len(deadlines) + 65
    for earlier in range(2_000):
        deadlines.set("0", 50_000 - earlier)
    assert len(deadlines._heap) <= 2 * len(deadlines) + 65


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 20), st.integers(0, 4))))
def test_it_is_as_a_dictionary_would_have_it(moves: list[tuple[str, int | None, int]]) -> None:
    deadlines: Deadlines[str] = Deadlines()
    model: dict[str, int | None] = {}
    now = 0
    for key, at, passed in moves:
        deadlines.set(key, at)
        model[key] = at
        now += passed
        expected = sorted((at, key) for key, at in model.items() if at is not None)
        assert deadlines.next() == (expected[0][0] if expected else None)
        due = [(at, key) for at, key in expected if at <= now]
        assert deadlines.take_due(now) == [key for _, key in due]
        model = {key: at for at, key in expected if at > now}
        assert len(deadlines) == len(model)
