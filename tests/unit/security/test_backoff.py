"""Who guesses waits; who does not, does not."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.security.backoff import FORGOTTEN_AFTER_S, FREE_FAILURES, LONGEST_PAUSE_S, MAX_NAMES, Backoff

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


def test_a_flood_of_invented_names_frees_nobody() -> None:
    """Whoever guesses at a user could else have its failures forgotten, by guesses at names that nobody has."""
    backoff = fail(Backoff(), FREE_FAILURES - 1)
    for number in range(30_000):
        backoff.failed(HERE, f"invented {number}", 1.0)
    assert backoff.wait_s(HERE, "alice", 1.0) == 0.0
    assert fail(backoff, 1, at_s=1.0).wait_s(HERE, "alice", 1.0) == 1.0
    assert sum(len(place.names) for place in backoff._places.values()) <= MAX_NAMES
    assert backoff.wait_s(HERE, "one more", 1.0) == LONGEST_PAUSE_S, "without room, invented names count as one"
    assert backoff.wait_s(THERE, "alice", 1.0) == backoff.wait_s(THERE, "one more", 1.0) == 0.0


def test_a_flood_from_many_addresses_locks_nobody_out_elsewhere() -> None:
    backoff = fail(Backoff(limit=100, names=50), FREE_FAILURES)
    for number in range(20_000):
        backoff.failed(f"10.1.{number % 7}.1", f"invented {number}", 0.0)
    assert sum(len(place.names) for place in backoff._places.values()) == backoff._kept == 100
    assert backoff.wait_s(HERE, "alice", 0.0) == 1.0
    assert backoff.wait_s(THERE, "alice", 0.0) == 0.0
    assert fail(backoff, FREE_FAILURES - 1, THERE).wait_s(THERE, "alice", 0.0) == 0.0
    assert fail(backoff, 1, THERE).wait_s(THERE, "alice", 0.0) == 1.0, "there is room for addresses"


def test_what_is_forgotten_makes_room() -> None:
    backoff = Backoff(limit=10)
    for number in range(30):
        backoff.failed(HERE, f"invented {number}", 0.0)
    assert backoff.wait_s(HERE, "alice", 0.0) > 0
    later = FORGOTTEN_AFTER_S
    assert fail(backoff, 1, at_s=later).wait_s(HERE, "alice", later) == 0.0
    assert (backoff._kept, list(backoff._places[HERE].names)) == (1, ["alice"])
    backoff = fail(Backoff(), 1)
    backoff.failed(THERE, "bob", later)
    assert list(backoff._places) == [THERE]


def test_the_address_that_failed_longest_ago_is_forgotten_first() -> None:
    backoff = Backoff(places=3)
    for number, host in enumerate((*"abc", "a", "d")):
        fail(backoff, FREE_FAILURES, host, at_s=float(number))
    assert [host for host in "abcd" if backoff.wait_s(host, "alice", 4.0)] == ["a", "d"]
    assert sorted(backoff._places) == ["a", "c", "d"] and backoff._kept == 3


@given(
    st.lists(
        st.tuples(st.booleans(), st.text(max_size=1), st.text(max_size=2), st.floats(0, 500, allow_nan=False)),
        max_size=60,
    )
)
def test_what_is_kept_is_bounded_and_counted(steps: list[tuple[bool, str, str, float]]) -> None:
    backoff, now_s = Backoff(limit=8, names=4, places=5), 0.0
    for has_failed, host, user, pause_s in steps:
        now_s += pause_s
        if has_failed:
            fail(backoff, 1, host, user, now_s)
        else:
            backoff.succeeded(host, user)
        names = [len(place.names) for place in backoff._places.values()]
        assert sum(names) == backoff._kept <= 8 and max(names, default=0) <= 4 and len(names) <= 5
    if steps:
        _, host, user, _ = steps[-1]
        assert fail(backoff, FREE_FAILURES, host, user, now_s).wait_s(host, user, now_s) > 0
