"""Who guesses waits; who does not, does not."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.security.backoff import FORGOTTEN_AFTER_S, FREE_FAILURES, LONGEST_PAUSE_S, Backoff

HERE, THERE = "10.0.0.1", "10.0.0.2"


def fail(backoff: Backoff, times: int, host: str = HERE, user: str = "alice", at_s: float = 0.0) -> Backoff:
    for _ in range(times):
        backoff.failed(host, user, at_s)
    return backoff


def test_the_first_failures_are_free_then_each_one_costs_twice_as_much() -> None:
    pauses = [fail(Backoff(), times).wait_s(HERE, "alice", 0.0) for times in range(FREE_FAILURES + 9)]
    assert pauses == [0.0] * FREE_FAILURES + [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


def test_nobody_locks_another_one_out() -> None:
    backoff = fail(Backoff(), 50)
    assert backoff.wait_s(HERE, "alice", 0.0) == LONGEST_PAUSE_S
    assert backoff.wait_s(THERE, "alice", 0.0) == 0.0
    assert backoff.wait_s(HERE, "bob", 0.0) == 0.0


def test_it_passes() -> None:
    backoff = fail(Backoff(), FREE_FAILURES)
    assert backoff.wait_s(HERE, "alice", 0.4) == 0.6
    assert backoff.wait_s(HERE, "alice", 1.0) == 0.0
    backoff.succeeded(HERE, "alice")
    assert fail(backoff, FREE_FAILURES - 1).wait_s(HERE, "alice", 0.0) == 0.0
    later = fail(fail(Backoff(), 20), 1, at_s=FORGOTTEN_AFTER_S)
    assert later.wait_s(HERE, "alice", FORGOTTEN_AFTER_S) == 0.0


def test_a_network_of_ipv6_is_one_place_and_ipv4_within_it_is_ipv4() -> None:
    backoff = fail(Backoff(), 50, host="2001:db8::1")
    assert backoff.wait_s("2001:db8::2:1", "alice", 0.0) > 0
    assert backoff.wait_s("2001:db8:0:1::1", "alice", 0.0) == 0.0
    backoff = fail(Backoff(), 50, host=f"::ffff:{HERE}")
    assert backoff.wait_s(HERE, "alice", 0.0) > 0
    assert backoff.wait_s(f"::ffff:{THERE}", "alice", 0.0) == 0.0


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=60))
def test_it_remembers_so_many_and_the_latest(pairs: list[tuple[str, str]]) -> None:
    backoff = Backoff(limit=8)
    for host, user in pairs:
        fail(backoff, 1, host, user)
        assert len(backoff._failures) <= 8
    if pairs:
        assert fail(backoff, FREE_FAILURES, *pairs[-1]).wait_s(*pairs[-1], 0.0) > 0
