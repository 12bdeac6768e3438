"""How long whoever copies has to wait, so that no more than so many bytes a second come over any longer time."""

import pytest

from penstock.cluster.replication.throttle import LOOK_AGAIN_S, Throttle


class Hand:
    """A clock that a test moves; the other ways to ask it are not for a throttle."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Rate:
    def __init__(self, value: int | None) -> None:
        self.value = value


def throttle_of(rate: int | None) -> tuple[Throttle, Hand, Rate]:
    clock, limit = Hand(), Rate(rate)
    return Throttle(clock, lambda: limit.value), clock, limit  # type: ignore[arg-type]


def test_without_a_limit_nobody_waits() -> None:
    throttle, _, _ = throttle_of(None)
    throttle.spend(1 << 30)
    assert throttle.wait_s() == 0.0


def test_all_who_copy_share_one_rate() -> None:
    throttle, _, _ = throttle_of(10_000)
    throttle.spend(2000)
    throttle.spend(3000)
    assert throttle.wait_s() == pytest.approx(0.5)


def test_time_that_passes_is_paid_back_and_no_more_than_that() -> None:
    throttle, clock, _ = throttle_of(1000)
    throttle.spend(1000)
    clock.now_s += 0.4
    assert throttle.wait_s() == pytest.approx(0.6)
    clock.now_s += 60
    throttle.spend(100)
    assert throttle.wait_s() == pytest.approx(0.1), "a quiet minute is no credit for a burst"


def test_over_a_long_time_the_rate_is_kept() -> None:
    throttle, clock, _ = throttle_of(1000)
    spent, began = 0, clock.now_s
    for size in (1, 700, 5000, 20, 0, 900) * 50:
        spent += size
        throttle.spend(size)
        while wait_s := throttle.wait_s():
            clock.now_s += wait_s
    assert spent / (clock.now_s - began) == pytest.approx(1000)


def test_a_limit_that_is_lifted_or_changed_counts_for_who_waits_already() -> None:
    throttle, _, limit = throttle_of(10)
    throttle.spend(1000)
    assert throttle.wait_s() == LOOK_AGAIN_S, "100 s, but asked again before"
    limit.value = 100_000
    assert throttle.wait_s() == pytest.approx(0.01)
    limit.value = None
    assert throttle.wait_s() == 0.0
    limit.value = 1000
    assert throttle.wait_s() == 0.0, "what came without a limit is paid for"
